"""Expand what an engine refuses into simpler ops.

A composite means its expansion. A primitive may say how it is made of simpler ones; that is used
only where the engine takes all of them, so that what it cannot run at all stays whole for another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusewire.facts.known import Facts
from fusewire.ir.builder import Rebuild, inline
from fusewire.ir.graph import Graph, Node
from fusewire.ops.activation import silu
from fusewire.ops.decompose import GRADES, Grade
from fusewire.ops.table import get_op
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.rule import Outcome, Rewritten, Rule, on

# Returns None for a node that an engine takes, else a sentence that says why not.
Refuses = Callable[[Node], str | None]


def expand(graph: Graph, refuses: Refuses) -> Rewritten:
    """Replace what is refused by simpler ops, in bodies too.

    The report's ``refused`` lists what stays refused, with the engine's own sentence.
    """
    return simplify(graph, [expansion_rule(refuses)])


def expansion_rule(refuses: Refuses) -> Rule:
    """Make the rule that expands what is refused."""

    def apply(node: Node, facts: Facts) -> Outcome:
        reason = refuses(node)
        meaning = None if reason is None else simpler(node, refuses)
        return reason if meaning is None else inline(meaning, node.operands)

    because = "A composite equals its expansion, a primitive its decomposition."
    return Rule("expand", (), because, on(silu, "float32[n]"), apply)


def simpler(node: Node, refuses: Refuses, grades: Sequence[Grade] = GRADES) -> Graph | None:
    """Write a refused node in simpler ops; None if there are none that would be taken.

    Of a primitive, the first of the ``grades`` is used whose parts are all taken, or can be
    written in simpler ops in turn. A composite is always its expansion, unless it is kept whole.
    """
    op = get_op(node.op)
    if op.kept_whole is not None:
        return None
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
    """Replace nodes by graphs over the same inputs."""
    return with_meanings(graph, meanings).finish()


def with_meanings(graph: Graph, meanings: Mapping[Node, Graph]) -> Rebuild:
    """Replace nodes by graphs over the same inputs; what is returned knows which value is which."""
    rebuild = Rebuild(graph)
    for node in graph.nodes:
        current = rebuild.copied(node)
        meaning = meanings.get(node)
        outputs = current.outputs if meaning is None else inline(meaning, current.operands)
        rebuild.replace(node, outputs)
    return rebuild


def refuses_composites(node: Node) -> str | None:
    """Refuse composites, so that only primitives are left."""
    return f"{node.op} is a composite." if get_op(node.op).is_composite else None
