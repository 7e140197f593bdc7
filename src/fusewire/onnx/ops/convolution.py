"""Convolutions. ONNX pads all axes before, then all axes after; negative padding is cut off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fusewire.errors import FormatError, SizesNeededError
from fusewire.ir.dims import Dim, symbols
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.windows import (
    conv_by_windows,
    cropped,
    kernel,
    listed,
    pairs,
    read_window,
    require_same,
    shared,
    write_window,
)
from fusewire.onnx.ops.writing import attrs_of, has_kernel, operand, require_filled
from fusewire.ops import activation, convolution, elementwise, patches
from fusewire.ops.declare import Op

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# What com.microsoft's FusedConv may end with, and the names of its numbers in their order.
_ENDINGS: Mapping[str, tuple[Op[Value], tuple[str, ...]]] = {
    "Relu": (activation.relu, ()),
    "Tanh": (elementwise.tanh, ()),
    "Sigmoid": (activation.sigmoid, ()),
    "LeakyRelu": (activation.leaky_relu, ("alpha",)),
    "HardSigmoid": (activation.hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (activation.hard_swish, ()),
}


def window_of(
    call: OnnxCall, x: Value, w: Value, fill: Value | None = None
) -> tuple[Value, dict[str, Any]]:
    """Give x, padded if that cannot be said by numbers, and how filters slide over it."""
    at = read_window(call, x.tensor.shape[2:], kernel(call, w))
    return at.around(x, fill), {**at.attrs, "groups": call.attr("group", 1)}


def _read_conv(call: OnnxCall) -> Value:
    x, attrs = window_of(call, call[0], call[1])
    return convolution.conv(x, call[1], call.get(2), **attrs)


def _write_conv(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Slide filters."""
    attrs = attrs_of(node)
    _, channels, *shape = operand(node, 1).tensor.shape
    spread = attrs["input_dilations"] or (1,)
    if max(spread) > 1 or channels == 0 or not has_kernel(e.target, "Conv", x):
        return conv_by_windows(e, node, x, w, bias)
    require_filled(e, node, (0, 1))
    if not isinstance(channels, int):
        e.caution("Engines need to know that there are channels to sum over.")
    window = write_window(node, len(shape))
    x = cropped(e, x, window)
    return e("Conv", x, w, bias, group=attrs["groups"], **window)


def _read_conv_transpose(call: OnnxCall) -> Converted:
    x, w = call[0], call[1]
    sizes = kernel(call, w)
    rank = len(sizes)
    strides, dilations = (listed(call, name, rank, 1) for name in ("strides", "dilations"))
    extra = list(listed(call, "output_padding", rank, 0))
    padding: list[tuple[Dim, Dim]] = list(pairs(call, rank))
    mode, wanted = call.attr("auto_pad", "NOTSET"), call.attr("output_shape")
    if wanted is not None or mode not in ("NOTSET", "", "VALID"):
        # Some files list the batch and the channels as well.
        asked = None if wanted is None else tuple(wanted)[-rank:]
        if asked is None:
            require_same(call, mode)
        for axis, (dim, size) in enumerate(zip(x.tensor.shape[2:], sizes, strict=True)):
            reach = (size - 1) * dilations[axis] + 1 + extra[axis]
            # The default is the size of x times the stride.
            total = reach - strides[axis]
            if asked is not None:
                total = (dim - 1) * strides[axis] + reach - asked[axis]
            if not isinstance(total, int):
                raise SizesNeededError(
                    f"output_shape {asked} is reached by padding that follows from the size "
                    f"{dim} of x. Give example arrays, or Specs with sizes.",
                    [s.name for s in symbols(dim) if not s.unbacked],
                )
            extra[axis] += max(-total, 0)
            padding[axis] = shared(max(total, 0), mode)
    return convolution.conv_transpose(
        x,
        w,
        call.get(2),
        strides=strides,
        dilations=dilations,
        padding=tuple(padding),
        output_padding=tuple(extra),
        groups=call.attr("group", 1),
    )


def _write_conv_transpose(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Put filters at the places of elements."""
    require_filled(e, node, (0, 1))
    attrs = attrs_of(node)
    rank = operand(node, 0).tensor.rank - 2
    window = write_window(node, rank)
    if min(window["pads"], default=0) < 0:
        raise FormatError("ONNX's ConvTranspose has no negative padding.")
    extra = attrs["output_padding"] or (0,) * rank
    steps = zip(extra, window["strides"], window["dilations"], strict=True)
    if any(n >= max(stride, dilation) for n, stride, dilation in steps):
        raise FormatError("ConvTranspose needs output_padding below the stride or dilation.")
    return e(
        "ConvTranspose", x, w, bias, group=attrs["groups"], output_padding=list(extra), **window
    )


def _read_deform_conv(call: OnnxCall) -> Converted:
    x, w = call[0], call[1]
    rank = x.tensor.rank - 2
    return patches.deformable_conv(
        x,
        w,
        call[2],
        call.get(3),
        call.get(4),
        strides=listed(call, "strides", rank, 1),
        dilations=listed(call, "dilations", rank, 1),
        padding=pairs(call, rank),
        groups=call.attr("group", 1),
        offset_groups=call.attr("offset_group", 1),
    )


def _write_deformable_conv(
    e: Emitter, node: Node, x: Ref, w: Ref, offset: Ref, bias: Ref | None, mask: Ref | None
) -> Ref:
    """Convolve cells that are moved."""
    require_filled(e, node, (0, 1))
    attrs = attrs_of(node)
    window = write_window(node, 2)
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


def _read_fused_conv(call: OnnxCall) -> Converted:
    """Expand a convolution, a sum and an activation."""
    y = _read_conv(call)
    added = call.get(3)
    y = y if added is None else elementwise.add(y, added)
    name, numbers = call.attr("activation", ""), call.attr("activation_params", ())
    if name == "Clip":
        low, high = numbers
        return elementwise.clip(y, low, high)
    if not name:
        return y
    if name not in _ENDINGS:
        call.refuse(f"activation is one of Clip, {', '.join(_ENDINGS)}; found {name!r}.")
    op, names = _ENDINGS[name]
    return op(y, **dict(zip(names, numbers, strict=False)))


READERS: Mapping[str, Read] = {
    "Conv": _read_conv,
    "ConvTranspose": _read_conv_transpose,
    "DeformConv": _read_deform_conv,
    "com.microsoft:FusedConv": _read_fused_conv,
}


WRITERS: Mapping[str, Write] = {
    "conv": _write_conv,
    "conv_transpose": _write_conv_transpose,
    "deformable_conv": _write_deformable_conv,
}
