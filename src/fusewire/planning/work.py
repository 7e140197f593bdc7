"""What nodes work on: tensors of the model, bodies, or sizes, which the host may compute as well.

A node computes sizes if its outputs are scalars or short lists, and its operands are shapes of
tensors, short constants, inputs that are only used as indices, or sizes again.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.facts.roles import roles
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.show.why import Work

# Longer than any shape, shorter than any data.
_LONGEST = 64
_READS_SHAPES = ("shape_of", "size_of")
# Returns its operand, and looks only at a condition.
_PASSES_ON = "check"


def works(graph: Graph) -> Mapping[Node, Work]:
    """Return what each node of a graph works on, bodies not included."""
    short = [value for value in graph.inputs if _is_short(value)]
    uses = roles(graph) if short else {}
    sizes = {value for value in short if uses[value] == "index"}
    kinds: dict[Node, Work] = {}
    for node in graph.nodes:
        kinds[node] = _work(node, sizes)
        if kinds[node] == "shape" and node.op != _PASSES_ON:
            sizes.update(node.outputs)
    return kinds


def _work(node: Node, sizes: set[Value]) -> Work:
    op = get_op(node.op)
    if op.is_(Trait.CONTROL):
        return "control"
    if node.op == _PASSES_ON:
        return "shape"
    if op.is_(Trait.RANDOM) or not all(map(_is_short, node.outputs)):
        return "data"
    if node.op in _READS_SHAPES:
        return "shape"
    are_sizes = all(v in sizes or (v.constant is not None and _is_short(v)) for v in node.operands)
    return "shape" if are_sizes else "data"


def _is_short(value: Value) -> bool:
    if not isinstance(value.type, TensorType) or value.type.rank > 1:
        return False
    size = value.type.size
    return isinstance(size, int) and size <= _LONGEST
