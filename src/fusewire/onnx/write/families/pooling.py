"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

from fusewire.dtypes import int64
from fusewire.errors import FormatError
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, has_kernel, number, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import cropped, require_filled, sliding
from fusewire.onnx.write.families.windows import pool_by_windows
from fusewire.onnx.write.model import Ref


def _window(e: Emitter, node: Node, x: Ref) -> tuple[Ref, dict[str, Any]]:
    require_filled(e, node)
    sizes = attrs_of(node)["window"]
    window = sliding(node, len(sizes))
    x = cropped(e, x, window)
    if _is_wide(node):
        e.caution("Engines do not take padding that a whole window fits into.")
    window |= {"kernel_shape": list(sizes), "ceil_mode": int(attrs_of(node)["ceil"])}
    return x, window


def _is_wide(node: Node) -> bool:
    """Tell whether a window fits into the padding."""
    sizes = attrs_of(node)["window"]
    pads = sliding(node, len(sizes))["pads"]
    return any(n >= size for n, size in zip(pads, (*sizes, *sizes), strict=True))


def _filled_up(node: Node, window: dict[str, Any]) -> None:
    """Say a window that is cut short by padding, where sizes are known: ONNX disagrees on ceil."""
    spatial, rank = operand(node, 0).tensor.shape[2:], len(window["kernel_shape"])
    known = all(isinstance(n, int) for n in (*spatial, *node.outputs[0].tensor.shape[2:]))
    if not window["ceil_mode"] or not known or min(sliding(node, rank)["pads"]) < 0:
        return
    low = window["pads"][:rank]
    high = [max(_reach(node, axis, dim) - low[axis], 0) for axis, dim in enumerate(spatial)]
    if all(n < size for n, size in zip(high, window["kernel_shape"], strict=True)):
        window |= {"pads": [*low, *high], "ceil_mode": 0}


def max_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the largest of each window."""
    if _is_wide(node) or not has_kernel(e.target, "MaxPool", x):
        return pool_by_windows(e, node, x)
    x, window = _window(e, node, x)
    _filled_up(node, window)
    return e("MaxPool", x, **window)


def max_pool_with_indices(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Take the largest of each window and its place."""
    whole, window = _window(e, node, x)
    if whole is not x:
        raise FormatError("Places in what negative padding has cut off are not those of x.")
    _filled_up(node, window)
    order = int(attrs_of(node)["column_major"])
    return e.many("MaxPool", x, made=[x.dtype, int64], storage_order=order, **window)


def average_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average each window."""
    if _is_wide(node) or not has_kernel(e.target, "AveragePool", x):
        return pool_by_windows(e, node, x)
    x, window = _window(e, node, x)
    counts = int(attrs_of(node)["count_padding"])
    if not counts:
        _filled_up(node, window)
    return e("AveragePool", x, count_include_pad=counts, **window)


def sum_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average over as many elements as a window has, zeros among them, times their number."""
    if not has_kernel(e.target, "AveragePool", x):
        return pool_by_windows(e, node, x)
    require_filled(e, node)
    sizes = attrs_of(node)["window"]
    rank, spatial = len(sizes), operand(node, 0).tensor.shape[2:]
    window = sliding(node, rank)
    low, high = window["pads"][:rank], window.pop("pads")[rank:]
    if node.attrs["ceil"]:
        high = [_reach(node, axis, dim) - low[axis] for axis, dim in enumerate(spatial)]
    if any((*low, *high)):
        x = e("Pad", x, e.integers(0, 0, *low, 0, 0, *high))
    terms = number(e, float(math.prod(sizes)), x)
    return e("Mul", e("AveragePool", x, kernel_shape=list(sizes), **window), terms)


def _reach(node: Node, axis: int, dim: Dim) -> int:
    """Count the cells beyond the axis that the last window touches, from the first of them."""
    attrs = attrs_of(node)
    window = sliding(node, len(attrs["window"]))
    places = node.outputs[0].tensor.shape[axis + 2]
    if not isinstance(places, int) or not isinstance(dim, int):
        raise FormatError("Where a window is cut short, sums need sizes that are known.")
    extent = window["dilations"][axis] * (attrs["window"][axis] - 1) + 1
    touched: int = (places - 1) * window["strides"][axis] + extent
    return touched - dim


def over_all(op: str) -> Any:
    """Reduce all spatial axes."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        require_filled(e, node)
        return e(op, x)

    return write


WRITERS = {
    "max_pool": max_pool,
    "max_pool_with_indices": max_pool_with_indices,
    "average_pool": average_pool,
    "sum_pool": sum_pool,
    "global_average_pool": over_all("GlobalAveragePool"),
    "global_max_pool": over_all("GlobalMaxPool"),
}
