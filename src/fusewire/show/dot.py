"""Write a plan in Graphviz's DOT language: a cluster for each region, a colour for each engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fusewire.errors import visible
from fusewire.show.palette import colours, text_colour
from fusewire.show.texts import by_use, reasons_of, source_of, sources_of, title_of
from fusewire.show.why import NodeWhy, Why


def to_dot(name: str, why: Why) -> str:
    """Write the graph of a plan; nothing in it can end a string early."""
    return "\n".join([*_lines(name, why), ""])


def _lines(name: str, why: Why) -> Iterator[str]:
    yield f"digraph {_quoted(name)} {{"
    yield '  graph [rankdir=TB, fontname="sans-serif", newrank=true];'
    yield '  node [shape=box, style="filled,rounded", fontname="sans-serif", fontsize=10];'
    yield "  edge [arrowsize=0.6];"
    for port in why.inputs:
        yield f"  {_quoted(f'input {port.name}')} [{_box(port.name, port.type, '#ffffff')}];"
    yield from _regions(why)
    for node in why.nodes:
        yield from _edges(node)
    for port in why.outputs:
        target = _quoted(f"output {port.name}")
        yield f"  {target} [{_box(port.name, port.type, '#ffffff')}];"
        if (source := source_of(port.operand)) is not None:
            yield f"  {_quoted(source)} -> {target};"
    yield "}"


def _regions(why: Why) -> Iterator[str]:
    shown = colours(by_use(why))
    inside: dict[str, list[NodeWhy]] = {}
    for node in why.nodes:
        inside.setdefault(node.region, []).append(node)
    for number, (region, nodes) in enumerate(inside.items()):
        yield f"  subgraph cluster_{number} {{"
        yield f"    label={_quoted(f'{region} on {nodes[0].backend}')};"
        for node in nodes:
            yield f"    {_quoted(node.place)} [{_node(node, shown)}];"
        yield "  }"


def _node(node: NodeWhy, shown: Mapping[str, str]) -> str:
    hint = "\n".join([f"{node.place}: {title_of(node)} on {node.backend}", *reasons_of(node)])
    box = _box(node.op, ", ".join(node.types), shown[node.backend])
    return f"{box}, tooltip={_quoted(hint)}"


def _box(first: str, second: str, colour: str) -> str:
    label = _quoted(f"{first}\n{second}")
    return f'label={label}, fillcolor="{colour}", fontcolor="{text_colour(colour)}"'


def _edges(node: NodeWhy) -> Iterator[str]:
    for source in sources_of(node):
        yield f"  {_quoted(source)} -> {_quoted(node.place)};"


def _quoted(text: str) -> str:
    escaped = visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
