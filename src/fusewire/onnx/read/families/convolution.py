"""Convolutions, and windows put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import SizesNeededError
from fusewire.ir.dims import Dim, symbols
from fusewire.ir.graph import Value
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.windows import (
    kernel,
    listed,
    pairs,
    require_same,
    shared,
    sliding,
)
from fusewire.ops import activation, convolution, elementwise, logic, patches
from fusewire.ops.declare import Op


def window_of(
    call: OnnxCall, x: Value, w: Value, fill: Value | None = None
) -> tuple[Value, dict[str, Any]]:
    """Give x, padded if that cannot be said by numbers, and how filters slide over it."""
    at = sliding(call, x.tensor.shape[2:], kernel(call, w))
    return at.around(x, fill), {**at.attrs, "groups": call.attr("group", 1)}


def _conv(call: OnnxCall) -> Value:
    x, attrs = window_of(call, call[0], call[1])
    return convolution.conv(x, call[1], call.get(2), **attrs)


def _conv_transpose(call: OnnxCall) -> Converted:
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


def _deform_conv(call: OnnxCall) -> Converted:
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


# What com.microsoft's FusedConv may end with, and the names of its numbers in their order.
_ENDINGS: Mapping[str, tuple[Op[Value], tuple[str, ...]]] = {
    "Relu": (activation.relu, ()),
    "Tanh": (elementwise.tanh, ()),
    "Sigmoid": (activation.sigmoid, ()),
    "LeakyRelu": (activation.leaky_relu, ("alpha",)),
    "HardSigmoid": (activation.hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (activation.hard_swish, ()),
}


def _fused_conv(call: OnnxCall) -> Converted:
    """Expand a convolution, a sum and an activation."""
    y = _conv(call)
    added = call.get(3)
    y = y if added is None else elementwise.add(y, added)
    name, numbers = call.attr("activation", ""), call.attr("activation_params", ())
    if name == "Clip":
        low, high = numbers
        return logic.clip(y, low, high)
    if not name:
        return y
    if name not in _ENDINGS:
        call.refuse(f"activation is one of Clip, {', '.join(_ENDINGS)}; found {name!r}.")
    op, names = _ENDINGS[name]
    return op(y, **dict(zip(names, numbers, strict=False)))


TABLE: Mapping[str, Read] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "com.microsoft:FusedConv": _fused_conv,
}
