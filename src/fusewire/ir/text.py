"""The printed form of graphs, written; ``parse`` reads it. Both ways give the same graph.

The grammar is in docs/ir.md. Small constants are printed as numbers if those read back to the same
bits, else as hex. Constants over the inline limit are printed as their digest, and parsing then
needs them in ``constants``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import numpy as np

from fusewire.dtypes import DType, string
from fusewire.ir.graph import Array, Attr, Constant, Graph, Node, Value
from fusewire.ir.parse import parse_graph, parse_number
from fusewire.ir.types import OptionalType, SequenceType, TensorType

__all__ = ["constants_of", "format_attr", "parse_graph", "print_graph"]

INLINE_BYTES = 256
_READABLE_ELEMENTS = 16
_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]*")


def print_graph(graph: Graph, *, inline_bytes: int = INLINE_BYTES) -> str:
    """Print a graph; constants larger than ``inline_bytes`` as digests."""
    return _Printer(inline_bytes).graph(graph, "")


def constants_of(graph: Graph) -> dict[str, Constant]:
    """Map digests to the constants of a graph and its subgraphs, for ``parse_graph``."""
    held = (v.constant for g in graph.walk() for v in g.constants)
    return {constant.digest: constant for constant in held if constant is not None}


def format_attr(attr: Attr) -> str:
    """Print an attribute that holds no graph."""
    return _Printer(INLINE_BYTES).attr(attr, "")


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def _float(number: float) -> str:
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return repr(float(number))


class _Printer:
    def __init__(self, inline_bytes: int) -> None:
        self._inline_bytes = inline_bytes

    def graph(self, graph: Graph, indent: str) -> str:
        names = _names(graph)
        inputs = ", ".join(f"{names[v]}: {v.type}" for v in graph.inputs)
        lines = [f"graph {_quoted(graph.name)}({inputs}) {{"]
        inner = indent + "  "
        for value in graph.constants:
            assert value.constant is not None
            payload = self.payload(value.constant)
            lines.append(f"{inner}{names[value]} = constant {value.type} {payload}")
        lines.extend(inner + self.node(node, names, inner) for node in graph.nodes)
        results = [
            f"{names[value]} as {_quoted(name)}"
            for value, name in zip(graph.outputs, graph.output_names, strict=True)
        ]
        lines.append(f"{inner}return {', '.join(results)}")
        lines.append(indent + "}")
        return "\n".join(lines)

    def node(self, node: Node, names: Mapping[Value, str], indent: str) -> str:
        outputs = ", ".join([names[v] for v in node.outputs])
        operands = ", ".join(["none" if v is None else names[v] for v in node.inputs])
        types = ", ".join([str(v.type) for v in node.outputs])
        attrs = ""
        if node.attrs:
            items = [f"{key}={self.attr(a, indent)}" for key, a in sorted(node.attrs.items())]
            attrs = f" {{{', '.join(items)}}}"
        label = f" as {_quoted(node.name)}" if node.name is not None else ""
        return f"{outputs} = {node.op}({operands}){attrs} : {types}{label}"

    def attr(self, attr: Attr, indent: str) -> str:
        if attr is None:
            return "none"
        if isinstance(attr, bool):
            return "true" if attr else "false"
        if isinstance(attr, float):
            return _float(attr)
        if isinstance(attr, str):
            return json.dumps(attr)
        if isinstance(attr, DType):
            return attr.name
        if isinstance(attr, tuple):
            items = ", ".join([self.attr(item, indent) for item in attr])
            return f"({items},)" if len(attr) == 1 else f"({items})"
        if isinstance(attr, Graph):
            return self.graph(attr, indent)
        if isinstance(attr, TensorType | SequenceType | OptionalType):
            return f"type {attr}"
        return str(attr)

    def payload(self, constant: Constant) -> str:
        array = constant.array
        if constant.type.dtype is string:
            return "{" + ", ".join(json.dumps(str(item)) for item in array.reshape(-1)) + "}"
        if array.nbytes > self._inline_bytes:
            return f"sha256:{constant.digest}"
        if array.size <= _READABLE_ELEMENTS:
            numbers = _numbers(array, constant.type.dtype)
            if numbers is not None:
                return "{" + ", ".join(numbers) + "}"
        return f'hex:"{np.ascontiguousarray(array).reshape(-1).view(np.uint8).tobytes().hex()}"'


def _numbers(array: Array, of: DType) -> list[str] | None:
    """Write the elements as numbers, or None if those would not read back to the same bits."""
    flat = array.reshape(-1)
    if of.kind == "bool":
        return ["true" if item else "false" for item in flat]
    if of.is_integer:
        return [str(int(item)) for item in flat]
    if not of.is_float:
        return None
    words = [_float(float(item)) for item in flat]
    again = np.array([parse_number(word) for word in words], np.float64).astype(of.numpy)
    return words if again.tobytes() == flat.tobytes() else None


def _names(graph: Graph) -> dict[Value, str]:
    """Name every value: by its own name, with #2, #3 for repeats; others by number."""
    names: dict[Value, str] = {}
    taken: dict[str, int] = {}
    number = 0
    made = (value for node in graph.nodes for value in node.outputs)
    for value in (*graph.inputs, *graph.constants, *made):
        if value in names:
            continue
        if value.name is None:
            names[value] = f"%{number}"
            number += 1
            continue
        count = taken[value.name] = taken.get(value.name, 0) + 1
        suffix = f"#{count}" if count > 1 else ""
        names[value] = f"%{_quoted(value.name)}{suffix}"
    return names


# Longer texts are cut in a notebook; `print(graph)` has all of it.
_MOST_LINES = 200


def graph_html(graph: Graph) -> str:
    """Write a graph for a notebook: its ports, and its text folded away."""
    from html import escape

    from fusewire.errors import visible
    from fusewire.tables import Sheet

    sheet = Sheet("", "name", "type")
    for value in graph.inputs:
        sheet.add("input", value.name or "", str(value.type))
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        sheet.add("output", name, str(value.type))
    lines = print_graph(graph).splitlines()
    left = len(lines) - _MOST_LINES
    text = "\n".join(lines[:_MOST_LINES] + ([f"... and {left} more lines"] if left > 0 else []))
    title = f"Graph <b>{escape(visible(graph.name))}</b>: {len(graph.nodes)} nodes"
    folded = f"<details><summary>text</summary><pre>{escape(visible(text))}</pre></details>"
    return f"<div><p>{title}</p>{sheet.to_html()}{folded}</div>"
