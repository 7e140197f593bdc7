"""All ops by name. To add a family, list its module here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from fusewire.errors import UnknownOpError, VerifyError
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import Type, type_symbols
from fusewire.ir.verify import mentioned, verify_graph
from fusewire.ops.declare import Family, Op, Trait
from fusewire.ops.outside import OUTSIDE

FAMILIES = (
    "elementwise", "logic", "conversion", "reduction", "cumulative", "linalg", "random", "draws",
    "contraction", "equation", "convolution", "patches", "pooling", "quantization", "quantized",
    "fourier", "spectrum", "sparse",
    "movement", "slicing", "creation", "indexing", "scatter", "layout", "shape", "dynamic",
    "sorting", "statistics", "resampling", "image", "detection",
    "activation", "normalization", "channels", "transformer", "loss", "recurrent",
    "control", "bundle", "container", "strings",
)  # fmt: skip


@cache
def families() -> dict[str, Family]:
    """Import every family module."""
    return {name: import_module(f"fusewire.ops.{name}").FAMILY for name in FAMILIES}


@cache
def all_ops() -> dict[str, Op[Any]]:
    """Map names to ops of the tree, in the order of families."""
    table: dict[str, Op[Any]] = {}
    for family in families().values():
        repeated = table.keys() & family.ops.keys()
        assert not repeated, f"declared in two families: {sorted(repeated)}"
        table.update(family.ops)
    return table


def known_ops() -> dict[str, Op[Any]]:
    """Map names to all ops, those of installed packages and of this program after ours."""
    return {**all_ops(), **OUTSIDE.all()}


def get_op(name: str) -> Op[Any]:
    """Find an op; UnknownOpError names those that are spelled like it."""
    # Only names of ops outside the tree have a namespace.
    return OUTSIDE.get(name) if "." in name else _own_op(name)


@cache
def _own_op(name: str) -> Op[Any]:
    # From behind, importing no more than it takes: what a plan that is recalled leaves to the host
    # is mostly control flow and checks.
    for family in reversed(FAMILIES):
        op = import_module(f"fusewire.ops.{family}").FAMILY.ops.get(name)
        if op is not None:
            return op  # type: ignore[no-any-return] # of a Family
    close = difflib.get_close_matches(name, all_ops(), 5)
    hint = f"Did you mean {', '.join(close)}?" if close else "`fusewire ops` lists all."
    raise UnknownOpError(f"There is no op {name!r}. {hint}")


def infer_node(node: Node) -> Sequence[Type]:
    """Apply the type rule of a node's op."""
    return get_op(node.op).infer([None if v is None else v.type for v in node.inputs], node.attrs)


def untold(node: Node) -> set[Symbol]:
    """Find sizes that only a run can tell and that a node names, though nothing it uses tells them.

    Such a node might run before the one that tells the size, or without it.
    """
    named = {s for s in mentioned(node) if s.unbacked}
    # In the types of sequences a size that differs from element to element is no size at all.
    if not named or get_op(node.op).traits & {Trait.UNBACKED, Trait.HOST}:
        return set()
    return named - {s for v in node.operands for s in type_symbols(v.type)}


def size_makers(graph: Graph) -> dict[Symbol, Node]:
    """Map sizes that only a run can tell to the nodes that tell them: the first that may."""
    makers: dict[Symbol, Node] = {}
    for node in graph.nodes:
        named = {s for type_ in node.types for s in type_symbols(type_) if s.unbacked}
        if not named or not get_op(node.op).traits & {Trait.UNBACKED, Trait.HOST}:
            continue
        for symbol in named - {s for v in node.operands for s in type_symbols(v.type)}:
            makers.setdefault(symbol, node)
    return makers


def nodes_by_sizes(graph: Graph, makers: Mapping[Symbol, Node]) -> Sequence[Node]:
    """List the nodes of a graph, each also after those that tell the sizes that it names.

    No operand may lead there: parts of a composite name sizes of operands that other parts take.
    """
    if not makers:
        return graph.nodes
    before: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        made = [value.node for value in node.operands if value.node is not None]
        told = [makers[symbol] for symbol in mentioned(node) if symbol in makers]
        before[node] = [maker for maker in (*made, *told) if maker is not node]
    ordered: dict[Node, None] = {}
    begun: set[Node] = set()
    waiting = [*reversed(graph.nodes)]
    while waiting:
        node = waiting.pop()
        if node in begun:
            ordered.setdefault(node)
            continue
        begun.add(node)
        waiting += [node, *(maker for maker in reversed(before[node]) if maker not in begun)]
    return tuple(ordered)


def verify(graph: Graph) -> None:
    """Check every invariant of a graph, types included; VerifyError names the broken one."""
    verify_graph(graph, infer_node)
    for node in graph.nodes:
        if names := ", ".join(sorted(s.key for s in untold(node))):
            told = "no operand has it: take the size as an operand, as the dynamic ops do"
            raise VerifyError("sizes-told", f"{node!r} names {names}, and {told}")
