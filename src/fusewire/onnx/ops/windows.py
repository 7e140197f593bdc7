"""Sliding windows: ONNX's attributes, and replacements if ONNX or an engine lacks them.

Convolution and pooling by windows laid out and then combined are slow, and right for every dtype:
what is asked for seldom (float64, integers, zeros between elements, padding wider than a window) is
worth a few lines, not a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fusewire.errors import FormatError
from fusewire.ir.dims import Dim, ceildiv, dim_max, floordiv, size
from fusewire.ir.graph import Array, Node, Value
from fusewire.onnx.ops.writing import attrs_of, operand
from fusewire.ops import slicing
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add, divide
from fusewire.ops.movement import reshape
from fusewire.ops.patches import unfold
from fusewire.ops.reduction import reduce_max, reduce_sum
from fusewire.ops.slicing import pad, slice_
from fusewire.ops.subgraph import subgraph
from fusewire.ops.window import Sizes, Window

if TYPE_CHECKING:
    from fusewire.onnx.read.call import OnnxCall
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref

Sides = tuple[tuple[Dim, Dim], ...]


class WindowAttrs(NamedTuple):
    """Attributes of a window over spatial axes; a side of the padding may be a size."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Sides

    @property
    def is_fixed(self) -> bool:
        """Whether the padding is the same whatever the sizes are."""
        return all(isinstance(n, int) for side in self.padding for n in side)

    @property
    def attrs(self) -> dict[str, Any]:
        """Give the attributes of an op; padding that is not a number was put around x before."""
        none = ((0, 0),) * len(self.padding)
        padding = self.padding if self.is_fixed else none
        return {"strides": self.strides, "dilations": self.dilations, "padding": padding}

    def around(self, x: Value, fill: Value | None = None) -> Value:
        """Pad x where the padding follows from sizes that are not known yet."""
        if self.is_fixed:
            return x
        return slicing.pad(x, fill, padding=((0, 0), (0, 0), *self.padding))


def listed(call: OnnxCall, name: str, rank: int, default: int) -> tuple[int, ...]:
    """Read an attribute that has one number an axis."""
    found = tuple(call.attr(name) or (default,) * rank)
    if len(found) != rank:
        call.refuse(f"{name} has {len(found)} numbers, and there are {rank} spatial axes.")
    return found


