"""Put a program into a trace: its graph becomes a part of the caller's.

So a function that calls programs can be compiled as one program: what one hands over to the next
is then a value of one graph, and one call of an engine may compute all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusewire.errors import TraceError
from fusewire.ir.builder import bind_symbols, constant
from fusewire.ir.dims import Dim, Symbol, lone_symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.operand import Traced, note_program

if TYPE_CHECKING:
    from fusewire.program.entry import Entry
    from fusewire.program.program import Program


def inlined(program: Program, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Trace a call of a program: its function if it has one, or else its graph."""
    note_program(program)
    source = program.origin and program.origin.source
    if callable(source):
        return source(*arguments, **named)
    bound = program.bound(arguments, named)
    for entry in reversed(program.all_entries()):
        leaves = entry.arguments.flatten(bound)
        values = [leaf.value if isinstance(leaf, Traced) else constant(leaf) for leaf in leaves]
        sizes = _sizes(entry, values)
        if sizes is not None:
            outputs = _copied(bind_symbols(entry.graph, sizes), values)
            traced = next(leaf for leaf in leaves if isinstance(leaf, Traced))
            return entry.results.restore([traced.wrap(value) for value in outputs])
    found = ", ".join(str(x.value.type) for x in bound if isinstance(x, Traced))
    signatures = "; ".join(program.signatures) or "none yet: it has not been called"
    raise TraceError(
        f"The program {program.name} was called with {found} while it was traced, and it has no "
        f"graph for that. Its signatures: {signatures}. Call it with such arrays before."
    )


def _sizes(entry: Entry, values: Sequence[Value]) -> dict[Symbol, Dim] | None:
    """Return the sizes of an entry's symbols for such values; None if they do not fit."""
    sizes: dict[Symbol, Dim] = {}
    for wanted, value in zip(entry.inputs, values, strict=True):
        if not isinstance(wanted.type, TensorType) or not isinstance(value.type, TensorType):
            return None
        if wanted.type.dtype is not value.type.dtype or wanted.type.rank != value.type.rank:
            return None
        for dim, size in zip(wanted.type.shape, value.type.shape, strict=True):
            symbol = lone_symbol(dim)
            if (sizes.setdefault(symbol, size) if symbol is not None else dim) != size:
                return None
    return sizes


def _copied(graph: Graph, operands: Sequence[Value]) -> list[Value]:
    """Return the outputs of a graph over other operands, in nodes that are all new.

    They have no source yet, so that the trace takes them for its own.
    """
    new: dict[Value, Value] = dict(zip(graph.inputs, operands, strict=True))
    for node in graph.nodes:
        copy = node.copy([None if v is None else new.get(v, v) for v in node.inputs])
        copy.source = None
        new |= zip(node.outputs, copy.outputs, strict=True)
    return [new.get(value, value) for value in graph.outputs]
