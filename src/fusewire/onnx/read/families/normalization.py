"""Layers that normalize: by channel, by row, by neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.dtypes import DType, float32
from fusewire.ir.dims import floordiv
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import channels, elementwise, movement, normalization, reduction
from fusewire.ops.inference import axis_of


def _widest(*values: Value) -> DType:
    return max((v.tensor.dtype for v in values), key=lambda of: of.bits)


def _batch_norm(call: OnnxCall) -> Converted:
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


def _instance_norm(call: OnnxCall) -> Converted:
    epsilon = call.attr("epsilon", 1e-5)
    return channels.instance_norm(call[0], call[1], call[2], epsilon=epsilon)


def _group_norm(call: OnnxCall) -> Converted:
    x, scale, bias = call[0], call[1], call[2]
    groups = call.needed("num_groups")
    if call.opset < 21:
        # One number a group, not a channel.
        each = floordiv(x.tensor.shape[1], groups)
        scale, bias = (movement.repeat(v, count=each, axis=0) for v in (scale, bias))
    return channels.group_norm(x, scale, bias, groups=groups, epsilon=call.attr("epsilon", 1e-5))


def _layer_norm(call: OnnxCall) -> Converted:
    x, scale, bias = call[0], call[1], call.get(2)
    axis, epsilon = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    y = normalization.layer_norm(x, scale, bias, axis=axis, epsilon=epsilon)
    if not call.wants(1) and not call.wants(2):
        return y
    axes = tuple(range(axis_of(axis, x.tensor.rank), x.tensor.rank))
    wide = reduction.widened(x)
    mean = reduction.reduce_mean(wide, axes=axes, keepdims=True)
    spread = elementwise.square(elementwise.subtract(wide, mean))
    variance = reduction.reduce_mean(spread, axes=axes, keepdims=True)
    inverse = elementwise.rsqrt(elementwise.add(variance, epsilon))
    stash = call.dtype("stash_type", float32)
    return [y, cast(mean, stash), cast(inverse, stash)]


def _rms_norm(call: OnnxCall) -> Converted:
    x, scale = call[0], call[1]
    wide = _widest(x, scale)
    axis, epsilon = call.attr("axis", -1), call.attr("epsilon", 1e-5)
    y = normalization.rms_norm(cast(x, wide), cast(scale, wide), axis=axis, epsilon=epsilon)
    return cast(y, scale.tensor.dtype)


def _lp_norm(call: OnnxCall) -> Converted:
    return normalization.lp_normalize(call[0], axis=call.attr("axis", -1), p=call.attr("p", 2))


def _mean_variance_norm(call: OnnxCall) -> Converted:
    axes = tuple(call.attr("axes", (0, 2, 3)))
    return normalization.mean_variance_norm(call[0], axes=axes)


def _local_response_norm(call: OnnxCall) -> Converted:
    return channels.local_response_norm(
        call[0],
        window=call.needed("size"),
        alpha=call.attr("alpha", 1e-4),
        beta=call.attr("beta", 0.75),
        bias=call.attr("bias", 1.0),
    )


TABLE: Mapping[str, Read] = {
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "LRN": _local_response_norm,
}