def pairs(call: OnnxCall, rank: int) -> tuple[tuple[int, int], ...]:
    """Read ``pads``: all that is put before the axes, then all that is put after them."""
    pads = listed(call, "pads", 2 * rank, 0)
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def read_window(call: OnnxCall, spatial: Sequence[Dim], sizes: Sequence[Dim]) -> WindowAttrs:
    """Read how a window of these sizes slides over these axes."""
    rank = len(sizes)
    strides = listed(call, "strides", rank, 1)
    dilations = listed(call, "dilations", rank, 1)
    mode = call.attr("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return WindowAttrs(strides, dilations, pairs(call, rank))
    if mode == "VALID":
        return WindowAttrs(strides, dilations, ((0, 0),) * rank)
    require_same(call, mode)
    padding: list[tuple[Dim, Dim]] = []
    for dim, width, stride, dilation in zip(spatial, sizes, strides, dilations, strict=True):
        # As many places as strides fit, so that with stride 1 the size stays.
        missing = (ceildiv(dim, stride) - 1) * stride + (width - 1) * dilation + 1 - dim
        padding.append(shared(dim_max(missing, 0), mode))
    return WindowAttrs(strides, dilations, tuple(padding))


def require_same(call: OnnxCall, mode: str) -> None:
    """Refuse an auto_pad that ONNX does not have."""
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.refuse(f"auto_pad is NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {mode!r}.")


def shared(total: Dim, mode: str) -> tuple[Dim, Dim]:
    """Share padding between both sides; the odd one goes to the end with SAME_UPPER."""
    less = floordiv(total, 2)
    return (less, total - less) if mode == "SAME_UPPER" else (total - less, less)


def kernel(call: OnnxCall, w: Value) -> tuple[Dim, ...]:
    """Give the size of a window, which filters tell."""
    found, sizes = call.attr("kernel_shape"), w.tensor.shape[2:]
    if found is not None and len(found) != len(sizes):
        call.refuse(f"kernel_shape is {list(found)}, and the filters are {w.type}.")
    return sizes


def write_window(node: Node, rank: int) -> dict[str, Any]:
    """Give the attributes that all sliding windows share, but for their size."""
    attrs = attrs_of(node)
    padding = attrs["padding"] or ((0, 0),) * rank
    return {
        "strides": list(attrs["strides"] or (1,) * rank),
        "dilations": list(attrs["dilations"] or (1,) * rank),
        "pads": [low for low, _ in padding] + [high for _, high in padding],
    }


def cropped(e: Emitter, x: Ref, attrs: dict[str, Any]) -> Ref:
    """Cut off what negative padding asks for, and take it out of the attributes."""
    pads = attrs["pads"]
    if min(pads, default=0) >= 0:
        return x
    rank = len(pads) // 2
    cut = [min(n, 0) for n in pads]
    attrs["pads"] = [max(n, 0) for n in pads]
    return e("Pad", x, e.integers(0, 0, *cut[:rank], 0, 0, *cut[rank:]))


def inlined(e: Emitter, node: Node, make: Callable[..., Value], *refs: Ref | None) -> Ref:
    """Write what a function makes of a node's operands with ops of ours."""
    present = [value for value in node.inputs if value is not None]
    graph = subgraph(lambda *values: [make(*values)], *(value.type for value in present))
    return e.run(graph, [ref for ref in refs if ref is not None], inline=True)[0][0]


def conv_by_windows(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Multiply a matrix of windows by the filters."""
    attrs, places = attrs_of(node), node.outputs[0].tensor.shape[2:]
    groups, sizes = attrs["groups"], _known(operand(node, 1).tensor.shape[2:])

    def make(x: Value, w: Value, bias: Value | None = None) -> Value:
        filters, inner = w.tensor.shape[:2]
        spread = _spread(x, attrs["input_dilations"])
        cells = unfold(
            spread,
            window=sizes,
            strides=attrs["strides"],
            padding=attrs["padding"],
            dilations=attrs["dilations"],
        )
        each, count = inner * size(sizes), size(places)
        columns = reshape(cells, shape=(x.tensor.shape[0], groups, each, count))
        matrix = reshape(w, shape=(groups, floordiv(filters, groups), each))
        y = reshape(matmul(matrix, columns), shape=node.outputs[0].tensor.shape)
        if bias is None:
            return y
        return add(y, reshape(bias, shape=(filters, *([1] * len(sizes)))))

    return inlined(e, node, make, x, w, bias)


def _spread(x: Value, dilations: tuple[int, ...] | None) -> Value:
    """Put zeros between the elements of spatial axes."""
    for axis, step in enumerate(dilations or (), 2):
        if step == 1:
            continue
        *before, dim = x.tensor.shape[: axis + 1]
        after = x.tensor.shape[axis + 1 :]
        apart = reshape(x, shape=(*before, dim, 1, *after))
        gaps = [(0, 0)] * (axis + 1) + [(0, step - 1)] + [(0, 0)] * len(after)
        wide = reshape(pad(apart, None, padding=tuple(gaps)), shape=(*before, dim * step, *after))
        ends: tuple[Dim, ...] = (*before, (dim - 1) * step + 1, *after)
        x = slice_(wide, starts=(0,) * len(ends), limits=ends, strides=(1,) * len(ends))
    return x


def pool_by_windows(e: Emitter, node: Node, x: Ref) -> Ref:
    """Combine what each window holds, over an axis of its own."""
    attrs = attrs_of(node)
    at = Window.of(
        attrs["window"], attrs["strides"], attrs["padding"], attrs["dilations"], attrs["ceil"]
    )
    shape, made = operand(node, 0).tensor.shape, node.outputs[0].tensor.shape
    spatial, places = _known(shape[2:]), _known(made[2:])
    largest = node.op == "max_pool"
    fill = np.array((-np.inf if x.dtype.is_float else x.dtype.range[0]) if largest else 0)
    reach = [
        (n - 1) * step + extent
        for n, step, extent in zip(places, at.strides, _known(at.extents), strict=True)
    ]
    sides = [(low, reach[i] - low - spatial[i]) for i, (low, _) in enumerate(at.padding)]

    def make(x: Value) -> Value:
        value = fill.astype(x.tensor.dtype.numpy)
        filled = pad(x, value, padding=((0, 0), (0, 0), *sides))
        cells = unfold(filled, window=attrs["window"], strides=at.strides, dilations=at.dilations)
        apart = reshape(cells, shape=(*shape[:2], size(attrs["window"]), size(places)))
        y = reshape((reduce_max if largest else reduce_sum)(apart, axes=(2,)), shape=made)
        if node.op != "average_pool":
            return y
        counts = _counts(at, spatial, places, attrs["count_padding"])
        return divide(y, counts.astype(value.dtype))

    return inlined(e, node, make, x)


def _counts(at: Window, spatial: Sizes, places: Sizes, with_padding: bool) -> Array:
    """Count the elements, and the padding where it counts, that each window averages."""
    counts = np.ones(())
    for axis, (dim, count) in enumerate(zip(spatial, places, strict=True)):
        (low, high), window = at.padding[axis], _known(at.sizes)[axis]
        offsets = np.arange(window) * at.dilations[axis]
        cells = np.arange(count)[:, None] * at.strides[axis] - low + offsets
        first, last = (-low, dim + high) if with_padding else (0, dim)
        counts = counts[..., None] * ((cells >= first) & (cells < last)).sum(axis=1)
    return np.maximum(counts, 1)


def _known(dims: Sequence[Dim]) -> Sizes:
    known = tuple(dim for dim in dims if isinstance(dim, int))
    if len(known) < len(dims):
        raise FormatError("Windows are laid out only where sizes are known.")
    return known
