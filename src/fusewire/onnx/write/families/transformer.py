"""Attention, which ONNX has from opset 23 on."""

from __future__ import annotations

from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import attrs_of, operand
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref


def attention(e: Emitter, node: Node, q: Ref, k: Ref, v: Ref, mask: Ref | None) -> Ref:
    """Average v by the softmax of scaled products of q and k."""
    attrs = attrs_of(node)
    require_filled(e, node, (0, 1, 2))
    if (attrs["left"], attrs["right"], attrs["offset"]) != (None, None, 0):
        raise FormatError("ONNX's Attention has no window, and starts both sides at one place.")
    precision = attrs["precision"]
    if precision not in (None, q.dtype):
        e.caution("Engines do not take a softmax in another dtype.")
    if mask is not None:
        mask = _shaped(e, node, mask)
    return e(
        "Attention",
        q,
        k,
        v,
        mask,
        is_causal=int(attrs["causal"]),
        scale=attrs["scale"],
        softcap=attrs["softcap"],
        softmax_precision=precision and element_of(precision),
    )


def _shaped(e: Emitter, node: Node, mask: Ref) -> Ref:
    """Repeat a mask over queries and keys, which engines do not do themselves."""
    found = operand(node, 3).tensor.shape
    if len(found) < 2:
        raise FormatError("ONNX's Attention wants a mask of two axes or more.")
    wanted = operand(node, 0).tensor.shape[2], operand(node, 1).tensor.shape[2]
    if found[-2:] == wanted or not e.target.is_cautious:
        return mask
    return e("Expand", mask, e.shape((*([1] * (len(found) - 2)), *wanted)))


WRITERS = {"attention": attention}
