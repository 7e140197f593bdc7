"""Translate a graph to nodes of the engine.

Imports the engine, so it is itself imported only when something is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.holding import Holding, index_operands
from fusewire.backends.openvino.lowering import LOWERINGS
from fusewire.backends.openvino.lowering.entry import (
    Ov,
    const,
    convert,
    number,
    port_of,
    rank_of,
    select,
    static_shape,
)
from fusewire.backends.openvino.lowering.floats import round_to_brain
from fusewire.backends.openvino.lowering.wide import saturated, widened
from fusewire.backends.openvino.memory import apart, constant_pieces, joined, parameter_of
from fusewire.backends.openvino.sizes import Sizes
from fusewire.backends.openvino.storage import LONG
from fusewire.dtypes import uint32
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

_SOURCES = ("Parameter", "Constant")


@final
class Scope:
    """One graph, or one body, being built."""

    def __init__(
        self, holding: Holding, exact: bool, outer: Scope | None = None, inline: bool = False
    ) -> None:
        """Unless ``exact``, nodes of the engine's own may lose NaN: see lowering/own."""
        self.holding = holding
        self.exact = exact
        self.parameters: list[Ov] = []
        self.kept: list[Array] = outer.kept if outer else []
        # Names for what is built, by node, for whoever looks for them in what the engine makes.
        self.labels: dict[Node, str] = {}
        self.sizes: Sizes = Sizes(outer.sizes if outer else None, inline)
        self.size, self.shape, self.scalar = self.sizes.size, self.sizes.shape, self.sizes.scalar
        self._values: dict[Value, tuple[Ov, ...]] = {}

    def run(self, graph: Graph) -> list[Ov]:
        """Build a graph and give its outputs as results hold them."""
        for value in graph.inputs:
            storage = self.holding.storage(value)
            made = parameter_of(value.tensor, storage.edge, storage.parts, value.name)
            self.parameters.append(made)
            self.bind(value, apart(convert(made, storage.inner), storage.parts))
        self.walk(graph)
        return [_made(self._result(value)) for value in graph.outputs]

    def _result(self, value: Value) -> Ov:
        storage, whole = self.holding.storage(value), joined(self.pieces(value))
        if storage.parts == 1 and value.tensor.dtype in LONG:
            return convert(whole, "i64")
        return convert(round_to_brain(whole) if storage.edge == "bf16" else whole, storage.edge)

    def inside(self, inline: bool = False) -> Scope:
        """Begin a body."""
        return Scope(self.holding, self.exact, self, inline)

    def accept(self, value: Value) -> list[Ov]:
        """Make a parameter of each piece of a body's input, and give them."""
        storage = self.holding.storage(value)
        made = [parameter_of(value.tensor, storage.inner) for _ in range(storage.parts)]
        self.parameters += made
        self.bind(value, tuple(made))
        return made

    def bind(self, value: Value, pieces: tuple[Ov, ...]) -> None:
        """Say what a value is, and learn the sizes that its shape tells."""
        self._values[value] = pieces
        self.sizes.learn(value.tensor, pieces[0])

    def walk(self, graph: Graph) -> None:
        """Build the nodes of a graph whose inputs are bound."""
        for node in graph.nodes:
            self._build(node)
            if node in self.labels:
                self._label(node)

    def _label(self, node: Node) -> None:
        """Give a name to all that was built for a node."""
        ends = {self.labels[node], *(self.labels[n] for n in self.labels)}
        waiting = [port_of(x).get_node() for value in node.outputs for x in self._values[value]]
        while waiting:
            built = waiting.pop()
            name = built.get_friendly_name()
            if name.partition("/")[0] in ends or built.get_type_name() in _SOURCES:
                continue
            built.set_friendly_name(f"{self.labels[node]}/{name}")
            waiting += [port.get_source_output().get_node() for port in built.inputs()]

    def pieces(self, value: Value) -> tuple[Ov, ...]:
        """Give the pieces of a value, made when asked for if it is a constant."""
        if value not in self._values:
            assert value.constant is not None, f"{value!r} is used before it is made"
            storage = self.holding.storage(value)
            self._values[value] = constant_pieces(value.constant, storage, self.kept)
        return self._values[value]

    def plain(self, value: Value) -> Ov:
        """Give a value as one tensor; 64-bit integers as the nearest int32."""
        pieces = self.pieces(value)
        if len(pieces) == 2 and value.tensor.dtype in LONG:
            return saturated((pieces[0], pieces[1]), value.tensor.dtype.is_signed)
        (piece,) = pieces
        return piece

    def index(self, value: Value) -> Ov:
        """Give an index operand as int32; uint32 beyond it as the largest."""
        found = convert(self.plain(value), "i32")
        if value.tensor.dtype is uint32:
            return select(ops.less(found, const(0)), const(2**31 - 1), found)
        return found

    def pair(self, value: Value) -> Any:
        """Give a 64-bit integer or complex number as two pieces, another value as it is."""
        pieces = self.pieces(value)
        if len(pieces) > 1:
            return pieces
        return widened(pieces[0]) if value.tensor.dtype in LONG else pieces[0]

    def shaped(self, value: Value, like: Value) -> tuple[Ov, ...]:
        """Give a value in the pieces that another is held in."""
        return self.fitted(like, self.pieces(value))

    def fitted(self, value: Value, found: Any) -> tuple[Ov, ...]:
        """Bring what a lowering gave to the pieces that the value is held in."""
        parts = self.holding.storage(value).parts
        given = found if isinstance(found, tuple) else (found,)
        if len(given) == parts:
            return given
        if parts == 2:
            return widened(given[0])
        return (saturated((given[0], given[1]), value.tensor.dtype.is_signed),)

    def nothing(self, value: Value) -> tuple[Ov, ...]:
        """Make a tensor without elements."""
        storage = self.holding.storage(value)
        piece = ops.broadcast(const(0, storage.inner), self.shape(value.tensor.shape))
        return (piece,) * storage.parts

    def _build(self, node: Node) -> None:
        for value, found in zip(node.outputs, self._lowered(node), strict=True):
            pieces = self.fitted(value, found)
            # Some nodes of the engine end the process when there is nothing to compute: a Gather
            # or Broadcast of static shape divides by the number of elements (2026.4.1).
            self.bind(value, tuple(_emptied(x) for x in pieces))

    def _lowered(self, node: Node) -> list[Any]:
        if all(value.tensor.is_static and value.tensor.size == 0 for value in node.outputs):
            return [self.nothing(value) for value in node.outputs]
        row, mode = LOWERINGS[node.op], self.holding.mode(node)
        if get_op(node.op).is_(Trait.CONTROL):
            return _several(row.lower(self, node))
        if mode == "parts":
            return self._moved(node, row.lower)
        if mode == "plain":
            own = None if self.exact or not row.may_lose(node) else row.own
            return _several((own or row.lower)(self, node, *self._operands(node, self.plain)))
        lower = row.complex if mode == "complex" else row.wide
        assert lower is not None, f"{node.op} was claimed without a way to lower it"
        return _several(lower(self, node, *self._operands(node, self.pair)))

    def _operands(self, node: Node, give: Callable[[Value], Any]) -> list[Any]:
        return [
            None if value is None else self.index(value) if is_index else give(value)
            for value, is_index in index_operands(node)
        ]

    def _moved(self, node: Node, lower: Callable[..., Any]) -> list[tuple[Ov, ...]]:
        """Move the pieces one by one; all of them the same way."""
        count = max(self.holding.storage(v).parts for v in node.outputs)
        given = self._operands(node, lambda v: self._cut(v, count))
        columns = []
        for i in range(count):
            own = [x[i] if isinstance(x, tuple) else x for x in given]
            columns.append(_several(lower(self, node, *own)))
        return [tuple(pieces) for pieces in zip(*columns, strict=True)]

    def _cut(self, value: Value, count: int) -> Any:
        """Give the pieces of what is moved; a condition has one and stays it."""
        if value.tensor.dtype.kind == "bool":
            return self.plain(value)
        return self.pair(value) if count == 2 else self.pieces(value)


def _emptied(x: Ov) -> Ov:
    """Replace what the engine knows to be empty by a constant."""
    shape = static_shape(x)
    return x if shape is None or 0 not in shape else ops.broadcast(number(0, x), const(shape))


def _made(x: Ov) -> Ov:
    """Have the engine make an output that is an input: it writes no output otherwise (2026.4.1)."""
    if port_of(x).get_node().get_type_name() != "Parameter":
        return x
    if rank_of(x):
        return ops.concat([x], 0)
    return ops.squeeze(ops.unsqueeze(x, const([0])), const([0]))


def _several(found: Any) -> list[Any]:
    """List the outputs that a lowering gave: one may come without a list."""
    return found if isinstance(found, list) else [found]
