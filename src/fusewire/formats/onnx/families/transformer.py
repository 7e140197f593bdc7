"""Attention, which ONNX has from opset 23 on."""

from __future__ import annotations

from fusewire.errors import FormatError
from fusewire.formats.onnx.elements import element_of
from fusewire.formats.onnx.emitter import Emitter
from fusewire.formats.onnx.families.convolution import require_filled
from fusewire.formats.onnx.families.pieces import attrs_of, operand
from fusewire.formats.onnx.model import Ref
from fusewire.ir.graph import Node


def attention(e: Emitter, node: Node, q: Ref, k: Ref, v: Ref, mask: Ref | None) -> Ref:
    """Average v by the softmax of scaled products of q and k."""
    attrs = attrs_of(node)
    require_filled(e, node, (0, 1, 2))
    if (attrs["left"], attrs["right"], attrs["offset"]) != (None, None, 0):
        raise FormatError("ONNX's Attention has no window, and starts both sides at one place.")
    precision = attrs["precision"]
    if precision not in (None, q.dtype):
        e.caution("Engines do not take a softmax in another dtype.")
    rank = 4 if mask is None else operand(node, 3).tensor.rank
    if rank < 2:
        raise FormatError("ONNX's Attention wants a mask of two axes or more.")
    return e(
        "Attention", q, k, v, mask, is_causal=int(attrs["causal"]), scale=attrs["scale"],
        softcap=attrs["softcap"], softmax_precision=precision and element_of(precision),
    )  # fmt: skip


WRITERS = {"attention": attention}
