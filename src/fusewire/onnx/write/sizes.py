"""Sizes at run time: read off the shapes of values, and computed from one another.

A size is a list of one int64, because shapes are lists joined from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fusewire.dtypes import bool_, int64
from fusewire.errors import FormatError
from fusewire.ir.dims import Apply, Dim, Shape, Sym, Symbol, lone_symbol
from fusewire.ops.elementwise import floor_divide, maximum, minimum

if TYPE_CHECKING:
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref


_OPS = {"floordiv": floor_divide, "max": maximum, "min": minimum}


class Sizes:
    """The sizes that one graph of the model can tell."""

    def __init__(self, emitter: Emitter) -> None:
        self._emit = emitter
        self._sources: dict[Sym, tuple[Ref, int]] = {}
        self._found: dict[Sym, Ref] = {}
        self.is_busy = False

    def learn(self, shape: Shape, ref: Ref) -> None:
        """Remember which dims a value tells."""
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                self._sources.setdefault(dim, (ref, axis))

    def shape(self, dims: Shape) -> Ref:
        """Give sizes as a list of int64; a constant where all are known."""
        with self._busy():
            return self._shape(dims)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        before, self.is_busy = self.is_busy, True
        try:
            yield
        finally:
            self.is_busy = before

    def _shape(self, dims: Shape) -> Ref:
        emit, parts = self._emit, []
        for _, group in itertools.groupby(dims, lambda dim: isinstance(dim, int)):
            listed = list(group)
            known = [dim for dim in listed if isinstance(dim, int)]
            parts += [emit.integers(*known)] if known else [self.size(dim) for dim in listed]
        return self.joined(parts) if parts else emit.integers()

    def joined(self, parts: Sequence[Ref]) -> Ref:
        """Give lists of sizes as one list; a constant where all are."""
        if len(parts) == 1:
            return parts[0]
        held = [self._emit.model.constants.get(part.name) for part in parts]
        if all(held):
            return self._emit.integers(*(n for c in held if c for n in c.array.tolist()))
        with self._busy():
            return self._emit("Concat", *parts, axis=0)

    def scalar(self, dim: Dim) -> Ref:
        """Give a size as an int64 scalar."""
        if isinstance(dim, int):
            return self._emit.constant(np.int64(dim))
        with self._busy():
            return self._emit("Squeeze", self.size(dim), self._emit.integers(0))

    def size(self, dim: Dim) -> Ref:
        """Give a size as a list of one int64."""
        if isinstance(dim, int):
            return self._emit.integers(dim)
        found = self._found.get(dim)
        if found is None:
            with self._busy():
                found = self._found[dim] = self._read(dim) or self._computed(dim)
        return found

    def _read(self, dim: Sym) -> Ref | None:
        source = self._sources.get(dim)
        if source is None:
            return None
        value, axis = source
        return self._emit("Shape", value, dtype=int64, start=axis, end=axis + 1)

    def _computed(self, dim: Sym) -> Ref:
        alone = lone_symbol(dim)
        if alone is not None:
            return self._solved(alone) or self._outside(dim)
        emit = self._emit
        total: Ref | None = None
        for monomial, factor in dim.terms:
            term = None if factor == 1 and monomial else emit.integers(factor)
            for atom, power in monomial:
                is_symbol = isinstance(atom, Symbol)
                size = self.size(Sym({((atom, 1),): 1})) if is_symbol else self._applied(atom)
                for _ in range(power):
                    term = size if term is None else emit("Mul", term, size)
            assert term is not None
            total = term if total is None else emit("Add", total, term)
        assert total is not None
        return total

    def _solved(self, symbol: Symbol) -> Ref | None:
        """Find a symbol in a dim like 2*n+1."""
        for known in self._sources:
            (first, factor), *rest = known.terms
            if first == ((symbol, 1),) and all(monomial == () for monomial, _ in rest):
                more = sum(term for _, term in rest)
                moved = self._emit("Sub", self.size(known), self._emit.integers(more))
                return self._emit("Div", moved, self._emit.integers(factor))
        return None

    def _outside(self, dim: Sym) -> Ref:
        if self._emit.outer is not None:
            return self._emit.outer.size(dim)
        if self._emit.model.outside is not None:
            return self._emit.model.outside(dim)
        if self._emit.is_trial:
            return self._emit.integers(1)
        raise FormatError(
            f"The size {dim} is needed at run time, and no input or earlier node has it as a dim."
        )

    def _applied(self, atom: Symbol | Apply) -> Ref:
        assert isinstance(atom, Apply)
        emit = self._emit
        left, right = self.size(atom.left), self.size(atom.right)
        if emit.model.call is not None:
            # Said so that a reader reads on in sizes: an op by its name, a broadcast by doing it.
            if atom.function in _OPS:
                return emit.op(_OPS[atom.function], left, right)
            nothing = emit.constant(np.array(False))
            rows = [emit("Expand", nothing, n) for n in (left, right)]
            return emit("Shape", emit("Or", *rows), dtype=int64)
        if atom.function in ("max", "min"):
            # Compared, because engines get Max and Min of int64 wrong.
            sides = (right, left) if atom.function == "max" else (left, right)
            is_less = emit("Less", left, right, dtype=bool_)
            return emit("Where", is_less, *sides, of=int64)
        one, zero = emit.integers(1), emit.integers(0)
        if atom.function == "broadcast":
            is_one = emit("Equal", left, one, dtype=bool_)
            return emit("Where", is_one, right, left, of=int64)
        # Rounded down, and 0 for a division by 0.
        none = emit("Equal", right, zero, dtype=bool_)
        divisor = emit("Where", none, one, right, of=int64)
        whole = emit("Sub", left, emit("Mod", left, divisor))
        return emit("Where", none, zero, emit("Div", whole, divisor), of=int64)
