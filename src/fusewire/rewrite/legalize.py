"""Expand what an engine refuses, until it takes all of it or only primitives are left."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, Node
from fusewire.ops.activation import silu
from fusewire.ops.table import get_op
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.facts import Facts
from fusewire.rewrite.rule import Outcome, Rewritten, Rule, on

# Answers None for a node that is taken, else a sentence that says why not.
Refuses = Callable[[Node], str | None]


def legalize(graph: Graph, refuses: Refuses) -> Rewritten:
    """Replace refused composites by their expansions, in subgraphs too.

    The report's ``refused`` names what stays refused, with the engine's own sentence.
    """
    return simplify(graph, [expansion_rule(refuses)])


def expansion_rule(refuses: Refuses) -> Rule:
    """Say as a rule what to expand."""

    def apply(node: Node, facts: Facts) -> Outcome:
        reason = refuses(node)
        op = get_op(node.op)
        if reason is None or not op.is_composite:
            return reason
        return inline(op.expansion(node), node.operands)

    because = "A composite means what its expansion does."
    return Rule("expand", (), because, on(silu, "float32[n]"), apply)


def refuses_composites(node: Node) -> str | None:
    """Refuse all but primitives: what is left has no meaning but its reference."""
    return f"{node.op} is a composite." if get_op(node.op).is_composite else None
