"""What nodes work on: tensors of the model, bodies, or sizes, which the host may compute as well.

A node computes sizes if all that it makes is a scalar or a short list, and all that it is given is
the shape of a tensor, a short constant, an input that is only ever an index, or a size again.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.rewrite.roles import roles
from fusewire.runtime.why import Work

# Longer than any shape, shorter than any data.
_LONGEST = 64
_READS_SHAPES = ("shape_of", "size_of")
# Looks at a condition alone, and gives what it is given.
_PASSES_ON = "check"


def works(graph: Graph) -> Mapping[Node, Work]:
    """Tell what each node of a graph works on; bodies are asked for on their own."""
    short = [value for value in graph.inputs if _is_short(value)]
    uses = roles(graph) if short else {}
    sizes = {value for value in short if uses[value] == "index"}
    found: dict[Node, Work] = {}
    for node in graph.nodes:
        found[node] = _work(node, sizes)
        if found[node] == "shape" and node.op != _PASSES_ON:
            sizes.update(node.outputs)
    return found


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
    given = all(v in sizes or (v.constant is not None and _is_short(v)) for v in node.operands)
    return "shape" if given else "data"


def _is_short(value: Value) -> bool:
    if not isinstance(value.type, TensorType) or value.type.rank > 1:
        return False
    size = value.type.size
    return isinstance(size, int) and size <= _LONGEST
