"""The table of how each op computes an element, and the reasons for what is not in it."""

from __future__ import annotations

from functools import cache

from fusewire.errors import RefusedError
from fusewire.fusion.origins import expand_with_origins
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType, type_symbols
from fusewire.kernel.lower import (
    contraction,
    elementwise,
    fourier,
    gather,
    movement,
    recurrent,
    reduction,
    resampling,
    serial,
    window,
)
from fusewire.kernel.lower.body import Element
from fusewire.kernel.lower.lowering import Whole
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.rewrite.expand import Refuses

_FACTORED = "it is a factorisation, whose steps depend on one another; a library has it"
_SIZED = "the size of what it gives is known only when it has run"
# Primitives that no kernel of ours computes.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("det", "inverse", "solve", "qr", "svd", "eigh"), _FACTORED),
    **dict.fromkeys(("triangular_solve", "cholesky"), _FACTORED),
    "grid_sample": "its taps depend on the elements of the grid, which has no kernel yet",
    "roi_align": "how many samples it takes depends on the boxes",
    "check": "a kernel cannot raise what it says",
    "cond": "the host takes the branch",
    "while": "the host runs the loop, whose end the data tells",
    "loop": "the host runs the loop, whose end the data tells",
}


@cache
def elements() -> dict[str, Element]:
    """All ops whose element can be computed by itself."""
    tables = (movement, reduction, contraction, window, gather, resampling, fourier)
    found = elementwise.elements()
    for table in tables:
        found |= table.ELEMENTS
    return found


@cache
def wholes() -> dict[str, Whole]:
    """All ops that have kernels of their own."""
    return {**serial.WHOLES, **recurrent.WHOLES}


def element_of(op: str) -> Element:
    """Find how an op's element is computed."""
    found = elements().get(op)
    if found is None:
        raise RefusedError(f"No kernel computes an element of {op}: {refused_op(op)}.")
    return found


def refused_op(op: str) -> str | None:
    """Answer None for an op that has a place in the table, else why it has none."""
    if op in elements() or op in wholes():
        return None
    declared = get_op(op)
    if declared.is_composite and declared.kept_whole is None:
        return "it is a composite, and its expansion has kernels"
    if declared.is_(Trait.HOST):
        return "it is about sequences, optionals or strings, which devices do not have"
    if declared.is_(Trait.UNBACKED) and op not in REFUSED:
        return _SIZED
    return REFUSED.get(op, "it has no kernel yet")


def refusal(node: Node) -> str | None:
    """Answer None for a node that kernels compute, else why they do not."""
    reason = refused_op(node.op)
    if reason is not None:
        return f"{node.op} has no kernel: {reason}."
    return _type_refusal(node) or _by_node(node)


def _type_refusal(node: Node) -> str | None:
    for value in (*node.operands, *node.outputs):
        type_ = value.type
        if not isinstance(type_, TensorType) or type_.dtype.kind == "string":
            return f"Kernels work on tensors of numbers, and {node.op} has {type_}."
        if any(symbol.unbacked for symbol in type_symbols(type_)):
            return f"{node.op} has {type_}: {_SIZED}."
        if not type_.is_static:
            return f"Kernels are made for one shape, and {node.op} has {type_}."
    return None


def expansion_refusal(node: Node, refuses: Refuses = refusal) -> str | None:
    """Answer None for a node that is taken, or all parts of which are; else why not.

    What is in the body of a scan is judged by its parts as well.
    """
    reason, op = refuses(node), get_op(node.op)
    has_parts = op.is_composite or op.decompose is not None or node.op == "scan"
    if reason is None or not has_parts:
        return reason
    if (types := _type_refusal(node)) is not None:
        return types
    parts = expand_with_origins(Graph(node.operands, node.outputs, [node]), refuses).graph.nodes
    return next(filter(None, map(refuses, parts)), None)


def _by_node(node: Node) -> str | None:
    if node.op == "resize" and node.inputs[1] is not None:
        return "Where resize reads depends on its roi, which only the run tells."
    if node.op == "scan":
        return recurrent.refusal(node, refusal)
    if node.op in serial.SORTS:
        return serial.too_long(node)
    if node.op in fourier.OPS:
        return fourier.too_long(node)
    return None
