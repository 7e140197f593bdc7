"""Convolution and pooling where ONNX or an engine has none: windows laid out, then combined.

Slow, and right for every dtype: what is asked for seldom (float64, integers, zeros between
elements, padding wider than a window) is worth a few lines, not a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fusewire.errors import FormatError
from fusewire.ir.dims import Dim, floordiv, size
from fusewire.ir.graph import Array, Node, Value
from fusewire.onnx.ops.writing import attrs_of, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add, divide
from fusewire.ops.movement import reshape
from fusewire.ops.patches import unfold
from fusewire.ops.reduction import reduce_max, reduce_sum
from fusewire.ops.slicing import pad, slice_
from fusewire.ops.subgraph import subgraph
from fusewire.ops.window import Sizes, Window


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
