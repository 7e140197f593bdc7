"""Activations that ONNX has whole."""

from __future__ import annotations

from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.writing import operand, plain, with_attrs
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref


def gelu(e: Emitter, node: Node, x: Ref) -> Ref:
    """Weigh by the normal distribution."""
    return e("Gelu", x, approximate="tanh" if node.attrs["approximate"] else "none")


def prelu(e: Emitter, node: Node, x: Ref, slope: Ref) -> Ref:
    """Scale what is negative; ONNX broadcasts the slope to x, not x to the slope."""
    if node.outputs[0].tensor.shape != operand(node, 0).tensor.shape:
        raise FormatError("ONNX's PRelu does not broadcast x.")
    return e("PRelu", x, slope)


WRITERS = {
    "relu": plain("Relu"),
    "leaky_relu": with_attrs("LeakyRelu", alpha="alpha"),
    "elu": with_attrs("Elu", alpha="alpha"),
    "celu": with_attrs("Celu", alpha="alpha"),
    "selu": with_attrs("Selu", alpha="alpha", gamma="gamma"),
    "softplus": plain("Softplus"),
    "softsign": plain("Softsign"),
    "hard_sigmoid": with_attrs("HardSigmoid", alpha="alpha", beta="beta"),
    "hard_swish": plain("HardSwish"),
    "mish": plain("Mish"),
    "thresholded_relu": with_attrs("ThresholdedRelu", alpha="alpha"),
    "shrink": with_attrs("Shrink", lambd="limit", bias="bias"),
    "gelu": gelu,
    "prelu": prelu,
}
