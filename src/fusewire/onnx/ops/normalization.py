"""Normalizations: along an axis, by channel, by row, by neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import DType, float32
from fusewire.errors import FormatError
from fusewire.ir.dims import floordiv, size
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import attrs_of, operand, require_filled, spelled
from fusewire.ops import channels, elementwise, movement, normalization, reduction, statistics
from fusewire.ops.declare import Op
from fusewire.ops.inference import axis_of

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

_AXIS = {"axis": ("axis", -1)}


def _widest(*values: Value) -> DType:
    return max((v.tensor.dtype for v in values), key=lambda of: of.bits)


def _last_axes(e: Emitter, node: Node) -> tuple[int, tuple[Any, ...]]:
    """Give the first normalized axis and the sizes from there on: those of scale and bias."""
    value = operand(node, 0).tensor
    axis = axis_of(attrs_of(node)["axis"], value.rank)
    shape = value.shape[axis:]
    for given in node.inputs[1:]:
        if given is not None and given.tensor.shape != shape:
            raise FormatError(f"ONNX wants scale and bias of shape {list(shape)}.")
    return spelled(e, attrs_of(node)["axis"], value.rank), shape


def _ones(e: Emitter, node: Node, shape: tuple[Any, ...], like: Ref) -> Ref:
    if not all(isinstance(dim, int) for dim in shape):
        raise FormatError(f"ONNX wants a scale, and the sizes {list(shape)} are not known.")
    return e.constant(np.ones(shape, like.dtype.numpy))


def _read_along(op: Op[Value]) -> Read:
    """Normalize along an axis; before opset 13, along all axes from one on taken together."""

    def convert(call: OnnxCall) -> Converted:
        x = call[0]
        if call.opset >= 13:
            return op(x, axis=call.attr("axis", -1))
        shape = x.tensor.shape
        axis = call.attr("axis", 1)
        axis = axis_of(axis, len(shape)) if axis < len(shape) else axis
        if all(dim == 1 for dim in shape[axis + 1 :]) and axis < len(shape):
            return op(x, axis=axis)
        flat = movement.reshape(x, shape=(size(shape[:axis]), size(shape[axis:])))
        return movement.reshape(op(flat, axis=1), shape=shape)

    return convert


def _read_batch_norm(call: OnnxCall) -> Converted:
    given = [call[i] for i in range(5)]
    of, wide = given[0].tensor.dtype, _widest(*given)
    # From opset 15 on the vectors may be of other dtypes than x.
    x, scale, bias, mean, variance = (cast(v, wide) for v in given)
    epsilon, spatial = call.attr("epsilon", 1e-5), call.flag("spatial", 1)
    if call.flag("training_mode") or (call.opset < 14 and call.wants(1)):
        if not spatial:
            call.refuse("it trains with spatial = 0. Export the model for inference.")
        y, *now = channels.batch_norm_training(x, scale, bias, epsilon=epsilon)
        moved = _moved(call, (mean, variance), now)
        return [cast(y, of), *(cast(v, given[3].tensor.dtype) for v in (*moved, *now))]
    if not spatial:
        # Before opset 9: one number for each place of an instance.
        spread = elementwise.sqrt(elementwise.add(variance, epsilon))
        y = elementwise.divide(elementwise.subtract(x, mean), spread)
        return elementwise.add(elementwise.multiply(y, scale), bias)
    return cast(channels.batch_norm(x, scale, bias, mean, variance, epsilon=epsilon), of)


def _moved(call: OnnxCall, old: Sequence[Value], now: Sequence[Value]) -> list[Value]:
    """Move running statistics towards those of the batch."""
    momentum = call.attr("momentum", 0.9)
    return [
        elementwise.add(
            elementwise.multiply(before, momentum), elementwise.multiply(new, 1.0 - momentum)
        )
        for before, new in zip(old, now, strict=True)
    ]


def _write_batch_norm(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Normalize each channel by what is given."""
    attrs = attrs_of(node)
    channels = operand(node, 0).tensor.shape[1]
    for place in range(1, 5):
        if operand(node, place).tensor.shape != (channels,):
            raise FormatError("ONNX's BatchNormalization wants one number a channel.")
    return e("BatchNormalization", *xs, epsilon=attrs["epsilon"])


def _read_instance_norm(call: OnnxCall) -> Converted:
    epsilon = call.attr("epsilon", 1e-5)
    return channels.instance_norm(call[0], call[1], call[2], epsilon=epsilon)


def _write_instance_norm(
    e: Emitter, node: Node, x: Ref, scale: Ref | None, bias: Ref | None
) -> Ref:
    """Standardize each channel of each instance."""
    require_filled(e, node)
    value, attrs = operand(node, 0).tensor, attrs_of(node)
    channels = value.shape[1]
    if value.rank < 3:
        raise FormatError("ONNX's InstanceNormalization needs spatial axes.")
    for given in node.inputs[1:]:
        if given is not None and given.tensor.shape != (channels,):
            raise FormatError("ONNX's InstanceNormalization wants one number a channel.")
    if (scale is None or bias is None) and not isinstance(channels, int):
        raise FormatError("ONNX wants scale and bias, and the channels are not known.")
    of = x.dtype.numpy
    scale = e.constant(np.ones(channels, of)) if scale is None else scale
    bias = e.constant(np.zeros(channels, of)) if bias is None else bias
    return e("InstanceNormalization", x, scale, bias, epsilon=attrs["epsilon"])


