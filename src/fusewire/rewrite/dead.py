"""Remove dead code: nodes that no output needs, and unused values of bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusewire.errors import TypeRuleError
from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import Symbol, lone_symbol, symbols
from fusewire.ir.graph import Attr, Graph, Node, Value, order
from fusewire.ir.types import TensorType
from fusewire.ops.declare import BodyLayout
from fusewire.ops.table import get_op
from fusewire.rewrite.rule import Log, Rewritten


def drop_dead(graph: Graph) -> Rewritten:
    """Keep what the outputs need, and of bodies what their users need."""
    log = Log()
    return Rewritten(_live(graph, log), log.report())


def _live(graph: Graph, log: Log) -> Graph:
    kept = order(graph.outputs)
    if len(kept) < len(graph.nodes):
        log.fired("dead", graph.name, len(graph.nodes) - len(kept))
        graph = Graph(
            graph.inputs, graph.outputs, kept, name=graph.name, output_names=graph.output_names
        )
    if not any(isinstance(attr, Graph) for node in kept for attr in node.attrs.values()):
        return graph
    used = {*graph.outputs, *(v for node in graph.nodes for v in node.operands)}
    rebuild = Rebuild(graph)
    changed = False
    for node in graph.nodes:
        current = rebuild.copied(node)
        bodies: dict[str, Attr] = {key: _live(body, log) for key, body in node.graphs()}
        if any(body is not node.attrs[key] for key, body in bodies.items()):
            current = current.copy(current.inputs, {**current.attrs, **bodies})
        outputs = [i for i, v in enumerate(node.outputs) if v in used]
        layout = get_op(node.op).layout
        pruned = _pruned(current, outputs, layout) if layout is not None else None
        if pruned is not None:
            log.fired("unused-result", node)
            new, places = pruned
            # What is gone has no user: it may stand for itself.
            values = dict(zip(places, new.outputs, strict=True))
            rebuild.replace(node, [values.get(i, v) for i, v in enumerate(node.outputs)])
            changed = True
        elif current is not node:
            rebuild.replace(node, current.outputs)
            changed = True
    return rebuild.finish() if changed else graph


def _pruned(node: Node, used: Sequence[int], layout: BodyLayout) -> tuple[Node, list[int]] | None:
    """Give the node without what nobody needs and the places of its outputs; None if all is."""
    carries = layout.carries(node)
    outputs, needed = _closure(node, layout, carries, used)
    operands = _operands(node, layout, carries, outputs, needed)
    if operands is None or len(operands) + len(outputs) == len(node.inputs) + len(node.outputs):
        return None
    attrs = dict(node.attrs)
    for key, body in node.graphs():
        gives: Sequence[int] = range(len(body.outputs))
        if key != "condition":
            gives = [*range(layout.flags), *(i + layout.flags for i in outputs)]
        extra = range(len(layout.leading))
        takes = [*extra, *(i - layout.skipped for i in operands if i >= layout.fixed)]
        attrs[key] = _selected(body, takes, gives)
    if attrs.get("carries") is not None:
        attrs["carries"] = sum(i < carries for i in outputs)
    scans = attrs.get("scans")
    if isinstance(scans, int):
        rows = [i for i in operands if carries <= i < carries + scans]
        attrs["scans"] = len(rows)
        if not rows and scans and attrs["length"] is None:
            length = node.operands[carries].tensor.shape[0]
            if any(s.unbacked for s in symbols(length)):
                # The rows are what tells the length.
                return None
            attrs["length"] = length
    types = attrs.get("types")
    if isinstance(types, tuple):
        attrs["types"] = tuple(types[i] for i in outputs)
    return _checked(node, [node.inputs[i] for i in operands], attrs, outputs)


def _checked(
    node: Node, inputs: Sequence[Value | None], attrs: dict[str, Attr], outputs: list[int]
) -> tuple[Node, list[int]] | None:
    """Make the node, unless its type would say something else about what is kept."""
    types = tuple(node.types[i] for i in outputs)
    try:
        found = get_op(node.op).infer([None if v is None else v.type for v in inputs], attrs)
    except TypeRuleError:
        return None
    if found != types:
        return None
    names = [node.outputs[i].name for i in outputs]
    return Node(
        node.op, inputs, attrs, types, names=names, name=node.name, source=node.source
    ), outputs


def _closure(
    node: Node, layout: BodyLayout, carries: int, used: Iterable[int]
) -> tuple[list[int], set[int]]:
    """Find the outputs that must stay, and the inputs that bodies need for them."""
    outputs = set(used)
    while True:
        needed: set[int] = set()
        for key, body in node.graphs():
            gives = [i + layout.flags for i in outputs] + list(range(layout.flags))
            wanted = body.outputs if key == "condition" else [body.outputs[i] for i in gives]
            reached = {*wanted, *(v for n in order(wanted) for v in n.operands)}
            needed |= {i for i, v in enumerate(body.inputs) if v in reached}
        more = {i for i in range(carries) if i + layout.fixed in needed} - outputs
        if not more:
            return sorted(outputs), needed
        outputs |= more


def _operands(
    node: Node, layout: BodyLayout, carries: int, outputs: Sequence[int], needed: set[int]
) -> list[int] | None:
    """Choose the operands that stay: also the only ones that name a symbol of a body.

    None when a value that need not be carried is the only one that names a symbol.
    """
    first, last = layout.fixed, layout.fixed + carries
    kept = {*range(first), *(i + first for i in outputs if i < carries)}
    kept |= {i for i in range(last, len(node.inputs)) if i - layout.skipped in needed}
    for _, body in node.graphs():
        names = {i + layout.skipped: _names(v) for i, v in enumerate(body.inputs)}
        named = {s for i in kept & names.keys() for s in names[i]}
        for i in range(first, len(node.inputs)):
            if i not in kept and not names[i] <= named:
                if i < last:
                    return None
                kept.add(i)
                named |= names[i]
    return sorted(kept)


def _names(value: Value) -> set[Symbol]:
    if not isinstance(value.type, TensorType):
        return set()
    return {s for dim in value.type.shape if (s := lone_symbol(dim)) is not None}


def _selected(body: Graph, takes: Sequence[int], gives: Sequence[int]) -> Graph:
    return Graph(
        [body.inputs[i] for i in takes],
        [body.outputs[i] for i in gives],
        name=body.name,
        output_names=[body.output_names[i] for i in gives],
    )
