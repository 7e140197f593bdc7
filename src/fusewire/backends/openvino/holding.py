"""How many tensors hold each value (pairs for wide dtypes), and what is refused because of it.

Must never import the engine: a claim and the lowering of what was claimed both read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from fusewire.backends.openvino.storage import (
    FLOATS,
    LONG,
    MOVED_ONLY,
    NARROWED,
    SHORT,
    STORAGE,
    Storage,
)
from fusewire.dtypes import DType, bool_, complex64, uint32
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import MOST
from fusewire.ops.table import get_op
from fusewire.rewrite.narrowing import Narrowing

Mode = Literal["plain", "parts", "complex", "wide"]


class Row(Protocol):
    """What a claim needs of a row of the lowering table."""

    @property
    def takes(self) -> str: ...
    @property
    def complex(self) -> object | None: ...
    @property
    def wide(self) -> object | None: ...


def index_operands(node: Node) -> list[tuple[Value | None, bool]]:
    """List the inputs of a node, and whether each is an index or a shape."""
    op = get_op(node.op)
    names = (*op.parameters[0], *[""] * len(node.inputs))
    # The ends of a range are what its elements are made of.
    told = () if node.op == "range" else op.index_operands
    pairs = zip(names, node.inputs, strict=False)
    return [(value, name in told) for name, value in pairs]


def data_operands(node: Node) -> list[Value]:
    """List the operands whose elements a node computes with or moves."""
    found = index_operands(node)
    return [value for value, is_index in found if value is not None and not is_index]


def moves(node: Node) -> bool:
    """Tell whether a node only moves elements of its data operands, bit for bit."""
    return get_op(node.op).is_(Trait.MOVEMENT) or node.op == "where"


class Holding:
    """How the values of a graph, and of the bodies in it, are held.

    64-bit integers are narrowed where they are known to fit; with ``guarded``, also where they
    enter the graph. What the executable must check for that is in ``narrowing``.
    """

    def __init__(self, graph: Graph, guarded: bool = False) -> None:
        self.graph = graph
        self.narrowing = Narrowing(graph, guarded)

    def is_narrow(self, value: Value) -> bool:
        """Tell whether a 64-bit integer is held in one int32."""
        return self.narrowing.is_narrow(value)

    def storage(self, value: Value) -> Storage:
        """Tell how a value is held."""
        of = value.tensor.dtype
        return NARROWED if of in LONG and self.is_narrow(value) else STORAGE[of]

    def mode(self, node: Node) -> Mode:
        """Tell how a node is lowered: as it is, piece by piece, or by a function for pairs."""
        if moves(node):
            return "parts" if any(self.storage(v).parts > 1 for v in node.outputs) else "plain"
        values = [*data_operands(node), *node.outputs]
        if any(v.tensor.dtype is complex64 for v in values):
            return "complex"
        return "wide" if any(self.storage(v).parts > 1 for v in values) else "plain"

    def refuses(self, node: Node, row: Row) -> str | None:
        """Say why the dtypes of a node cannot be computed with."""
        for value in (*node.operands, *node.outputs):
            if not isinstance(value.type, TensorType) or value.type.dtype not in STORAGE:
                return f"OpenVINO has no tensor of {value.type}."
            if any(isinstance(dim, int) and dim > MOST for dim in value.type.shape):
                return f"OpenVINO counts sizes in 32 bits, and {value.type} has a larger one."
        if moves(node) or get_op(node.op).is_(Trait.CONTROL):
            return None
        for value in data_operands(node) or node.outputs:
            found = self._refuses_dtype(node, value.tensor.dtype, row)
            if found is not None:
                return found
        mode = self.mode(node)
        if mode == "wide" and row.wide is None:
            return (
                f"OpenVINO keeps 64-bit integers in 32 bits, and {node.op} may need more here. "
                "Cast to int32, or run it elsewhere."
            )
        if mode == "complex" and row.complex is None:
            return f"OpenVINO has no {node.op} of complex numbers."
        return None

    def _refuses_dtype(self, node: Node, of: DType, row: Row) -> str | None:
        if of is complex64 or _letter(of) in row.takes:
            return None
        if of in MOVED_ONLY:
            return f"OpenVINO computes in float32 and int32, so it can move {of} and no more."
        return f"{node.op} of {of} is not what OpenVINO's would compute."


def _letter(of: DType) -> str:
    kinds: Mapping[str, bool] = {
        "f": of in FLOATS,
        "i": of in SHORT | LONG,
        "u": of is uint32,
        "b": of is bool_,
        "o": of in MOVED_ONLY,
    }
    return next((letter for letter, holds in kinds.items() if holds), "-")
