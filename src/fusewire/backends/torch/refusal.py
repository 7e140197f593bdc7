"""What the PyTorch backend refuses, and why, in sentences."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.backends.torch.lowering import CONTROL, TABLE
from fusewire.backends.torch.lowering.contraction import MOST_AXES, is_plain_equation
from fusewire.backends.torch.lowering.recurrent import is_plain_layer
from fusewire.backends.torch.lowering.transformer import is_plain_attention
from fusewire.dtypes import complex128, float64, string, uint64
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.rewrite.expand import simpler

# Ops that mean the same on the bits of a uint64 in an int64; movement and control do anyway.
_ON_BITS_NAMES = """
    add subtract multiply negative square bitwise_and bitwise_or bitwise_xor bitwise_not equal
    not_equal less less_equal greater greater_equal maximum minimum where shift_left shift_right
    bitcast check reduce_sum reduce_prod cumsum cumprod matmul dot_general nonzero iota
"""
_ON_BITS = frozenset(_ON_BITS_NAMES.split())
# Dtypes that Apple's GPUs have no tensors of.
_WIDE = (float64, complex128)
_WHY = {
    "non_max_suppression": "PyTorch has it in torchvision only",
    "roi_align": "PyTorch has it in torchvision only",
    "unique": "PyTorch does not tell where each distinct element comes first",
}


def refuses_on(kind: str) -> Callable[[Node], str | None]:
    """Give what says why a node is not taken on a kind of device."""
    if kind == "metal":
        return lambda node: _lacking(node, kind) or refuses(node)
    return refuses


def _lacking(node: Node, kind: str) -> str | None:
    """Say which dtype a device has no tensors of; None if it has all that a node needs."""
    types = [v.type for v in (*node.operands, *node.outputs)]
    of = [x.dtype for x in types if isinstance(x, TensorType)]
    if wide := [str(x) for x in of if x in _WIDE]:
        return f"PyTorch has no {wide[0]} on {kind}."
    rounds = node.op == "cast" and of[0].is_float and not of[-1].is_float
    if rounds or node.op == "cbrt" or any(x.is_float and x.is_narrow for x in of):
        return f"{node.op} is computed in float64 here, and PyTorch has none on {kind}."
    return None


def refuses(node: Node) -> str | None:
    """Say why a node is not taken; None for one that is."""
    values = (*node.operands, *node.outputs)
    kinds = [v.type for v in values if not _is_numeric(v.type)]
    if kinds:
        return f"PyTorch works on tensors of numbers, and {node.op} here is over {kinds[0]}."
    if node.op in CONTROL:
        return _control(node)
    if node.op not in TABLE:
        return _unknown(node.op)
    return _wide(node) or _special(node)


def _is_numeric(type_: object) -> bool:
    return isinstance(type_, TensorType) and type_.dtype is not string


def _unknown(name: str) -> str:
    if get_op(name).is_composite:
        return f"{name} is given to PyTorch as the ops that it is made of."
    if name in _WHY:
        return f"PyTorch cannot run {name}: {_WHY[name]}."
    return f"PyTorch has no {name}."


def _control(node: Node) -> str | None:
    if node.op == "loop" and node.inputs[0] is None and node.inputs[1] is None:
        return "The loop has neither a number of trips nor a condition, so it would never end."
    for key, body in node.graphs():
        if (inside := _body(body)) is not None:
            return f"The {key} of {node.op} cannot be taken: {inside}"
    return None


def _body(graph: Graph) -> str | None:
    values = (*graph.inputs, *graph.outputs)
    kinds = [v.type for v in values if not _is_numeric(v.type)]
    if kinds:
        return f"it is given or gives {kinds[0]}."
    return next((reason for node in graph.nodes if (reason := _inside(node))), None)


def _inside(node: Node) -> str | None:
    """Look into what a node of a body is made of, if it is refused itself."""
    reason = refuses(node)
    if reason is None:
        return None
    parts = simpler(node, refuses)
    return reason if parts is None else _body(parts)


def _wide(node: Node) -> str | None:
    values = (*node.operands, *node.outputs)
    if node.op in _ON_BITS or get_op(node.op).is_(Trait.MOVEMENT):
        return None
    if any(v.tensor.dtype is uint64 for v in values):
        return f"PyTorch has no {node.op} for uint64. Cast to int64 if no number is that large."
    return None


def _special(node: Node) -> str | None:
    if node.op == "attention" and not is_plain_attention(node):
        return "PyTorch's attention has no softcap, no window and no other precision."
    if node.op in ("lstm", "gru", "rnn") and not is_plain_layer(node):
        return (
            f"PyTorch's {node.op} has no lengths, clipping, peepholes or other activations than "
            "its own, and its reset gate comes after the product."
        )
    if node.op in ("conv", "conv_transpose") and node.outputs[0].tensor.rank - 2 > MOST_AXES:
        return f"PyTorch convolves over {MOST_AXES} axes at most."
    if node.op == "einsum":
        if not is_plain_equation(str(node.attrs["equation"])):
            return "PyTorch's equations are of plain letters."
        if not node.outputs[0].tensor.dtype.is_inexact:
            return "PyTorch's einsum adds integers up in int64."
    return _image(node)


def _image(node: Node) -> str | None:
    attrs = node.attrs
    if node.op in ("resize", "dynamic_resize") and attrs["coordinates"] == "crop":
        return f"PyTorch has no {node.op} of a region of interest."
    if node.op == "dynamic_resize":
        scales = node.inputs[2]
        if scales is not None and scales.constant is None:
            return "dynamic_resize here computes its scales, which must be constant."
    if node.op == "grid_sample":
        rank = node.outputs[0].tensor.rank
        if rank not in (4, 5) or (attrs["mode"] == "cubic" and rank == 5):
            return "PyTorch samples images of two or three axes, cubic ones of two."
        if attrs["mode"] == "cubic" and attrs["padding"] == "border":
            return "PyTorch's cubic sampling moves taps to the border where ONNX moves places."
    return None
