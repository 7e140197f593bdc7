"""Expand what an engine refuses into simpler ops. The only place that does.

A composite means its expansion. A primitive may say how it is made of simpler ones; that is used
only where the engine takes all of them, so that what it cannot run at all stays whole for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusewire.ir.builder import Rebuild, inline
from fusewire.ir.graph import Graph, Node
from fusewire.ops.activation import silu
from fusewire.ops.decompose import GRADES, Grade
from fusewire.ops.table import get_op
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.facts import Facts
from fusewire.rewrite.rule import Outcome, Rewritten, Rule, on

# Answers None for a node that is taken, else a sentence that says why not.
Refuses = Callable[[Node], str | None]


def expand(graph: Graph, refuses: Refuses) -> Rewritten:
    """Replace what is refused by simpler ops, in subgraphs too.

    The report's ``refused`` names what stays refused, with the engine's own sentence.
    """
    return simplify(graph, [expansion_rule(refuses)])


def expansion_rule(refuses: Refuses) -> Rule:
    """Say as a rule what to expand."""

    def apply(node: Node, facts: Facts) -> Outcome:
        reason = refuses(node)
        meaning = None if reason is None else simpler(node, refuses)
        return reason if meaning is None else inline(meaning, node.operands)

    because = "A composite equals its expansion, a primitive its decomposition."
    return Rule("expand", (), because, on(silu, "float32[n]"), apply)


def simpler(node: Node, refuses: Refuses, grades: Sequence[Grade] = GRADES) -> Graph | None:
    """Give a node that is refused in simpler ops; None if it has none that would be taken.

    The first of the ``grades`` counts whose parts are all taken, or can be made simpler in turn.
    """
    op = get_op(node.op)
    if op.is_composite:
        return op.expansion(node)
    for grade in grades:
        parts = op.decomposition(node, grade)
        if parts is not None and all(_is_taken(part, refuses, grades) for part in parts.nodes):
            return parts
    return None


def _is_taken(node: Node, refuses: Refuses, grades: Sequence[Grade]) -> bool:
    if refuses(node) is None:
        return True
    parts = simpler(node, refuses, grades)
    return parts is not None and all(_is_taken(part, refuses, grades) for part in parts.nodes)


def replace_nodes(graph: Graph, meanings: Mapping[Node, Graph]) -> Graph:
    """Put graphs over the same inputs in the place of nodes."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        current = rebuild.copied(node)
        meaning = meanings.get(node)
        outputs = current.outputs if meaning is None else inline(meaning, current.operands)
        rebuild.replace(node, outputs)
    return rebuild.finish()


def refuses_composites(node: Node) -> str | None:
    """Refuse all but primitives: what is left has no meaning but its reference."""
    return f"{node.op} is a composite." if get_op(node.op).is_composite else None
