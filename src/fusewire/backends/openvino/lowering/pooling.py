"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops, opset1
from fusewire.backends.openvino.lowering.convolution import cropped, window_of
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Ov,
    Table,
    const,
    convert,
    ints,
    number,
    select,
    stored,
)
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.backends.openvino.lowering.padding import filled
from fusewire.ir.graph import Node
from fusewire.ops.inference import within
from fusewire.ops.window import Window, known


def pooled(node: Node) -> Window:
    """Say how the window of a node slides."""
    return window_of(node, attr(node, "window"))


def _max_pool(s: Any, node: Node, x: Ov) -> Ov:
    of, window = node.outputs[0].tensor.dtype, pooled(node)
    found = largest(convert(ints(x), "f32"), window)
    if of.is_integer:
        return stored(convert(found, "i32"), of)
    # The engine skips NaN and begins with the smallest float32: see reduction.
    flags = select(
        ops.is_nan(x),
        number(2.0, x),
        select(ops.equal(x, number(-np.inf, x)), number(0.0, x), number(1.0, x)),
    )
    flag = largest(flags, window)
    found = select(ops.less(flag, number(1.0, x)), number(-np.inf, x), found)
    return select(ops.less(number(1.0, x), flag), number(np.nan, x), found)


def largest(x: Ov, window: Window) -> Ov:
    """Take the largest of each window, as the engine does."""
    x, low, high = cropped(x, window)
    if not window.ceil and max(window.dilations) == 1:
        # Without places, which the engine would compute though nobody asks for them.
        return opset1.max_pool(x, list(window.strides), low, high, list(window.sizes), "floor")
    # "ceil_torch" leaves out windows that would start in the padding, as the op does.
    return ops.max_pool(
        x,
        list(window.strides),
        list(window.dilations),
        low,
        high,
        list(window.sizes),
        "ceil_torch" if window.ceil else "floor",
        None,
        "i32",
        2,
    ).output(0)


def _refuses(node: Node) -> str | None:
    x, of, window = node.operands[0].tensor, node.operands[0].tensor.dtype, pooled(node)
    if of.is_integer and of.bits > 16:
        return f"OpenVINO compares {of} in float32, which loses digits."
    if x.rank > 5:
        return f"OpenVINO pools over one to three axes, found {x.rank - 2}."
    if node.outputs[0].tensor.is_static and 0 in node.outputs[0].tensor.shape:
        return None
    if 0 in x.shape:
        return "OpenVINO refuses to pool nothing."
    if node.op != "max_pool" and window.ceil and not x.is_static:
        return "Windows that are cut short are built for sizes that are known."
    covered = zip(window.extents, window.padding, strict=True)
    if node.op != "sum_pool" and any(within(extent, max(sides)) for extent, sides in covered):
        return "OpenVINO pads a window by less than its size."
    return None


def _summed(x: Ov, window: Window) -> Ov:
    """Average over zeros and multiply back: every window counts all its cells then."""
    low, high = ([0, 0, *(side[i] for side in window.padding)] for i in (0, 1))
    x = filled(x, const(low), const(high), None)
    none = [0] * len(window.sizes)
    found = ops.avg_pool(
        x,
        list(window.strides),
        none,
        none,
        list(window.sizes),
        False,
        "floor",
        None,
        list(window.dilations),
    )
    return ops.multiply(found, number(math.prod(known(window.sizes)), found))


def _ceiled(window: Window, node: Node) -> Window:
    """Pad the end so that rounding down gives the windows that rounding up would."""
    if not window.ceil:
        return window
    x, y = node.operands[0].tensor, node.outputs[0].tensor
    dims, places, extents = (known(n) for n in (x.shape[2:], y.shape[2:], window.extents))
    padding = []
    for axis, (low, _) in enumerate(window.padding):
        touched = (places[axis] - 1) * window.strides[axis] + extents[axis]
        padding.append((low, touched - low - dims[axis]))
    return Window(window.sizes, window.strides, tuple(padding), window.dilations)


def _sum_pool(s: Any, node: Node, x: Ov) -> Ov:
    return _summed(x, _ceiled(pooled(node), node))


def _average_pool(s: Any, node: Node, x: Ov) -> Ov:
    window = pooled(node)
    counts = bool(attr(node, "count_padding"))
    if not window.ceil and min(n for side in window.padding for n in side) >= 0:
        low, high = ([side[i] for side in window.padding] for i in (0, 1))
        return ops.avg_pool(
            x,
            list(window.strides),
            low,
            high,
            list(window.sizes),
            not counts,
            "floor",
            None,
            list(window.dilations),
        )
    # Sums of the elements over sums of ones tell how many cells count.
    ones = ops.broadcast(number(1.0, x), s.shape([1, 1, *node.operands[0].tensor.shape[2:]]))
    whole = _ceiled(window, node)
    if counts:
        low, high = (const([0, 0, *(side[i] for side in window.padding)]) for i in (0, 1))
        ones = filled(ones, low, high, const(1.0, "f32"))
        rest = tuple(
            (0, high - given)
            for (_, high), (_, given) in zip(whole.padding, window.padding, strict=True)
        )
        count = _summed(ones, Window(whole.sizes, whole.strides, rest, whole.dilations))
    else:
        count = _summed(ones, whole)
    return ops.divide(_summed(x, whole), ops.maximum(count, number(1.0, x)))


TABLE: Table = {
    "max_pool": Entry(_max_pool, "fi", refuses=_refuses),
    "sum_pool": Entry(_sum_pool, refuses=_refuses),
    "average_pool": Entry(_average_pool, refuses=_refuses),
}
