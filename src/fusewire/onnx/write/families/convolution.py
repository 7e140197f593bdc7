"""Convolutions. ONNX pads all axes before, then all axes after; negative padding is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, has_kernel, operand
from fusewire.onnx.write.emitter import Emitter, is_nothing
from fusewire.onnx.write.families.windows import conv_by_windows
from fusewire.onnx.write.model import Ref


def sliding(node: Node, rank: int) -> dict[str, Any]:
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


def require_filled(e: Emitter, node: Node, places: Sequence[int] = (0,)) -> None:
    """Refuse what is known to have no elements: engines differ in what they do then."""
    sizes = [operand(node, place).tensor.size for place in places]
    if 0 in (*sizes, node.outputs[0].tensor.size) and not is_nothing(node):
        e.caution(f"Engines do not agree about {node.op} of nothing.")


def conv(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Slide filters."""
    attrs = attrs_of(node)
    _, channels, *shape = operand(node, 1).tensor.shape
    spread = attrs["input_dilations"] or (1,)
    if max(spread) > 1 or channels == 0 or not has_kernel(e.target, "Conv", x):
        return conv_by_windows(e, node, x, w, bias)
    require_filled(e, node, (0, 1))
    if not isinstance(channels, int):
        e.caution("Engines need to know that there are channels to sum over.")
    window = sliding(node, len(shape))
    x = cropped(e, x, window)
    return e("Conv", x, w, bias, group=attrs["groups"], **window)


def conv_transpose(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Put filters at the places of elements."""
    require_filled(e, node, (0, 1))
    attrs = attrs_of(node)
    rank = operand(node, 0).tensor.rank - 2
    window = sliding(node, rank)
    if min(window["pads"], default=0) < 0:
        raise FormatError("ONNX's ConvTranspose has no negative padding.")
    extra = attrs["output_padding"] or (0,) * rank
    steps = zip(extra, window["strides"], window["dilations"], strict=True)
    if any(n >= max(stride, dilation) for n, stride, dilation in steps):
        raise FormatError("ConvTranspose needs output_padding below the stride or dilation.")
    return e(
        "ConvTranspose", x, w, bias, group=attrs["groups"], output_padding=list(extra), **window
    )


def deformable_conv(
    e: Emitter, node: Node, x: Ref, w: Ref, offset: Ref, bias: Ref | None, mask: Ref | None
) -> Ref:
    """Convolve cells that are moved."""
    require_filled(e, node, (0, 1))
    attrs = attrs_of(node)
    window = sliding(node, 2)
    if min(window["pads"]) < 0:
        raise FormatError("ONNX's DeformConv has no negative padding.")
    return e(
        "DeformConv",
        x,
        w,
        offset,
        bias,
        mask,
        group=attrs["groups"],
        offset_group=attrs["offset_groups"],
        **window,
    )


WRITERS = {"conv": conv, "conv_transpose": conv_transpose, "deformable_conv": deformable_conv}
