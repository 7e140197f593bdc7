"""The sizes of one conversion: what PyTorch's symbols are, and which values tell them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from fusewire.frontends.torch.sizes import dim_from
from fusewire.ir.builder import constant
from fusewire.ir.dims import Apply, Dim, Monomial, Shape, Symbol, lone_symbol
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add, floor_divide, maximum, minimum, multiply
from fusewire.ops.logic import equal, where
from fusewire.ops.shape import dim_of as read_dim

_FUNCTIONS: dict[str, Callable[[Value, Value], Value]] = {
    "floordiv": floor_divide,
    "max": maximum,
    "min": minimum,
    "broadcast": lambda left, right: where(equal(left, 1), right, left),
}


class SizeScope:
    """Dims by the names of PyTorch's symbols, and values whose shapes tell them."""

    def __init__(self) -> None:
        self.known: dict[str, Dim] = {}
        self._sources: dict[Symbol, tuple[Value, int]] = {}

    def inner(self) -> SizeScope:
        """Make the scope of a body, whose own inputs tell its sizes."""
        scope = SizeScope()
        scope.known = self.known
        return scope

    def learn(self, fake: Any, value: Value) -> None:
        """Take over sizes that only a run can tell, from the value that tells them."""
        for size, dim in zip(fake.shape, value.tensor.shape, strict=False):
            expression = None if type(size) is int else size.node.expr
            if expression is not None and expression.is_Symbol:
                self.known.setdefault(expression.name, dim)

    def dim(self, size: Any) -> Dim:
        """Translate a size: an int, or one of PyTorch's symbolic ints."""
        return int(size) if type(size) is int else dim_from(size.node.expr, self.known)

    def shape(self, fake: Any) -> Shape:
        """Translate the shape of a tensor."""
        return tuple(self.dim(size) for size in fake.shape)

    def note(self, value: Value) -> None:
        """Record the sizes that a value's shape tells."""
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        for axis, dim in enumerate(shape):
            symbol = lone_symbol(dim)
            if symbol is not None:
                self._sources.setdefault(symbol, (value, axis))

    def measure(self, dim: Dim) -> Value:
        """Return a size as an int64 scalar of the graph."""
        if isinstance(dim, int):
            return constant(np.array(dim, np.int64))
        return reduce(add, [self._term(monomial, factor) for monomial, factor in dim.terms])

    def _term(self, monomial: Monomial, factor: int) -> Value:
        factors = [self._atom(atom) for atom, power in monomial for _ in range(power)]
        if factor != 1 or not factors:
            factors.append(constant(np.array(factor, np.int64)))
        return reduce(multiply, factors)

    def _atom(self, atom: Symbol | Apply) -> Value:
        if isinstance(atom, Symbol):
            return read_dim(*self._sources[atom])
        return _FUNCTIONS[atom.function](self.measure(atom.left), self.measure(atom.right))
