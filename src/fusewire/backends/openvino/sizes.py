"""Sizes that the run tells, computed by the engine's graph. Imports the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from openvino import opset16 as ops

from fusewire.backends.openvino.lowering.entry import Ov, concat, const, dim_of, select
from fusewire.backends.openvino.lowering.integers import floored
from fusewire.backends.openvino.memory import type_of
from fusewire.errors import DimError
from fusewire.ir.dims import Dim, Sym, Symbol, lone_symbol, symbols
from fusewire.ir.types import TensorType

_FUNCTIONS: dict[str, Callable[[Ov, Ov], Ov]] = {
    "floordiv": lambda a, b: floored(a, b)[0],
    "max": ops.maximum,
    "min": ops.minimum,
    # One of the two is 1, or they are equal.
    "broadcast": lambda a, b: select(ops.equal(a, const([1])), b, a),
}


@final
class Sizes:
    """What the symbols of a graph, or of a body, stand for.

    A body is a model of its own: sizes of the graph around it become parameters, which are
    ``captured``. What is inline is built in place, and sees those sizes as they are.
    """

    def __init__(self, outer: Sizes | None = None, inline: bool = False) -> None:
        self.outer = outer
        self.inline = inline
        self.captured: dict[Symbol, Ov] = {}
        self._where: dict[Symbol, tuple[Ov, int]] = {}
        self._known: dict[Dim, Ov] = {}

    def learn(self, type_: TensorType, x: Ov) -> None:
        """Remember where sizes can be read off a tensor."""
        for axis, dim in enumerate(type_.shape):
            alone = lone_symbol(dim)
            if alone is not None:
                self._where.setdefault(alone, (x, axis))

    def knows(self, dim: Dim) -> bool:
        """Tell whether a size can be computed here already."""
        return all(s in self._where or s in self.captured or not s.unbacked for s in symbols(dim))

    def size(self, dim: Dim) -> Ov:
        """Compute a size as a list of one int32."""
        if isinstance(dim, int):
            return const([max(min(dim, 2**31 - 1), -(2**31))])
        if dim not in self._known:
            self._known[dim] = self._computed(dim)
        return self._known[dim]

    def shape(self, dims: Sequence[Dim]) -> Ov:
        """Compute a shape as a list of int32."""
        if all(isinstance(dim, int) for dim in dims):
            return const(list(dims))
        return concat([self.size(dim) for dim in dims], 0)

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
                else:
                    found = _FUNCTIONS[atom.function](self.size(atom.left), self.size(atom.right))
                for _ in range(power):
                    term = ops.multiply(term, found)
            total = term if total is None else ops.add(total, term)
        return total

    def symbol(self, symbol: Symbol) -> Ov:
        """Compute the size that a symbol names, as a list of one int32."""
        if symbol in self._where:
            return dim_of(*self._where[symbol])
        if symbol in self.captured:
            return self.captured[symbol]
        if self.inline and self.outer is not None:
            return self.outer.symbol(symbol)
        if self.outer is None:
            raise DimError(f"The size {symbol.key} is told by no input of this region.")
        self.captured[symbol] = ops.parameter([1], type_of("i32"))
        return self.captured[symbol]
