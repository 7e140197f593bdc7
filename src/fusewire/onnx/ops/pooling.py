"""Pooling over windows and over whole planes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, unbacked
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.windows import (
    cropped,
    listed,
    pairs,
    pool_by_windows,
    read_window,
    write_window,
)
from fusewire.onnx.ops.writing import attrs_of, has_kernel, number, operand, require_filled
from fusewire.ops import creation, dynamic, elementwise, movement, pooling, reduction, slicing
from fusewire.ops.shape import shape_of

if TYPE_CHECKING:
    from fusewire.onnx.ops.windows import WindowAttrs
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


def _sizes_and_window(call: OnnxCall) -> tuple[tuple[int, ...], WindowAttrs]:
    sizes = tuple(int(n) for n in call.needed("kernel_shape"))
    return sizes, read_window(call, call[0].tensor.shape[2:], sizes)


def _cropped_and_window(e: Emitter, node: Node, x: Ref) -> tuple[Ref, dict[str, Any]]:
    require_filled(e, node)
    sizes = attrs_of(node)["window"]
    window = write_window(node, len(sizes))
    x = cropped(e, x, window)
    if _is_wide(node):
        e.caution("Engines do not take padding that a whole window fits into.")
    window |= {"kernel_shape": list(sizes), "ceil_mode": int(attrs_of(node)["ceil"])}
    return x, window


def _is_wide(node: Node) -> bool:
    """Tell whether a window fits into the padding."""
    sizes = attrs_of(node)["window"]
    pads = write_window(node, len(sizes))["pads"]
    return any(n >= size for n, size in zip(pads, (*sizes, *sizes), strict=True))


def _filled_up(node: Node, window: dict[str, Any]) -> None:
    """Say a window that is cut short by padding, where sizes are known: ONNX disagrees on ceil."""
    spatial, rank = operand(node, 0).tensor.shape[2:], len(window["kernel_shape"])
    known = all(isinstance(n, int) for n in (*spatial, *node.outputs[0].tensor.shape[2:]))
    if not window["ceil_mode"] or not known or min(write_window(node, rank)["pads"]) < 0:
        return
    low = window["pads"][:rank]
    high = [max(_reach(node, axis, dim) - low[axis], 0) for axis, dim in enumerate(spatial)]
    if all(n < size for n, size in zip(high, window["kernel_shape"], strict=True)):
        window |= {"pads": [*low, *high], "ceil_mode": 0}


def _reach(node: Node, axis: int, dim: Dim) -> int:
    """Count the cells beyond the axis that the last window touches, from the first of them."""
    attrs = attrs_of(node)
    window = write_window(node, len(attrs["window"]))
    places = node.outputs[0].tensor.shape[axis + 2]
    if not isinstance(places, int) or not isinstance(dim, int):
        raise FormatError("Where a window is cut short, sums need sizes that are known.")
    extent = window["dilations"][axis] * (attrs["window"][axis] - 1) + 1
    touched: int = (places - 1) * window["strides"][axis] + extent
    return touched - dim


def _lowest(x: Value) -> Value:
    of = x.tensor.dtype
    return constant(np.array(-np.inf if of.is_float else of.range[0], of.numpy))


def _read_max_pool(call: OnnxCall) -> Converted:
    sizes, at = _sizes_and_window(call)
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    if not call.wants(1):
        return pooling.max_pool(at.around(call[0], _lowest(call[0])), **attrs)
    if not at.is_fixed:
        call.refuse(
            "its indices count elements of x, which auto_pad pads by what follows from its size. "
            "Give example arrays, or Specs with sizes."
        )
    column_major = call.flag("storage_order")
    return pooling.max_pool_with_indices(call[0], column_major=column_major, **attrs)


def _write_max_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the largest of each window."""
    if _is_wide(node) or not has_kernel(e.target, "MaxPool", x):
        return pool_by_windows(e, node, x)
    x, window = _cropped_and_window(e, node, x)
    _filled_up(node, window)
    return e("MaxPool", x, **window)


