"""Which outputs of a graph are an input with some elements replaced, so that nothing else changes.

Such an output may be written over the input: only the op that makes it reads the old value, and
what it writes does not depend on that.
"""

from __future__ import annotations

from fusewire.ir.graph import Graph
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op


def replaced_input(graph: Graph, output: int) -> int | None:
    """Return the place of the input that an output may be written over; None if there is none."""
    value = graph.outputs[output]
    node = value.node
    if node is None or not get_op(node.op).is_(Trait.REPLACES):
        return None
    state = node.inputs[0]
    if state is None or state not in graph.inputs or state in node.inputs[1:]:
        return None
    if node.attrs.get("reduction", "set") != "set":
        return None
    is_once = graph.outputs.count(value) == 1 and state not in graph.outputs
    is_alone = is_once and list(graph.users.get(state, ())) == [node]
    return graph.inputs.index(state) if is_alone else None
