"""Resolve sizes that programs compute: symbols of run-time shapes that follow from known ones."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.facts.known import Facts
from fusewire.ir.builder import Rebuild, bind_symbols
from fusewire.ir.dims import Dim, Symbol, lone_symbol, substitute, symbols
from fusewire.ir.graph import Attr, Graph, Node, order
from fusewire.ir.types import Type, tensor_of, type_symbols
from fusewire.ops.declare import FRESH
from fusewire.ops.table import get_op
from fusewire.rewrite.rule import Log, Rewritten, label
from fusewire.rewrite.rules.shapes import twin
from fusewire.rewrite.specialize import infer_again


def resolve(graph: Graph) -> Rewritten:
    """Replace unbacked symbols by the sizes they are found to be, everywhere.

    This is the one rewrite that changes types: they say more than before.
    """
    log = Log()
    return Rewritten(_resolved(graph, log), log.report())


def _resolved(graph: Graph, log: Log) -> Graph:
    graph = _bodies(graph, log)
    if not any(s.unbacked for n in graph.nodes for t in n.types for s in type_symbols(t)):
        return graph
    found: dict[Symbol, Dim] = {}
    facts = Facts(graph, found)
    seen: set[Node] = set()
    for node in graph.nodes:
        _look(node, facts, found, seen, log)
        seen.add(node)
    if not found:
        return graph
    for _ in found:
        later = {s: substitute(dim, found) for s, dim in found.items()}
        if later == found:
            break
        found = later
    return infer_again(bind_symbols(graph, found))


def _bodies(graph: Graph, log: Log) -> Graph:
    if not any(isinstance(attr, Graph) for node in graph.nodes for attr in node.attrs.values()):
        return graph
    rebuild = Rebuild(graph)
    changed = False
    for node in graph.nodes:
        current = rebuild.copied(node)
        bodies: dict[str, Attr] = {key: _resolved(body, log) for key, body in node.graphs()}
        if any(body is not node.attrs[key] for key, body in bodies.items()):
            current = current.copy(current.inputs, {**current.attrs, **bodies})
            changed = True
        rebuild.replace(node, current.outputs)
    return infer_again(rebuild.finish()) if changed else graph


def _look(node: Node, facts: Facts, found: dict[Symbol, Dim], seen: set[Node], log: Log) -> None:
    """Learn what a node or its twin tells, and compare what they say of shapes."""
    static = twin(node, facts)
    if static is None:
        facts.learn(node)
        if isinstance(node.attrs.get("types"), tuple):
            operands = [None if v is None else v.type for v in node.inputs]
            types = get_op(node.op).infer(operands, {**node.attrs, "types": FRESH})
            _compare(node, [_told(t) for t in types], found, log)
        return
    for new in order(static, seen):
        facts.learn(new)
    for value, same in zip(node.outputs, static, strict=True):
        facts.know(value, same)
    _compare(node, [tensor_of(v.type).shape for v in static], found, log)


def _told(type_: Type) -> Sequence[Dim | None]:
    """List the dims of a type that are more than a fresh name."""
    dims = tensor_of(type_).shape
    return [None if (s := lone_symbol(dim)) is not None and s.unbacked else dim for dim in dims]


def _compare(
    node: Node, shapes: Sequence[Sequence[Dim | None]], found: dict[Symbol, Dim], log: Log
) -> None:
    for type_, shape in zip(node.types, shapes, strict=True):
        for dim, known in zip(tensor_of(type_).shape, shape, strict=True):
            alone = lone_symbol(dim)
            if known is None or alone is None or not alone.unbacked or alone in found:
                continue
            actual = substitute(known, found)
            if alone not in symbols(actual):
                found[alone] = actual
                log.fired("size-found", f"{label(node)}: {alone.key} = {actual}")
