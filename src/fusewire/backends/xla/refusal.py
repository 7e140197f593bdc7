"""What the XLA backend refuses, and why, in sentences."""

from __future__ import annotations

from fusewire.backends.xla.lowering import CONTROL, TABLE
from fusewire.dtypes import string
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

_WHY = {
    "unique": "how many distinct elements there are is known only after it ran",
    "non_max_suppression": "how many boxes are kept is known only after it ran",
    "mel_weight_matrix": "its operands are sizes, and XLA needs sizes before it compiles",
}


def refuses(node: Node) -> str | None:
    """Say why a node is not taken; None for one that is."""
    values = (*node.operands, *node.outputs)
    kinds = [v.type for v in values if not _is_numeric(v.type)]
    if kinds:
        return f"XLA works on tensors of numbers, and {node.op} here is over {kinds[0]}."
    if node.op not in TABLE and node.op not in CONTROL:
        return _unknown(node.op)
    if (told := _told(node)) is not None:
        return (
            f"XLA compiles for shapes that are known, and only {node.op} itself tells the size "
            f"{told} of {', '.join(map(str, node.types))}."
        )
    if node.op == "loop" and node.inputs[0] is None and node.inputs[1] is None:
        return "The loop has neither a number of trips nor a condition, so it would never end."
    for key, body in node.graphs():
        if (inside := _body(body)) is not None:
            return f"The {key} of {node.op} cannot be taken: {inside}"
    return _special(node)


def _is_numeric(type_: object) -> bool:
    return isinstance(type_, TensorType) and type_.dtype is not string


def _unknown(name: str) -> str:
    op = get_op(name)
    if op.is_composite and op.kept_whole is None:
        return f"{name} is given to XLA as the ops that it is made of, which it fuses again."
    if name in _WHY:
        return f"XLA cannot run {name}: {_WHY[name]}."
    return f"XLA has no {name}."


def _told(node: Node) -> str | None:
    """Name a size that only the run of this very node can tell."""
    if not get_op(node.op).is_(Trait.UNBACKED):
        return None
    known = {s for v in node.operands for s in type_symbols(v.type)}
    for type_ in node.types:
        for symbol in type_symbols(type_):
            if symbol.unbacked and symbol not in known:
                return symbol.key
    return None


def _body(graph: Graph) -> str | None:
    values = (*graph.inputs, *graph.outputs)
    kinds = [v.type for v in values if not _is_numeric(v.type)]
    if kinds:
        return f"it is given or gives {kinds[0]}."
    return next((reason for node in graph.nodes if (reason := _inside(node))), None)


def _inside(node: Node) -> str | None:
    """Look into a composite of a body: nobody gives it back as the ops that it is made of."""
    op = get_op(node.op)
    is_opened = op.is_composite and op.kept_whole is None
    if node.op in TABLE or not is_opened or not all(_is_numeric(t) for t in node.types):
        return refuses(node)
    return _body(op.expansion(node))


def _special(node: Node) -> str | None:
    if node.op == "roi_align" and node.attrs["sampling"] == 0:
        return (
            "roi_align with sampling=0 takes as many samples as each box is large, and XLA needs "
            "to know how many before it compiles. Give a sampling ratio."
        )
    if node.op == "dynamic_resize":
        scales = node.inputs[2]
        if scales is not None and scales.constant is None:
            return "dynamic_resize here computes its scales, and XLA needs them to be constant."
    return None
