"""Write a plan for Model Explorer: its graph, and data of its nodes.

The formats are those of ``graph_builder.py`` and ``node_data_builder.py`` in Google's
ai-edge-model-explorer, as of 2026. Groups are namespaces there: "region0/6 × block A/block A 2".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusewire.errors import visible
from fusewire.show.grouping import grouping, paths
from fusewire.show.palette import colours, text_colour
from fusewire.show.report import seconds
from fusewire.show.texts import by_use, reasons_of, source_of
from fusewire.show.timeline import Timeline
from fusewire.show.why import NodeWhy, PortWhy, Why

# The graph of a file, to which data of nodes refers.
_ID = "plan"

Json = dict[str, Any]


def to_graph(name: str, why: Why, timeline: Timeline | None) -> Json:
    """Make the collection of one graph that Model Explorer opens as a JSON file."""
    spaces = paths(grouping(why.nodes, by_region=True))
    shown = colours(by_use(why))
    times = {} if timeline is None else {span.region: span.median for span in timeline.spans}
    nodes = [_input(port) for port in why.inputs]
    for node, space in zip(why.nodes, spaces, strict=True):
        nodes.append(_node(node, space, shown[node.backend], times.get(node.region)))
    nodes += [_output(port) for port in why.outputs]
    return {"label": visible(name), "graphs": [{"id": _ID, "nodes": nodes}]}


def to_node_data(why: Why) -> Json:
    """Make the data that colours nodes by engine, and groups by the share of each."""
    shown = colours(by_use(why))
    results = {
        node.place: {
            "value": visible(node.backend),
            "bgColor": shown[node.backend],
            "textColor": text_colour(shown[node.backend]),
        }
        for node in why.nodes
    }
    more = {"showExpandedSummaryOnGroupNode": True}
    return {_ID: {"name": "engine", "results": results, **more}}


def _pairs(texts: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": visible(text)} for key, text in texts.items() if text]


def _node(node: NodeWhy, space: tuple[str, ...], colour: str, took: float | None) -> Json:
    attrs = {
        "engine": node.backend,
        "region": node.region,
        "time of the region": "" if took is None else seconds(took),
        "source": node.source,
        "works on": node.work,
    }
    refused = [{"key": "refused", "value": visible(reason)} for reason in reasons_of(node)]
    types = enumerate(node.types)
    return {
        "id": node.place,
        "label": visible(node.op),
        "namespace": "/".join(visible(part).replace("/", "∕") for part in space),
        "attrs": [*_pairs(attrs), *refused],
        "incomingEdges": _edges(node.place, node.operands),
        "outputsMetadata": [
            {"id": str(number), "attrs": _pairs({"tensor_shape": text})} for number, text in types
        ],
        "style": {"backgroundColor": colour},
    }


def _edges(place: str, operands: tuple[str, ...]) -> list[Json]:
    around = place.rpartition(".")[0].rpartition(".")[0]
    edges = []
    for number, operand in enumerate(operands):
        source = source_of(operand)
        if source is None:
            continue
        is_outer = bool(around) and source.startswith("input ")
        edges.append(
            {
                "sourceNodeId": visible(around if is_outer else source),
                "sourceNodeOutputId": _output_of(operand),
                "targetNodeInputId": str(number),
            }
        )
    return edges


def _output_of(operand: str) -> str:
    if operand.startswith("input "):
        return "0"
    return operand.partition(":")[2] or "0"


def _input(port: PortWhy) -> Json:
    metadata = [{"id": "0", "attrs": _pairs({"tensor_shape": port.type})}]
    name = visible(port.name)
    return {"id": f"input {name}", "label": f"input {name}", "outputsMetadata": metadata}


def _output(port: PortWhy) -> Json:
    name = f"output {visible(port.name)}"
    attrs = _pairs({"type": port.type})
    edges = _edges("", (port.operand,))
    return {"id": name, "label": name, "attrs": attrs, "incomingEdges": edges}