def _write_max_pool_with_indices(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Take the largest of each window and its place."""
    whole, window = _cropped_and_window(e, node, x)
    if whole is not x:
        raise FormatError("Places in what negative padding has cut off are not those of x.")
    _filled_up(node, window)
    order = int(attrs_of(node)["column_major"])
    return e.many("MaxPool", x, made=[x.dtype, int64], storage_order=order, **window)


def _read_average_pool(call: OnnxCall) -> Converted:
    x, (sizes, at) = call[0], _sizes_and_window(call)
    counted = call.flag("count_include_pad")
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    if at.is_fixed or counted:
        return pooling.average_pool(at.around(x), count_padding=counted, **attrs)
    one = constant(np.ones((), x.tensor.dtype.numpy))
    ones = creation.full(one, shape=x.tensor.shape)
    total, count = (pooling.sum_pool(at.around(v), **attrs) for v in (x, ones))
    return elementwise.divide(total, count)


def _write_average_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average each window."""
    if _is_wide(node) or not has_kernel(e.target, "AveragePool", x):
        return pool_by_windows(e, node, x)
    x, window = _cropped_and_window(e, node, x)
    counts = int(attrs_of(node)["count_padding"])
    if not counts:
        _filled_up(node, window)
    return e("AveragePool", x, count_include_pad=counts, **window)


def _write_sum_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average over as many elements as a window has, zeros among them, times their number."""
    if not has_kernel(e.target, "AveragePool", x):
        return pool_by_windows(e, node, x)
    require_filled(e, node)
    sizes = attrs_of(node)["window"]
    rank, spatial = len(sizes), operand(node, 0).tensor.shape[2:]
    window = write_window(node, rank)
    low, high = window["pads"][:rank], window.pop("pads")[rank:]
    if node.attrs["ceil"]:
        high = [_reach(node, axis, dim) - low[axis] for axis, dim in enumerate(spatial)]
    if any((*low, *high)):
        x = e("Pad", x, e.integers(0, 0, *low, 0, 0, *high))
    terms = number(e, float(math.prod(sizes)), x)
    return e("Mul", e("AveragePool", x, kernel_shape=list(sizes), **window), terms)


def _read_lp_pool(call: OnnxCall) -> Converted:
    sizes, at = _sizes_and_window(call)
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    return pooling.lp_pool(at.around(call[0]), p=float(call.attr("p", 2)), **attrs)


def _read_global_lp_pool(call: OnnxCall) -> Converted:
    x, p = call[0], float(call.attr("p", 2))
    axes = tuple(range(2, x.tensor.rank))
    if p in (1.0, 2.0):
        norm = reduction.norm_l1 if p == 1.0 else reduction.norm_l2
        return norm(x, axes=axes, keepdims=True)
    powers = elementwise.power(elementwise.abs_(x), p)
    return elementwise.power(reduction.reduce_sum(powers, axes=axes, keepdims=True), 1.0 / p)


def _read_max_unpool(call: OnnxCall) -> Converted:
    x, indices = call[0], call[1]
    sizes = [int(n) for n in call.needed("kernel_shape")]
    rank = len(sizes)
    strides, padding = listed(call, "strides", rank, 1), pairs(call, rank)
    shape = list(x.tensor.shape)
    for axis, (stride, (low, high)) in enumerate(zip(strides, padding, strict=True), 2):
        shape[axis] = (shape[axis] - 1) * stride + sizes[axis - 2] - low - high
    # Indices count in the shape that follows from the window; output_shape adds to its end.
    y, asked = pooling.max_unpool(x, indices, shape=tuple(shape)), call.get(2)
    if asked is None:
        return y
    known = call.dims(asked)
    if known is not None:
        ends = tuple((0, wanted - dim) for wanted, dim in zip(known, shape, strict=True))
        return slicing.pad(y, padding=ends)
    more = elementwise.subtract(asked, shape_of(y))
    sides = movement.concat(elementwise.multiply(more, 0), more, axis=0)
    return dynamic.dynamic_pad(y, sides, dims=tuple(unbacked() for _ in shape))


def _write_over_all(op: str) -> Write:
    """Reduce all spatial axes."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        require_filled(e, node)
        return e(op, x)

    return write


ROWS = (
    OnnxRow(
        pooling.average_pool, "AveragePool", reader=_read_average_pool, writer=_write_average_pool
    ),
    OnnxRow(
        pooling.global_average_pool,
        "GlobalAveragePool",
        writer=_write_over_all("GlobalAveragePool"),
    ),
    OnnxRow(pooling.global_max_pool, "GlobalMaxPool", writer=_write_over_all("GlobalMaxPool")),
)
READERS: Mapping[str, Read] = {
    **readers(ROWS),
    "MaxPool": _read_max_pool,
    "LpPool": _read_lp_pool,
    "GlobalLpPool": _read_global_lp_pool,
    "MaxUnpool": _read_max_unpool,
}
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "max_pool": _write_max_pool,
    "max_pool_with_indices": _write_max_pool_with_indices,
    "sum_pool": _write_sum_pool,
}
