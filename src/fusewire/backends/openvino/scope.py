"""A graph as nodes of the engine: its values, its sizes, and the walk from one to the other.

Imports the engine, so it is itself imported only when something is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
from openvino import opset16 as ops

from fusewire.backends.openvino.holding import Holding, operands
from fusewire.backends.openvino.lowering import LOWERINGS
from fusewire.backends.openvino.lowering.entry import Ov, Pair, const, convert, dim_of
from fusewire.backends.openvino.lowering.wide import saturated, widened
from fusewire.backends.openvino.storage import LONG, Storage
from fusewire.dtypes import uint32
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, Sym, Symbol, lone_symbol
from fusewire.ir.graph import Array, Constant, Graph, Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

# Of this many bytes or more a constant is not copied into the engine.
SHARED_BYTES = 4096
_FUNCTIONS: dict[str, Callable[[Ov, Ov], Ov]] = {
    "max": ops.maximum,
    "min": ops.minimum,
    # One of the two is 1, or they are equal.
    "broadcast": lambda a, b: ops.select(ops.equal(a, const([1])), b, a),
}


class Scope:
    """One graph, or one body, being built.

    A body is a model of its own, and gets sizes of the graph around it as parameters; what is
    ``inline`` is built in place, and sees those sizes as they are.
    """

    def __init__(self, holding: Holding, outer: Scope | None = None, inline: bool = False) -> None:
        self.holding = holding
        self.outer = outer
        self.inline = inline
        self.parameters: list[Ov] = []
        # Sizes of the graph around a body, which the body gets as parameters.
        self.captured: dict[Symbol, Ov] = {}
        self.kept: list[Array] = outer.kept if outer else []
        self._values: dict[Value, tuple[Ov, ...]] = {}
        self._where: dict[Symbol, tuple[Ov, int]] = {}
        self._sizes: dict[Dim, Ov] = {}

    def enter(self, value: Value) -> None:
        """Make the parameter of an input and take it apart into its pieces."""
        storage = self.holding.storage(value)
        dims = [dim if isinstance(dim, int) else -1 for dim in value.tensor.shape]
        parts = [storage.parts] if storage.parts > 1 else []
        parameter = ops.parameter([*dims, *parts], type_of(storage.edge), name=value.name)
        self.parameters.append(parameter)
        self.bind(value, _apart(convert(parameter, storage.inner), storage))

    def inside(self, inline: bool = False) -> Scope:
        """Begin a body."""
        return Scope(self.holding, self, inline)

    def accept(self, value: Value) -> list[Ov]:
        """Make a parameter of each piece of a body's input, and give them."""
        storage = self.holding.storage(value)
        dims = [dim if isinstance(dim, int) else -1 for dim in value.tensor.shape]
        made = [ops.parameter(dims, type_of(storage.inner)) for _ in range(storage.parts)]
        self.parameters += made
        self.bind(value, tuple(made))
        return made

    def shaped(self, value: Value, like: Value) -> tuple[Ov, ...]:
        """Give a value in the pieces that another is held in."""
        return self.fitted(like, self.pieces(value))

    def bind(self, value: Value, pieces: tuple[Ov, ...]) -> None:
        """Say what a value is, and learn the sizes that its shape tells."""
        self._values[value] = pieces
        for axis, dim in enumerate(value.tensor.shape):
            alone = lone_symbol(dim)
            if alone is not None:
                self._where.setdefault(alone, (pieces[0], axis))

    def leave(self, value: Value) -> Ov:
        """Put a value together as a result holds it."""
        storage = self.holding.storage(value)
        joined = _joined(self.pieces(value), storage)
        if storage.parts == 1 and value.tensor.dtype in LONG:
            return convert(joined, "i64")
        return convert(joined, storage.edge)

    def pieces(self, value: Value) -> tuple[Ov, ...]:
        """Give the pieces of a value, made when asked for if it is a constant."""
        if value not in self._values:
            assert value.constant is not None, f"{value!r} is used before it is made"
            self._values[value] = self._constant(value.constant, self.holding.storage(value))
        return self._values[value]

    def _constant(self, constant: Constant, storage: Storage) -> tuple[Ov, ...]:
        array = constant.array
        if constant.type.dtype in LONG and storage.parts == 1:
            array = np.asarray(np.clip(array, -(2**31), 2**31 - 1)).astype(np.int32)
        if storage.parts > 1:
            cut = np.ascontiguousarray(array).reshape(-1).view(storage.carrier)
            whole = cut.reshape(*constant.type.shape, storage.parts)  # type: ignore[arg-type] # static
            return tuple(ops.constant(whole[..., i].copy()) for i in range(storage.parts))
        if constant.type.dtype.bits < 8 and constant.type.dtype.is_integer:
            array = array.astype(storage.carrier)
        else:
            array = array.view(storage.carrier)
        # The engine reads this memory for as long as it runs, and keeps no hold of it.
        self.kept.append(array)
        tensor = openvino.Tensor(_writable(array), list(array.shape), type_of(storage.edge))
        made = ops.constant(tensor, shared_memory=array.nbytes >= SHARED_BYTES)
        return (convert(made, storage.inner),)

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
            return ops.select(ops.less(found, const(0)), const(2**31 - 1), found)
        return found

    def pair(self, value: Value) -> Any:
        """Give a 64-bit integer or complex number as two pieces, another value as it is."""
        pieces = self.pieces(value)
        if len(pieces) > 1:
            return pieces
        return widened(pieces[0]) if value.tensor.dtype in LONG else pieces[0]

    def size(self, dim: Dim) -> Ov:
        """Compute a size as a list of one int32."""
        if isinstance(dim, int):
            return const([max(min(dim, 2**31 - 1), -(2**31))])
        if dim not in self._sizes:
            self._sizes[dim] = self._computed(dim)
        return self._sizes[dim]

    def shape(self, dims: Sequence[Dim]) -> Ov:
        """Compute a shape as a list of int32."""
        if all(isinstance(dim, int) for dim in dims):
            return const(list(dims))
        return ops.concat([self.size(dim) for dim in dims], 0)

    def scalar(self, dim: Dim) -> Ov:
        """Compute a size as a scalar."""
        return const(dim) if isinstance(dim, int) else ops.squeeze(self.size(dim), const([0]))

    def _computed(self, dim: Sym) -> Ov:
        total: Ov | None = None
        for monomial, factor in dim.terms:
            term = const([factor])
            for atom, power in monomial:
                if isinstance(atom, Symbol):
                    found = self.symbol(atom)
                elif atom.function == "floordiv":
                    found = _floordiv(self.size(atom.left), self.size(atom.right))
                else:
                    found = _FUNCTIONS[atom.function](self.size(atom.left), self.size(atom.right))
                for _ in range(power):
                    term = ops.multiply(term, found)
            total = term if total is None else ops.add(total, term)
        return total

    def symbol(self, symbol: Symbol) -> Ov:
        """Compute the size that a symbol names."""
        if symbol in self._where:
            return dim_of(*self._where[symbol])
        if symbol in self.captured:
            return self.captured[symbol]
        if self.inline and self.outer is not None:
            return self.outer.symbol(symbol)
        if self.outer is None:
            raise DimError(f"The size {symbol.key} is told by no input of this region.")
        parameter = ops.parameter([1], type_of("i32"))
        self.captured[symbol] = parameter
        return parameter

    def run(self, graph: Graph) -> list[Ov]:
        """Build a graph and give its outputs as results hold them."""
        for value in graph.inputs:
            self.enter(value)
        self.walk(graph)
        return [self.leave(value) for value in graph.outputs]

    def walk(self, graph: Graph) -> None:
        """Build the nodes of a graph whose inputs are bound."""
        for node in graph.nodes:
            self.node(node)

    def node(self, node: Node) -> None:
        """Build one node."""
        if all(value.tensor.is_static and value.tensor.size == 0 for value in node.outputs):
            # Some nodes of the engine end the process when there is nothing to compute: a Gather
            # of static shape divides by the number of its elements (2026.4.1).
            for value in node.outputs:
                self.bind(value, self.nothing(value))
            return
        row = LOWERINGS[node.op]
        mode = self.holding.mode(node)
        if get_op(node.op).is_(Trait.CONTROL):
            made = row.lower(self, node)
        elif mode == "parts":
            made = self._moved(node, row.lower)
        elif mode == "plain":
            made = _several(row.lower(self, node, *self._operands(node, self.plain)))
        else:
            lower = row.complex if mode == "complex" else row.wide
            assert lower is not None, f"{node.op} was claimed without a way to lower it"
            made = _several(lower(self, node, *self._operands(node, self.pair)))
        for value, found in zip(node.outputs, made, strict=True):
            self.bind(value, self.fitted(value, found))

    def nothing(self, value: Value) -> tuple[Ov, ...]:
        """Make a tensor without elements."""
        storage = self.holding.storage(value)
        piece = ops.broadcast(const(0, storage.inner), self.shape(value.tensor.shape))
        return (piece,) * storage.parts

    def _operands(self, node: Node, give: Callable[[Value], Any]) -> list[Any]:
        are_indices = dict(operands(node))
        given: list[Any] = []
        for value in node.inputs:
            if value is None:
                given.append(None)
            else:
                given.append(self.index(value) if are_indices[value] else give(value))
        return given

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

    def fitted(self, value: Value, found: Any) -> tuple[Ov, ...]:
        """Bring what a lowering gave to the pieces that the value is held in."""
        parts = self.holding.storage(value).parts
        given = found if isinstance(found, tuple) else (found,)
        if len(given) == parts:
            return given
        if parts == 2:
            return widened(given[0])
        return (saturated((given[0], given[1]), value.tensor.dtype.is_signed),)


def _several(found: Any) -> list[Any]:
    """List the outputs that a lowering gave: one may come without a list."""
    return found if isinstance(found, list) else [found]


def _floordiv(left: Ov, right: Ov) -> Ov:
    """Divide sizes, rounding down; by 0 gives 0."""
    from fusewire.backends.openvino.lowering.integers import floored

    return floored(left, right)[0]


def type_of(name: str) -> Any:
    return getattr(openvino.Type, name)


def _apart(x: Ov, storage: Storage) -> tuple[Ov, ...]:
    if storage.parts == 1:
        return (x,)
    pieces = ops.split(x, const(-1), storage.parts).outputs()
    return tuple(ops.squeeze(piece, const([-1])) for piece in pieces)


def _joined(pieces: Pair | tuple[Ov, ...], storage: Storage) -> Ov:
    if storage.parts == 1:
        return pieces[0]
    return ops.concat([ops.unsqueeze(piece, const(-1)) for piece in pieces], -1)


class _Shown:
    """Memory of an array, shown as writable: the engine insists, and never writes constants."""

    def __init__(self, array: Array) -> None:
        self.array = array
        pointer, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else np.asarray(_Shown(array))

