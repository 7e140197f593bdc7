"""What is said about nodes wherever they are drawn."""

from __future__ import annotations

from collections import Counter

from fusewire.show.why import NodeVerdict, NodeWhy, Why


def title_of(node: NodeWhy) -> str:
    """Name a node as its file does, with its op first."""
    return f"{node.op} ({node.source})" if node.source else node.op


def by_use(why: Why) -> list[str]:
    """List the backends that run nodes, the one with the most nodes first."""
    return [name for name, _ in Counter(node.backend for node in why.nodes).most_common()]


def reason_of(verdict: NodeVerdict) -> str:
    """Say why a backend does not run a node; "" if it would."""
    if not verdict.is_offered:
        return f"{verdict.reason or verdict.code} {verdict.suggestion}".strip()
    return "judged wrong" if verdict.status == "wrong" else ""


def reasons_of(node: NodeWhy) -> list[str]:
    """Say why each backend does not run a node, in a line each."""
    reasons = ((verdict.backend, reason_of(verdict)) for verdict in node.verdicts)
    return [f"not on {backend}: {reason}" for backend, reason in reasons if reason]


def source_of(operand: str) -> str | None:
    """Return what an operand comes from: the place of a node or an input; None if neither."""
    if operand in ("", "constant"):
        return None
    return operand if operand.startswith("input ") else operand.partition(":")[0]


def sources_of(node: NodeWhy) -> list[str]:
    """List what a node uses, each once: places of nodes, or inputs of the graph.

    An input of a body is what the node around it hands over.
    """
    around = node.place.rpartition(".")[0].rpartition(".")[0]
    sources = (source_of(operand) for operand in node.operands)
    placed = (around if around and x and x.startswith("input ") else x for x in sources)
    return [source for source in dict.fromkeys(placed) if source is not None]
