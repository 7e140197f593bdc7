"""Normalizations that ONNX has whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import attrs_of, operand, spelled, with_attrs
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.families.convolution import require_filled
from fusewire.onnx.write.model import Ref
from fusewire.ops.inference import axis_of


def layer_norm(e: Emitter, node: Node, x: Ref, scale: Ref | None, bias: Ref | None) -> Ref:
    """Standardize the last axes, scale and shift."""
    axis, shape = _last_axes(e, node)
    if scale is None:
        scale = _ones(e, node, shape, x)
    attrs = attrs_of(node)
    return e("LayerNormalization", x, scale, bias, axis=axis, epsilon=attrs["epsilon"])


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


def rms_norm(e: Emitter, node: Node, x: Ref, scale: Ref | None) -> Ref:
    """Divide by the root of the mean square; from opset 23 on."""
    axis, shape = _last_axes(e, node)
    if scale is None:
        scale = _ones(e, node, shape, x)
    attrs = attrs_of(node)
    return e("RMSNormalization", x, scale, axis=axis, epsilon=attrs["epsilon"])


def lp_normalize(e: Emitter, node: Node, x: Ref) -> Ref:
    """Divide by the length along an axis."""
    attrs = attrs_of(node)
    return e("LpNormalization", x, axis=attrs["axis"], p=attrs["p"])


def batch_norm(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Normalize each channel by what is given."""
    attrs = attrs_of(node)
    channels = operand(node, 0).tensor.shape[1]
    for place in range(1, 5):
        if operand(node, place).tensor.shape != (channels,):
            raise FormatError("ONNX's BatchNormalization wants one number a channel.")
    return e("BatchNormalization", *xs, epsilon=attrs["epsilon"])


def instance_norm(e: Emitter, node: Node, x: Ref, scale: Ref | None, bias: Ref | None) -> Ref:
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


def local_response_norm(e: Emitter, node: Node, x: Ref) -> Ref:
    """Divide by a power of the mean square of neighbouring channels."""
    require_filled(e, node)
    attrs = attrs_of(node)
    if operand(node, 0).tensor.rank != 4:
        raise FormatError("LRN is for images of rank 4.")
    return e(
        "LRN", x, alpha=attrs["alpha"], beta=attrs["beta"], bias=attrs["bias"], size=attrs["window"]
    )


WRITERS = {
    "softmax": with_attrs("Softmax", axis="axis"),
    "log_softmax": with_attrs("LogSoftmax", axis="axis"),
    "hardmax": with_attrs("Hardmax", axis="axis"),
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "lp_normalize": lp_normalize,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "local_response_norm": local_response_norm,
}
