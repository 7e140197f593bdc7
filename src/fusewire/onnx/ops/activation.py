"""Activations, kept whole for engines that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fusewire.dtypes import float64
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import operand
from fusewire.ops import activation, movement

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# As they are from opset 6 on.
_SELU = {"alpha": ("alpha", 1.67326319217681884), "gamma": ("gamma", 1.05070102214813232)}
_SHRINK = {"limit": ("lambd", 0.5), "bias": ("bias", 0.0)}


def _read_selu(call: OnnxCall) -> Converted:
    # What was rounded to five digits at first has the digits of float32 since.
    early = {"alpha": 1.6732, "gamma": 1.0507} if call.opset < 6 else {}
    attrs = {key: call.attr(key, early.get(key, default)) for key, (_, default) in _SELU.items()}
    return activation.selu(call[0], **attrs)


def _read_swish(call: OnnxCall) -> Converted:
    return activation.swish(call[0], alpha=call.attr("alpha", 1.0))


def _read_gelu(call: OnnxCall) -> Converted:
    approximate = call.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        call.refuse(f"approximate must be none or tanh, found {approximate!r}.")
    return activation.gelu(call[0], approximate=approximate == "tanh")


def _write_gelu(e: Emitter, node: Node, x: Ref) -> Ref:
    """Weigh by the normal distribution."""
    return e("Gelu", x, approximate="tanh" if node.attrs["approximate"] else "none")


def _read_prelu(call: OnnxCall) -> Converted:
    x, slope = call[0], call[1]
    rank = x.tensor.rank
    if call.opset < 7 and slope.tensor.rank == 1 and rank > 2:
        # One slope a channel, which is axis 1.
        slope = movement.reshape(slope, shape=(slope.tensor.size, *([1] * (rank - 2))))
    return activation.prelu(x, slope)


def _write_prelu(e: Emitter, node: Node, x: Ref, slope: Ref) -> Ref:
    """Scale what is negative; ONNX broadcasts the slope to x, not x to the slope."""
    if node.outputs[0].tensor.shape != operand(node, 0).tensor.shape:
        raise FormatError("ONNX's PRelu does not broadcast x.")
    return e("PRelu", x, slope)


def _read_shrink(call: OnnxCall) -> Converted:
    x = call[0]
    limit, bias = call.attr("lambd", 0.5), call.attr("bias", 0.0)
    of = x.tensor.dtype
    if of.is_float:
        return activation.shrink(x, limit=limit, bias=bias)
    # Compared and moved as numbers, then cut to whole ones.
    return cast(activation.shrink(cast(x, float64), limit=limit, bias=bias), of)


ROWS = (
    OnnxRow(activation.relu, "Relu"),
    OnnxRow(activation.sigmoid, "Sigmoid"),
    OnnxRow(activation.softplus, "Softplus"),
    OnnxRow(activation.softsign, "Softsign"),
    OnnxRow(activation.mish, "Mish"),
    OnnxRow(activation.hard_swish, "HardSwish"),
    OnnxRow(activation.leaky_relu, "LeakyRelu", {"alpha": ("alpha", 0.01)}),
    OnnxRow(activation.elu, "Elu", {"alpha": ("alpha", 1.0)}),
    OnnxRow(activation.celu, "Celu", {"alpha": ("alpha", 1.0)}),
    OnnxRow(activation.thresholded_relu, "ThresholdedRelu", {"alpha": ("alpha", 1.0)}),
    OnnxRow(
        activation.hard_sigmoid, "HardSigmoid", {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}
    ),
    OnnxRow(activation.selu, "Selu", _SELU, reader=_read_selu),
    OnnxRow(activation.shrink, "Shrink", _SHRINK, reader=_read_shrink),
    OnnxRow(activation.gelu, "Gelu", reader=_read_gelu, writer=_write_gelu),
    OnnxRow(activation.prelu, "PRelu", reader=_read_prelu, writer=_write_prelu),
)
READERS: Mapping[str, Read] = {**readers(ROWS), "Swish": _read_swish}
WRITERS: Mapping[str, Write] = writers(ROWS)
