"""What OpenVINO refuses, and why; and regions prepared for it."""

from __future__ import annotations

from fusewire.backends.openvino.holding import Holding
from fusewire.contract.backend import Offer, Refusal
from fusewire.contract.region import claim_by_table
from fusewire.errors import EngineRaised
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Attr, Graph, Node
from fusewire.rewrite.expand import expand


def held(graph: Graph) -> Holding:
    """Say how the values of a region are held, of which every node was offered."""
    holding = Holding(graph)
    if any(refusal(holding, node) for node in graph.nodes):
        # Offered as part of a graph that tells more of what enters here than the region does.
        holding = Holding(graph, guarded=True)
        for node in graph.nodes:
            reason = refusal(holding, node)
            if reason is not None:
                raise EngineRaised(f"Without the graph around it: {reason}")
    return holding


def with_plain_bodies(graph: Graph) -> Graph:
    """Expand the composites in bodies that are refused: nobody else does it inside of a node."""
    if not any(True for node in graph.nodes for _ in node.graphs()):
        return graph
    holding, rebuild, nodes = Holding(graph), Rebuild(graph), []
    for node in graph.nodes:
        new = rebuild.copied(node)
        bodies: dict[str, Attr] = {
            key: expand(body, lambda inner: refusal(holding, inner)).graph
            for key, body in node.graphs()
        }
        if bodies:
            new = new.copy(new.inputs, {**new.attrs, **bodies})
        rebuild.replace(node, new.outputs)
        nodes.append(new)
    outputs = [rebuild.value(value) for value in graph.outputs]
    return Graph(graph.inputs, outputs, nodes, name=graph.name, output_names=graph.output_names)


def claimed(graph: Graph) -> list[Offer | Refusal]:
    """Offer what the table has: for any size, or apart for each where a node needs to know it."""
    holding = Holding(graph)
    answers: list[Offer | Refusal] = []
    for answer in claim_by_table(graph, lambda node: refusal(holding, node, bound=True)):
        if isinstance(answer, Refusal):
            answers.append(answer)
            continue
        static = tuple(place for place in answer.nodes if _waits(graph.nodes[place]))
        rest = tuple(place for place in answer.nodes if place not in static)
        offers = (Offer(rest, "dynamic"), Offer(static, "static"))
        answers += [offer for offer in offers if offer.nodes]
    return answers


def _waits(node: Node) -> bool:
    """Tell whether a node can be compiled only once the sizes that it takes are known."""
    from fusewire.backends.openvino.lowering import LOWERINGS

    is_open = any(not value.tensor.is_static for value in node.operands)
    return is_open and LOWERINGS[node.op].is_sized


def refusal(holding: Holding, node: Node, bound: bool = False) -> str | None:
    """Say why a node is refused, or None; with ``bound``, open sizes will be known in time."""
    from fusewire.backends.openvino.lowering import LOWERINGS

    row = LOWERINGS.get(node.op)
    if row is None:
        return f"OpenVINO has no {node.op}."
    found = holding.refuses(node, row)
    if found is None and row.refuses is not None:
        found = row.refuses(node)
    if found is None and not bound and _waits(node):
        found = f"OpenVINO's {node.op} needs sizes that are known before the run."
    if found is not None:
        return found
    for _, body in node.graphs():
        for inner in body.nodes:
            reason = refusal(holding, inner)
            if reason is not None:
                return f"In the body of {node.op}: {reason}"
    return None
