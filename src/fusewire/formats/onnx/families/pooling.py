"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

from fusewire.dtypes import int64
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter, Ref
from fusewire.formats.onnx.families.convolution import cropped, require_filled, sliding
from fusewire.formats.onnx.families.pieces import number, operand, plain
from fusewire.ir.graph import Node
from fusewire.ops.window import Window


def _window(e: Emitter, node: Node, x: Ref) -> tuple[Ref, dict[str, Any]]:
    require_filled(node)
    sizes: Any = node.attrs["window"]
    window = sliding(node, len(sizes))
    x = cropped(e, x, window)
    window |= {"kernel_shape": list(sizes), "ceil_mode": int(bool(node.attrs["ceil"]))}
    return x, window


def max_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Take the largest of each window."""
    x, window = _window(e, node, x)
    _require_inside(node)
    return e("MaxPool", x, **window)


def max_pool_with_indices(e: Emitter, node: Node, x: Ref) -> list[Ref]:
    """Take the largest of each window and its place."""
    before = x
    x, window = _window(e, node, x)
    if x is not before:
        raise FormatError("Places in what negative padding has cut off are not those of x.")
    _require_inside(node)
    order = int(bool(node.attrs["column_major"]))
    return e.many("MaxPool", x, made=[x.dtype, int64], storage_order=order, **window)


def _require_inside(node: Node) -> None:
    """Refuse windows that may lie in the padding alone: they have no largest element."""
    attrs: Any = node.attrs
    at = Window.of(
        attrs["window"], attrs["strides"], attrs["padding"], attrs["dilations"], attrs["ceil"]
    )
    sides = zip(at.padding, at.extents, strict=True)
    if any(max(pair) >= extent for pair, extent in sides if isinstance(extent, int)):
        raise FormatError("Engines do not agree about the largest element of padding alone.")


def average_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average each window."""
    x, window = _window(e, node, x)
    counts = int(bool(node.attrs["count_padding"]))
    if window["ceil_mode"] and (counts or any(window["pads"])):
        raise FormatError("Engines do not agree about averages of windows that are cut short.")
    return e("AveragePool", x, count_include_pad=counts, **window)


def sum_pool(e: Emitter, node: Node, x: Ref) -> Ref:
    """Average over as many elements as a window has, and multiply by their number."""
    x, window = _window(e, node, x)
    if window["ceil_mode"]:
        raise FormatError("Engines do not agree about sums of windows that are cut short.")
    pads = window.pop("pads")
    rank = len(pads) // 2
    if any(pads):
        x = e("Pad", x, e.integers(0, 0, *pads[:rank], 0, 0, *pads[rank:]))
    terms = math.prod(window["kernel_shape"])
    return e("Mul", e("AveragePool", x, **window), number(e, float(terms), x))


def over_all(op: str) -> Any:
    """Reduce all spatial axes."""

    def write(e: Emitter, node: Node, x: Ref) -> Ref:
        require_filled(node)
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
del operand, plain