def _read_group_norm(call: OnnxCall) -> Converted:
    x, scale, bias = call[0], call[1], call[2]
    groups = call.needed("num_groups")
    if call.opset < 21:
        # One number a group, not a channel.
        each = floordiv(x.tensor.shape[1], groups)
        scale, bias = (movement.repeat(v, count=each, axis=0) for v in (scale, bias))
    return channels.group_norm(x, scale, bias, groups=groups, epsilon=call.attr("epsilon", 1e-5))


def _read_layer_norm(call: OnnxCall) -> Converted:
    x, scale, bias = call[0], call[1], call.get(2)
    axis, epsilon = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    y = normalization.layer_norm(x, scale, bias, axis=axis, epsilon=epsilon)
    if not call.wants(1) and not call.wants(2):
        return y
    axes = tuple(range(axis_of(axis, x.tensor.rank), x.tensor.rank))
    wide = reduction.widened(x)
    mean = statistics.reduce_mean(wide, axes=axes, keepdims=True)
    spread = elementwise.square(elementwise.subtract(wide, mean))
    variance = statistics.reduce_mean(spread, axes=axes, keepdims=True)
    inverse = elementwise.rsqrt(elementwise.add(variance, epsilon))
    stash = call.dtype("stash_type", float32)
    return [y, cast(mean, stash), cast(inverse, stash)]


def _write_layer_norm(e: Emitter, node: Node, x: Ref, scale: Ref | None, bias: Ref | None) -> Ref:
    """Standardize the last axes, scale and shift."""
    axis, shape = _last_axes(e, node)
    if scale is None:
        scale = _ones(e, node, shape, x)
    attrs = attrs_of(node)
    return e("LayerNormalization", x, scale, bias, axis=axis, epsilon=attrs["epsilon"])


def _read_rms_norm(call: OnnxCall) -> Converted:
    x, scale = call[0], call[1]
    wide = _widest(x, scale)
    axis, epsilon = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    y = normalization.rms_norm(cast(x, wide), cast(scale, wide), axis=axis, epsilon=epsilon)
    return cast(y, scale.tensor.dtype)


def _write_rms_norm(e: Emitter, node: Node, x: Ref, scale: Ref | None) -> Ref:
    """Divide by the root of the mean square; from opset 23 on."""
    axis, shape = _last_axes(e, node)
    if scale is None:
        scale = _ones(e, node, shape, x)
    attrs = attrs_of(node)
    return e("RMSNormalization", x, scale, axis=axis, epsilon=attrs["epsilon"])


def _read_mean_variance_norm(call: OnnxCall) -> Converted:
    axes = tuple(call.attr("axes", (0, 2, 3)))
    return normalization.mean_variance_norm(call[0], axes=axes)


def _read_local_response_norm(call: OnnxCall) -> Converted:
    return channels.local_response_norm(
        call[0],
        window=call.needed("size"),
        alpha=call.attr("alpha", 1e-4),
        beta=call.attr("beta", 0.75),
        bias=call.attr("bias", 1.0),
    )


def _write_local_response_norm(e: Emitter, node: Node, x: Ref) -> Ref:
    """Divide by a power of the mean square of neighbouring channels."""
    require_filled(e, node)
    attrs = attrs_of(node)
    if operand(node, 0).tensor.rank != 4:
        raise FormatError("LRN is for images of rank 4.")
    return e(
        "LRN", x, alpha=attrs["alpha"], beta=attrs["beta"], bias=attrs["bias"], size=attrs["window"]
    )


ROWS = (
    OnnxRow(normalization.softmax, "Softmax", _AXIS, reader=_read_along(normalization.softmax)),
    OnnxRow(
        normalization.log_softmax,
        "LogSoftmax",
        _AXIS,
        reader=_read_along(normalization.log_softmax),
    ),
    OnnxRow(normalization.hardmax, "Hardmax", _AXIS, reader=_read_along(normalization.hardmax)),
    OnnxRow(normalization.lp_normalize, "LpNormalization", {**_AXIS, "p": ("p", 2)}),
)
READERS: Mapping[str, Read] = {
    **readers(ROWS),
    "BatchNormalization": _read_batch_norm,
    "InstanceNormalization": _read_instance_norm,
    "GroupNormalization": _read_group_norm,
    "LayerNormalization": _read_layer_norm,
    "RMSNormalization": _read_rms_norm,
    "MeanVarianceNormalization": _read_mean_variance_norm,
    "LRN": _read_local_response_norm,
}
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "batch_norm": _write_batch_norm,
    "instance_norm": _write_instance_norm,
    "layer_norm": _write_layer_norm,
    "rms_norm": _write_rms_norm,
    "local_response_norm": _write_local_response_norm,
}
