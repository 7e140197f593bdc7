"""Convolution in one to three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.contraction import (
    codes,
    exact_terms,
    on_floats,
    refuses_codes,
    split_product,
)
from fusewire.backends.openvino.lowering.entry import Entry, Ov, Table, const, convert, rank_of
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.backends.openvino.lowering.padding import filled
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType
from fusewire.ops.window import Window


def window_of(node: Node, sizes: Any) -> Window:
    """Complete the attributes that say how a window slides."""
    strides, padding, dilations = (attr(node, n) for n in ("strides", "padding", "dilations"))
    return Window.of(sizes, strides, padding, dilations, bool(node.attrs.get("ceil")))


def cropped(x: Ov, window: Window) -> tuple[Ov, list[int], list[int]]:
    """Apply padding that crops; give what is left and what the engine is to pad."""
    low, high = ([side[i] for side in window.padding] for i in (0, 1))
    if min([*low, *high]) < 0:
        first, last = (const([0, 0, *(min(n, 0) for n in side)]) for side in (low, high))
        x = filled(x, first, last, None)
    return x, [max(n, 0) for n in low], [max(n, 0) for n in high]


def _spread(s: Any, x: Ov, of: TensorType, steps: tuple[int, ...]) -> Ov:
    """Put steps - 1 zeros between neighbours on each spatial axis."""
    batch, channels, *spatial = of.shape
    rank = len(spatial)
    apart: list[Dim] = [batch, channels, *(n for dim in spatial for n in (dim, 1))]
    x = ops.reshape(x, s.shape(apart), False)
    after = [0, 0, *(n for step in steps for n in (0, step - 1))]
    x = filled(x, const([0] * len(after)), const(after), None)
    grown = [dim * step for dim, step in zip(spatial, steps, strict=True)]
    x = ops.reshape(x, s.shape([batch, channels, *grown]), False)
    # The last of each axis has zeros behind it that lie between nothing.
    return filled(x, const([0] * (rank + 2)), const([0, 0, *(1 - step for step in steps)]), None)


def _zeros(s: Any, node: Node) -> Ov:
    """Sum no products: the engine has no convolution of no channels."""
    return ops.broadcast(const(0.0, "f32"), s.shape(node.outputs[0].tensor.shape))


def _is_void(node: Node) -> bool:
    """Tell whether there is nothing to multiply: no channel, or all of it is padding."""
    return any(0 in value.tensor.shape for value in node.operands[:2])


def convolved(s: Any, x: Ov, w: Ov, kernel: TensorType, window: Window, groups: int) -> Ov:
    """Slide filters over x."""
    x, low, high = cropped(x, window)
    numbers = list(window.strides), low, high, list(window.dilations)
    if groups == 1:
        return ops.convolution(x, w, *numbers)
    filters, *rest = kernel.shape
    inner = s.shape([groups, filters // groups, *rest])
    return ops.group_convolution(x, ops.reshape(w, inner, False), *numbers)


def _conv(s: Any, node: Node, x: Ov, w: Ov, bias: Ov | None) -> Ov:
    image, kernel = node.operands[0].tensor, node.operands[1].tensor
    window = window_of(node, kernel.shape[2:])
    steps = attr(node, "input_dilations")
    if steps is not None and max(steps) > 1 and not _is_void(node):
        x = _spread(s, x, image, steps)
    groups = int(attr(node, "groups"))
    found = _zeros(s, node) if _is_void(node) else convolved(s, x, w, kernel, window, groups)
    return _biased(found, bias)


def _biased(x: Ov, bias: Ov | None) -> Ov:
    by_channel = const([1, -1] + [1] * (rank_of(x) - 2))
    return x if bias is None else ops.add(x, ops.reshape(bias, by_channel, False))


def _refuses(node: Node) -> str | None:
    x, w = node.operands[0].tensor, node.operands[1].tensor
    if x.rank > 5:
        return f"OpenVINO convolves over one to three axes, found {x.rank - 2}."
    if not all(isinstance(dim, int) for dim in w.shape):
        return f"OpenVINO needs filters of known size, found {w}."
    made = node.outputs[0].tensor
    if 0 in made.shape and not made.is_static:
        return "OpenVINO refuses a window that is larger than what it slides over."
    return exact_terms(node, size(w.shape[1:]))


def _conv_transpose(s: Any, node: Node, x: Ov, w: Ov, bias: Ov | None) -> Ov:
    if _is_void(node):
        return _biased(_zeros(s, node), bias)
    kernel, groups = node.operands[1].tensor, int(attr(node, "groups"))
    window = window_of(node, kernel.shape[2:])
    low, high = ([side[i] for side in window.padding] for i in (0, 1))
    rank = len(low)
    extra = list(attr(node, "output_padding") or [0] * rank)
    numbers: dict[str, Any] = {
        "strides": list(window.strides),
        "pads_begin": low,
        "pads_end": high,
        "dilations": list(window.dilations),
        "output_padding": extra,
    }
    if groups == 1:
        found = ops.convolution_backprop_data(x, w, auto_pad="EXPLICIT", **numbers)
    else:
        channels, *rest = kernel.shape
        inner = s.shape([groups, channels // groups, *rest])
        w = ops.reshape(w, inner, False)
        found = ops.group_convolution_backprop_data(x, w, **numbers)
    return _biased(found, bias)


def _refuses_transpose(node: Node) -> str | None:
    padding = attr(node, "padding") or ()
    if any(n < 0 for side in padding for n in side):
        return "OpenVINO's transposed convolution takes no negative padding."
    strides = attr(node, "strides") or (1,)
    extra = attr(node, "output_padding") or (0,)
    if max(extra) >= max(*strides, 1):
        return "OpenVINO pads the output by less than a stride."
    return _refuses(node)


def _conv_integer(s: Any, node: Node, x: Ov, w: Ov, x_zero: Ov | None, w_zero: Ov | None) -> Ov:
    if _is_void(node):
        return convert(_zeros(s, node), "i32")
    kernel = node.operands[1].tensor
    window = window_of(node, kernel.shape[2:])
    groups = int(attr(node, "groups"))
    terms = int(np.prod(kernel.shape[1:]))  # type: ignore[arg-type] # or refused
    # Zeros are subtracted first, so that padding is 0 in what is summed.
    left, right = codes(x, x_zero), codes(w, w_zero, 0)
    return split_product(
        lambda a, b: convolved(s, a, b, kernel, window, groups), left, right, terms
    )


def _refuses_integer(node: Node) -> str | None:
    return _refuses_shapes(node) or refuses_codes(size(node.operands[1].tensor.shape[1:]))


def _refuses_shapes(node: Node) -> str | None:
    found = _refuses(node)
    return None if found and "float32" in found else found


TABLE: Table = {
    "conv": Entry(on_floats(_conv), "fi", refuses=_refuses),
    "conv_transpose": Entry(_conv_transpose, refuses=_refuses_transpose),
    "conv_integer": Entry(_conv_integer, "i", refuses=_refuses_integer),
}
