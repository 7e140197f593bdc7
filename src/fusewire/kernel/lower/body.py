"""Write the body of one kernel, each statement as far out as its operands allow.

Elements are asked for: ``element(value, index)`` emits what computes that element and gives its
name. What does not depend on a loop is emitted before it, and what was computed is not computed
again, so a sum over a row that every element of the row needs is one stage before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fusewire.dtypes import DType, bool_, float32, int32
from fusewire.ir.graph import Array, Attr, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import (
    Bound,
    BufferLoad,
    Combine,
    Compute,
    Fold,
    Guard,
    Holds,
    KernelBuffer,
    Literal,
    Number,
    Place,
    Scalar,
    Statement,
)
from fusewire.kernel.index import Axis, Held, Index, at, atoms_of, flatten, unflatten
from fusewire.kernel.verify import range_under
from fusewire.ops.table import get_op

Indices = tuple[Index, ...]


@dataclass(frozen=True)
class Located:
    """Where a value is: a buffer, or the part of it at an index, perhaps in another shape.

    With ``rows`` it is a part of what is there in that shape.
    """

    buffer: KernelBuffer
    part: Indices = ()
    shape: tuple[int, ...] | None = None
    rows: Indices = ()

    def at(self, index: Indices) -> Indices:
        """Give the index in the buffer of an element of the value."""
        index = (*self.rows, *index)
        if self.shape is not None:
            inner = self.buffer.shape[len(self.part) :]
            index = unflatten(flatten(index, self.shape), inner)
        return (*self.part, *index)


class StoredValues(Protocol):
    """Where values are that a kernel does not compute."""

    def find(self, value: Value) -> Located | None:
        """Tell where a value is that is stored before the kernel runs."""
        ...

    def table(self, array: Array) -> KernelBuffer:
        """Give a buffer with these elements."""
        ...


@dataclass(eq=False)
class Scope:
    """Statements under some loops; ``known`` has what they compute, by what it is."""

    outer: Scope | None
    axes: tuple[Axis, ...]
    statements: list[Statement] = field(default_factory=list)
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return 0 if self.outer is None else self.outer.depth + 1


def never(bound: Bound) -> bool:
    """Tell whether a bound holds nowhere."""
    low, high = bound.index.range
    return high < bound.low or low >= bound.high


def within(bound: Bound, guard: Guard) -> bool:
    """Tell whether a bound holds wherever a guard does."""
    low, high = range_under(bound.index, guard)
    return low >= bound.low and high < bound.high


def simplified(guard: Iterable[Bound]) -> Guard:
    """Drop bounds that always hold, and repeats."""
    return tuple(dict.fromkeys(bound for bound in guard if not within(bound, ())))


# Computes the element of a value at an index; where the guard fails it may be any number.
Element = Callable[["Body", Value, Indices, Guard], str]


class Body:
    """The body of a kernel while it is written."""

    def __init__(
        self, axes: Iterable[Axis], memory: StoredValues, find: Callable[[str], Element]
    ) -> None:
        self.current = self.root = Scope(None, tuple(axes))
        self.memory = memory
        self.loaded: dict[str, KernelBuffer] = {}
        # The axes that each fold depends on.
        self.folds: list[frozenset[Axis]] = []
        # Values whose rows are kept while a point is computed, and the index of that point.
        self.locals: dict[Value, KernelBuffer] = {}
        self.row: Indices = ()
        self._find = find
        self._home: dict[str, Scope] = {}
        self._axis_home = dict.fromkeys(self.root.axes, self.root)
        self._dtype: dict[str, DType] = {}
        self._axes: dict[str, frozenset[Axis]] = {}
        self._made: dict[str, Scalar] = {}
        self._count = 0

    # -- elements

    def element(self, value: Value, index: Indices, guard: Guard = ()) -> str:
        """Emit what computes an element, once."""
        key = (value, index, guard)
        if (name := self._known(key)) is not None:
            return str(name)
        name = self._element(value, index, guard)
        self._home[name].known[key] = name
        return name

    def _element(self, value: Value, index: Indices, guard: Guard) -> str:
        if value.tensor.size == 0:
            # Never read: no point has such an element.
            return self.literal(0, value.tensor.dtype)
        own = self.locals.get(value)
        if own is not None and index[: len(self.row)] == self.row:
            return self.load(own, index[len(self.row) :], guard)
        stored = self.memory.find(value)
        if stored is not None:
            return self.load(stored.buffer, stored.at(index), guard)
        if value.constant is not None:
            return self.literal(value.constant.array.reshape(-1)[0], value.tensor.dtype)
        assert value.node is not None, f"{value!r} is in no buffer"
        return self._find(value.node.op)(self, value, index, guard)

    def dtype(self, name: str) -> DType:
        """Tell the dtype of a scalar."""
        return self._dtype[name]

    def load(self, buffer: KernelBuffer, index: Indices, guard: Guard = ()) -> str:
        """Read a buffer; a guard that the extents of axes make needless is dropped."""
        if 0 in buffer.shape or any(never(bound) for bound in guard):
            return self.literal(0, buffer.dtype)
        bounds = [Bound(part, 0, dim) for part, dim in zip(index, buffer.shape, strict=True)]
        if not (loose := simplified(bounds)):
            guard = ()
        elif not guard:
            raise AssertionError(f"[{', '.join(map(str, index))}] may lie outside of {buffer}")
        else:
            # Where the guard holds these do too, which may take more than ranges to see.
            guard = (*guard, *(b for b in loose if b not in guard and not within(b, guard)))
        self.loaded[buffer.name] = buffer
        needs = (*index, *(bound.index for bound in guard))
        key = (BufferLoad, buffer.name, index, guard)
        make = lambda name: BufferLoad(name, buffer.dtype, buffer.name, index, guard)  # noqa: E731
        return self._emit(key, make, buffer.dtype, needs)

    def table(self, array: Array, index: Indices, guard: Guard = ()) -> str:
        """Read a table that is known now."""
        return self.load(self.memory.table(array), index, guard)

    def literal(self, number: Any, of: DType) -> str:
        """Name a number."""
        value: Number = np.asarray(number).astype(of.numpy).item()
        # repr tells -0.0 from 0.0, and NaN is itself in it.
        key = (Literal, repr(value), of)
        return self._emit(key, lambda name: Literal(name, of, value), of)

    def place(self, index: Index, of: DType = int32) -> str:
        """Use an index as a number."""
        key = (Place, index, of)
        return self._emit(key, lambda name: Place(name, of, index), of, [index])

    def holds(self, guard: Guard) -> str:
        """Tell whether a guard holds."""
        needs = [bound.index for bound in guard]
        return self._emit((Holds, guard), lambda name: Holds(name, guard), bool_, needs)

    def compute(self, op: str, *operands: str, **attrs: Attr) -> str:
        """Apply an elementwise primitive."""
        declared = get_op(op)
        full = tuple(declared.complete(attrs).items())
        key = (Compute, op, operands, full)
        if (name := self._known(key)) is not None:
            return str(name)
        types = [TensorType(self._dtype[name], ()) for name in operands]
        (found,) = declared.infer(types, dict(full))
        assert isinstance(found, TensorType)
        of = found.dtype
        make = lambda name: Compute(name, of, op, operands, full)  # noqa: E731
        return self._emit(key, make, of, (), operands)

    def cast(self, name: str, of: DType) -> str:
        """Convert, unless it is of that dtype."""
        return name if self._dtype[name] is of else self.compute("cast", name, dtype=of)

    def widened(self, name: str) -> str:
        """Bring 16-bit floats to float32, in which sums are made."""
        of = self._dtype[name]
        return self.cast(name, float32) if of.is_float and of.bits == 16 else name

    def masked(self, name: str, guard: Guard, other: Any = 0) -> str:
        """Take a number where a guard does not hold; a load under that guard is 0 there already."""
        guard = simplified(guard)
        if not guard:
            return name
        made = self._made.get(name)
        if other == 0 and isinstance(made, BufferLoad) and {*guard} <= {*made.guard}:
            return name
        return self.compute(
            "where", self.holds(guard), name, self.literal(other, self._dtype[name])
        )

    def held(self, name: str, extent: int, *, wraps: bool = False) -> Index:
        """Use an integer as an index; with ``wraps``, a negative one counts from the end."""
        of = self._dtype[name]
        if wraps and of.kind == "int":
            wide = self.cast(name, of if of.bits == 64 else int32)
            below = self.compute("less", wide, self.literal(0, self._dtype[wide]))
            turned = self.compute("add", wide, self.literal(extent, self._dtype[wide]))
            name = self.compute("where", below, turned, wide)
        return at(Held(name, extent))

    # -- loops

    def axis(self, extent: int) -> Axis:
        """Make an axis with a name of its own."""
        self._count += 1
        return Axis(f"a{self._count}", extent)

    def fold(
        self,
        combine: Combine,
        extents: Sequence[int],
        needs: Iterable[Index],
        make: Callable[[Indices], Sequence[str]],
    ) -> tuple[str, ...]:
        """Combine what ``make`` gives over new axes; ``needs`` has all outer axes it depends on."""
        axes = tuple(self.axis(extent) for extent in extents)
        listed = tuple(needs)
        outer, depends = self._where(listed)
        self.folds.append(depends)
        before, self.current = self.current, Scope(outer, axes)
        self._axis_home.update(dict.fromkeys(axes, self.current))
        values = tuple(make(tuple(at(axis) for axis in axes)))
        body, self.current = tuple(self.current.statements), before
        dtypes = tuple(self._dtype[name] for name in values)
        names = tuple(self._name(of, outer, depends) for of in dtypes)
        outer.statements.append(Fold(names, dtypes, combine, axes, body, values))
        return names

    def enter(self, axes: Iterable[Axis]) -> Scope:
        """Start a loop at the root, and be inside of it."""
        self.current = Scope(self.root, tuple(axes))
        self._axis_home.update(dict.fromkeys(self.current.axes, self.current))
        return self.current

    def leave(self) -> tuple[Statement, ...]:
        """End a loop; give its statements."""
        done, self.current = self.current, self.root
        return tuple(done.statements)

    def carry(self, of: DType) -> str:
        """Name a value that a loop carries."""
        return self._name(of, self.current, frozenset(self._axis_home))

    # -- placement

    def _name(self, of: DType, home: Scope, axes: frozenset[Axis]) -> str:
        self._count += 1
        name = f"v{self._count}"
        self._dtype[name], self._home[name], self._axes[name] = of, home, axes
        return name

    def _emit(
        self,
        key: Any,
        make: Callable[[str], Scalar],
        of: DType,
        needs: Iterable[Index] = (),
        operands: Iterable[str] = (),
    ) -> str:
        if (known := self._known(key)) is not None:
            return str(known)
        scope, axes = self._where(needs, operands)
        name = self._name(of, scope, axes)
        statement = make(name)
        scope.statements.append(statement)
        scope.known[key] = name
        self._made[name] = statement
        return name

    def _known(self, key: Any) -> Any:
        scope: Scope | None = self.current
        while scope is not None:
            if key in scope.known:
                return scope.known[key]
            scope = scope.outer
        return None

    def _where(
        self, indices: Iterable[Index], operands: Iterable[str] = ()
    ) -> tuple[Scope, frozenset[Axis]]:
        """Find the outermost scope that has all that is needed, and the axes it depends on."""
        found = [*atoms_of(indices)]
        names = [*operands, *(atom.value for atom in found if isinstance(atom, Held))]
        axes = frozenset(atom for atom in found if isinstance(atom, Axis))
        homes = [self._axis_home[axis] for axis in axes]
        for name in names:
            homes.append(self._home[name])
            axes |= self._axes[name]
        return max(homes, key=lambda scope: scope.depth, default=self.root), axes
