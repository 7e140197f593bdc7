"""Sizes that the run determines, computed in the engine's graph. Imports the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import Ov, concat, const, convert, dim_of, is_same
from fusewire.backends.openvino.lowering.integers import floored
from fusewire.backends.openvino.memory import type_of
from fusewire.errors import DimError
from fusewire.ir.dims import Apply, Atom, Dim, Sym, Symbol, lone_symbol, symbols
from fusewire.ir.types import TensorType


def _broadcast(a: Ov, b: Ov) -> Ov:
    """Give the other if one is 1; otherwise they are equal."""
    other = ops.multiply(convert(is_same(a, const([1])), "i32"), ops.subtract(b, const([1])))
    return ops.add(a, other)


_FUNCTIONS: dict[str, Callable[[Ov, Ov], Ov]] = {
    "floordiv": lambda a, b: floored(a, b)[0],
    "max": ops.maximum,
    "min": ops.minimum,
    "broadcast": _broadcast,
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
        self._seen: dict[Sym | Atom, tuple[Ov, int]] = {}
        self._known: dict[Dim, Ov] = {}

    def learn(self, type_: TensorType, x: Ov) -> None:
        """Remember where sizes can be read off a tensor.

        A symbol where it is first met; a size made of them, which takes many nodes to compute,
        where it was last: an earlier one may be fused into what uses it.
        """
        for axis, dim in enumerate(type_.shape):
            alone = lone_symbol(dim)
            if alone is not None:
                self._where.setdefault(alone, (x, axis))
            elif isinstance(dim, Sym):
                self._seen[dim] = (x, axis)
                ((monomial, factor), *more) = dim.terms
                if not more and factor == 1 and [power for _, power in monomial] == [1]:
                    self._seen[monomial[0][0]] = (x, axis)

    def knows(self, dim: Dim) -> bool:
        """Tell whether a size can be computed here already."""
        return all(s in self._where or s in self.captured or not s.unbacked for s in symbols(dim))

    def size(self, dim: Dim) -> Ov:
        """Compute a size as a list of one int32."""
        if isinstance(dim, int):
            return const([max(min(dim, 2**31 - 1), -(2**31))])
        if dim not in self._known:
            seen = self._seen.get(dim)
            self._known[dim] = self._computed(dim) if seen is None else dim_of(*seen)
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
                found = self.symbol(atom) if isinstance(atom, Symbol) else self._applied(atom)
                for _ in range(power):
                    term = ops.multiply(term, found)
            total = term if total is None else ops.add(total, term)
        return total

    def _applied(self, atom: Apply) -> Ov:
        if atom in self._seen:
            return dim_of(*self._seen[atom])
        left, by = self.size(atom.left), atom.right
        if atom.function == "floordiv" and isinstance(by, int) and by.bit_count() == 1:
            return ops.bitwise_right_shift(left, const([by.bit_length() - 1]))
        return _FUNCTIONS[atom.function](left, self.size(by))

    def symbol(self, symbol: Symbol) -> Ov:
        """Compute the size that a symbol names, as a list of one int32."""
        if symbol in self._where:
            return dim_of(*self._where[symbol])
        if symbol in self.captured:
            return self.captured[symbol]
        if self.inline and self.outer is not None:
            return self.outer.symbol(symbol)
        if self.outer is None:
            raise DimError(f"No input of this region determines the size {symbol.key}.")
        self.captured[symbol] = ops.parameter([1], type_of("i32"))
        return self.captured[symbol]
