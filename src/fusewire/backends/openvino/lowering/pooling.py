"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from openvino import opset16 as ops

from fusewire.backends.openvino.lowering.convolution import cropped, window_of
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    convert,
    ints,
    number,
    stored,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.backends.openvino.lowering.padding import filled
from fusewire.ir.graph import Node
from fusewire.ops.window import Window


def _rounding(window: Window) -> str:
    # "ceil_torch" leaves out windows that would start in the padding, as the op does.
    return "ceil_torch" if window.ceil else "floor"


def _max_pool(s: Any, node: Node, x: Ov) -> Ov:
    of, window = node.outputs[0].tensor.dtype, window_of(node, attr(node, "window"))
    found = _pooled(convert(ints(x), "f32"), window)[0]
    if of.is_integer:
        return stored(convert(found, "i32"), of)
    # The engine skips NaN and begins with the smallest float32: see reduction.
    flags = ops.select(
        ops.is_nan(x), number(2.0, x), ops.select(ops.equal(x, number(-np.inf, x)), number(0.0, x), number(1.0, x))
    )
    flag = _pooled(flags, window)[0]
    found = ops.select(ops.less(flag, number(1.0, x)), number(-np.inf, x), found)
    return ops.select(ops.less(number(1.0, x), flag), number(np.nan, x), found)


def _pooled(x: Ov, window: Window) -> list[Ov]:
    x, low, high = cropped(x, window)
    made = ops.max_pool(
        x, list(window.strides), list(window.dilations), low, high, list(window.sizes),
        _rounding(window), None, "i32", 2,
    )  # fmt: skip
    return list(made.outputs())


def _refuses(node: Node) -> str | None:
    x = node.operands[0].tensor
    if x.rank > 5:
        return f"OpenVINO pools over one to three axes, found {x.rank - 2}."
    window = window_of(node, attr(node, "window"))
    for extent, sides in zip(window.extents, window.padding, strict=True):
        if max(sides) >= extent:
            return "OpenVINO pads a window by less than its size."
    if 0 in x.shape:
        return "OpenVINO refuses to pool nothing."
    return None


def _refuses_max(node: Node) -> str | None:
    of = node.operands[0].tensor.dtype
    if of.is_integer and of.bits > 16:
        return f"OpenVINO compares {of} in float32, which loses digits."
    return _refuses(node)


def _summed(x: Ov, window: Window) -> Ov:
    """Average over zeros and multiply back: every window counts all its cells then."""
    low, high = ([0, 0, *(side[i] for side in window.padding)] for i in (0, 1))
    x = filled(x, const(low), const(high), None)
    none = [0] * len(window.sizes)
    found = ops.avg_pool(
        x, list(window.strides), none, none, list(window.sizes), False, "floor", None,
        list(window.dilations),
    )  # fmt: skip
    return ops.multiply(found, number(math.prod(map(int, window.sizes)), found))  # type: ignore[arg-type] # sizes of pools are ints


def _ceiled(window: Window, node: Node) -> Window:
    """Pad the end so that rounding down gives the windows that rounding up would."""
    if not window.ceil:
        return window
    x, places = node.operands[0].tensor, node.outputs[0].tensor.shape[2:]
    padding = []
    for axis, (low, _) in enumerate(window.padding):
        dim, count, extent = x.shape[axis + 2], places[axis], window.extents[axis]
        assert isinstance(dim, int) and isinstance(count, int) and isinstance(extent, int)
        touched = (count - 1) * window.strides[axis] + extent
        padding.append((low, touched - low - dim))
    return Window(window.sizes, window.strides, tuple(padding), window.dilations)


def _sum_pool(s: Any, node: Node, x: Ov) -> Ov:
    return _summed(x, _ceiled(window_of(node, attr(node, "window")), node))


def _average_pool(s: Any, node: Node, x: Ov) -> Ov:
    window = window_of(node, attr(node, "window"))
    counts = bool(attr(node, "count_padding"))
    if not window.ceil and min(n for side in window.padding for n in side) >= 0:
        low, high = ([side[i] for side in window.padding] for i in (0, 1))
        return ops.avg_pool(
            x, list(window.strides), low, high, list(window.sizes), not counts, "floor", None,
            list(window.dilations),
        )  # fmt: skip
    # Sums of the elements over sums of ones tell how many cells count.
    ones = ops.broadcast(number(1.0, x), s.shape([1, 1, *node.operands[0].tensor.shape[2:]]))
    whole = _ceiled(window, node)
    if counts:
        sides = [(0, 0), (0, 0), *window.padding]
        ones = filled(ones, *(const([side[i] for side in sides]) for i in (0, 1)), const(1.0, "f32"))
        rest = tuple(
            (0, high - given) for (_, high), (_, given) in zip(whole.padding, window.padding, strict=True)
        )
        count = _summed(ones, Window(whole.sizes, whole.strides, rest, whole.dilations))
    else:
        count = _summed(ones, whole)
    return ops.divide(_summed(x, whole), ops.maximum(count, number(1.0, x)))


def _refuses_sum(node: Node) -> str | None:
    if attr(node, "ceil") and not node.operands[0].tensor.is_static:
        return "Windows that are cut short are built for sizes that are known."
    x = node.operands[0].tensor
    if x.rank > 5:
        return f"OpenVINO pools over one to three axes, found {x.rank - 2}."
    if 0 in x.shape:
        return "OpenVINO refuses to pool nothing."
    window = window_of(node, attr(node, "window"))
    if any(max(sides) >= extent for extent, sides in zip(window.extents, window.padding, strict=True)):
        return None if node.op == "sum_pool" else "OpenVINO pads a window by less than its size."
    return None


TABLE: Table = {
    "max_pool": Entry(_max_pool, "fi", refuses=_refuses_max),
    "sum_pool": Entry(_sum_pool, refuses=_refuses_sum),
    "average_pool": Entry(_average_pool, refuses=_refuses_sum),
}
