"""Pooling over windows, and to sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.frontends.torch.aten.convolution import both, spread
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, pooling, reduction, statistics
from fusewire.ops.declare import Op
from fusewire.ops.movement import concat, expand_dims, reshape, squeeze
from fusewire.ops.slicing import slice_axis

ROWS = Rows()


def _count(call: AtenCall) -> int:
    """Count the spatial axes, by the name of the op."""
    return int(next(letter for letter in call.name.split(".")[1] if letter.isdigit()))


def _batched(x: Value, count: int) -> tuple[Value, bool]:
    is_single = x.tensor.rank == count + 1
    return (expand_dims(x, axes=(0,)) if is_single else x), is_single


def _window(call: AtenCall, kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    count = _count(call)
    window = spread(kernel, count)
    strides = spread(stride, count) if stride not in (None, [], ()) else window
    edges = both(spread(padding, count))
    return {"window": window, "strides": strides, "padding": edges, "ceil": ceil}


@ROWS.add("max_pool1d", "max_pool2d", "max_pool3d", ops="max_pool")
def _max_pool(
    call: AtenCall,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Value:
    batch, is_single = _batched(x, _count(call))
    window = _window(call, kernel, stride, padding, ceil)
    y = pooling.max_pool(batch, **window, dilations=spread(dilation, _count(call)))
    return squeeze(y, axes=(0,)) if is_single else y


@ROWS.add("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices",
          ops="max_pool, max_pool_with_indices")  # fmt: skip
def _max_pool_with_indices(
    call: AtenCall,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> tuple[Value, Value | None]:
    if not call.uses(1):
        return _max_pool(call, x, kernel, stride, padding, dilation, ceil), None
    count = _count(call)
    batch, is_single = _batched(x, count)
    window = _window(call, kernel, stride, padding, ceil)
    y, places = pooling.max_pool_with_indices(batch, **window, dilations=spread(dilation, count))
    # Ours count in the whole tensor, PyTorch's in one channel.
    spatial: Dim = 1
    for dim in batch.tensor.shape[2:]:
        spatial = spatial * dim
    places = elementwise.remainder(places, call.measure(spatial))
    return (squeeze(y, axes=(0,)), squeeze(places, axes=(0,))) if is_single else (y, places)


@ROWS.add("avg_pool1d", "avg_pool2d", "avg_pool3d", ops="average_pool, sum_pool")
def _avg_pool(
    call: AtenCall,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    batch, is_single = _batched(x, _count(call))
    window = _window(call, kernel, stride, padding, ceil)
    if divisor is not None:
        total = pooling.sum_pool(batch, **window)
        y = elementwise.divide(total, call.value(divisor))
    else:
        y = pooling.average_pool(batch, **window, count_padding=count_include_pad)
    return squeeze(y, axes=(0,)) if is_single else y


@ROWS.add("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d",
          "adaptive_avg_pool3d", "_adaptive_avg_pool3d",
          ops="reduce_mean, average_pool")  # fmt: skip
def _adaptive_avg_pool(call: AtenCall, x: Value, sizes: Sequence[Any]) -> Value:
    if all(size == 1 for size in sizes):
        axes = tuple(range(x.tensor.rank - len(sizes), x.tensor.rank))
        return statistics.reduce_mean(x, axes=axes, keepdims=True)
    for place, size in enumerate(sizes):
        x = _reduced(call, statistics.reduce_mean, x, x.tensor.rank - len(sizes) + place, size)
    return x


def _reduced(call: AtenCall, reduce: Op[Value], x: Value, axis: int, size: Dim) -> Value:
    """Reduce an axis to a size: window i is floor(i n / size) to ceil((i + 1) n / size)."""
    length = x.tensor.shape[axis]
    if length == size:
        return x
    if size == 1:
        return reduce(x, axes=(axis,), keepdims=True)
    if not isinstance(length, int) or not isinstance(size, int):
        raise call.refusal(
            f"it reduces {length} elements to {size}. Compile for sizes that are numbers."
        )
    if length % size == 0:
        shape = x.tensor.shape
        parts = reshape(x, shape=(*shape[:axis], size, length // size, *shape[axis + 1 :]))
        return reduce(parts, axes=(axis + 1,))
    windows = [(i * length // size, -((-(i + 1) * length) // size)) for i in range(size)]
    parts_of = (slice_axis(x, axis, slice(*window)) for window in windows)
    return concat(*[reduce(part, axes=(axis,), keepdims=True) for part in parts_of], axis=axis)


@ROWS.add("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
          ops="reduce_max, argmax")  # fmt: skip
def _adaptive_max_pool(call: AtenCall, x: Value, sizes: Sequence[Any]) -> tuple[Value, None]:
    if call.uses(1):
        raise call.refusal(
            "the places of the largest elements are used. Use max_pool with a window."
        )
    for place, size in enumerate(sizes):
        x = _reduced(call, reduction.reduce_max, x, x.tensor.rank - len(sizes) + place, size)
    return x, None
