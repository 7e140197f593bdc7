"""Run kernels in NumPy, without a device, all points of an iteration space at once.

Each scalar of a body is an array with one axis per loop around it, of size 1 where it does not
depend on that loop. Spaces that are too large are run in parts along the axes of the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fusewire.dtypes import DType, dtype
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import (
    BufferLoad,
    BufferStore,
    Combine,
    Compute,
    Fold,
    Guard,
    Holds,
    Kernel,
    Literal,
    Loop,
    Lowered,
    OutsideCall,
    Place,
    Statement,
    identity,
)
from fusewire.kernel.index import Atom, Axis, Held, Index, Quotient
from fusewire.ops.interpret import Interpreter, run_op
from fusewire.ops.table import get_op

# Elements that one scalar of a body may hold at once.
MOST_POINTS = 1 << 22
_RULES = Interpreter(Graph([], []))
_COMBINES: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_or": np.logical_or,
    "logical_and": np.logical_and,
}


def interpret(region: Lowered, inputs: Sequence[Array]) -> list[Array]:
    """Run a region on arrays of its inputs."""
    held: dict[str, Array] = dict(zip(region.inputs, inputs, strict=True))
    held |= {name: constant.array for name, constant in region.constants.items()}
    for name, buffer in region.buffers.items():
        if name not in held:
            held[name] = np.zeros(buffer.shape, buffer.dtype.numpy)
    with np.errstate(all="ignore"):
        for step in region.steps:
            if isinstance(step, Kernel):
                run_kernel(step, held)
                continue
            for number in range(step.step.extent):
                for kernel in step.kernels:
                    run_kernel(kernel, held, {step.step: number})
    return [held[name] for name in region.outputs]


def run_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], steps: Mapping[Axis, int] | None = None
) -> None:
    """Run one kernel; it writes into the arrays of its buffers."""
    if kernel.call is not None:
        _run_call(kernel.call, buffers)
        return
    given = {axis: np.array([number]) for axis, number in (steps or {}).items()}
    for part in _parts(kernel):
        run = _Run(kernel, buffers, {**given, **part})
        run.body(kernel.body)


def _run_call(call: OutsideCall, buffers: Mapping[str, Array]) -> None:
    """Run a kernel of a package by the meaning of its op."""
    given = [buffers[b.name].reshape(b.shape) for b in call.operands]
    found = run_op(get_op(call.op), given, dict(call.attrs))
    outputs = found if isinstance(found, tuple) else (found,)
    for buffer, output in zip(call.results, outputs, strict=True):
        buffers[buffer.name].reshape(-1)[:] = output.reshape(-1)


def _parts(kernel: Kernel) -> Iterator[dict[Axis, Array]]:
    """Cut the space of a kernel so that no scalar in it has too many elements."""
    room = MOST_POINTS // max(_inner(kernel.body), 1)
    cuts: list[list[Array]] = []
    for axis in reversed(kernel.axes):
        length = min(axis.extent, max(room, 1))
        room //= max(length, 1)
        starts = range(0, axis.extent, max(length, 1))
        cuts.append([np.arange(start, min(start + length, axis.extent)) for start in starts])
    for part in itertools.product(*reversed(cuts)):
        yield dict(zip(kernel.axes, part, strict=True))


def _inner(body: Sequence[Statement]) -> int:
    """Count the points of the largest nest of loops in a body."""
    nests = [s for s in body if isinstance(s, Fold | Loop)]
    found = [math.prod(a.extent for a in s.axes) * _inner(s.body) for s in nests]
    return max(found, default=1)


class _Run:
    """One part of a kernel's space."""

    def __init__(
        self, kernel: Kernel, buffers: Mapping[str, Array], places: dict[Axis, Array]
    ) -> None:
        self._kernel = kernel
        self._buffers = buffers
        # Every axis in scope, the steps of repeats included, in the order of array axes.
        self._places = places
        self._values: dict[str, Array] = {}
        own = [np.arange(len(at)) for at in places.values()]
        self._points = len(own)
        shape = tuple(len(at) for at in own)
        self._locals = {b.name: np.zeros((*shape, *b.shape), b.dtype.numpy) for b in kernel.locals}

    def body(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Fold):
                self._fold(statement)
            elif isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, BufferStore):
                self._store(statement)
            else:
                self._values[statement.name] = self._scalar(statement)

    # -- scalars

    def _scalar(self, statement: BufferLoad | Literal | Place | Holds | Compute) -> Array:
        if isinstance(statement, BufferLoad):
            return self._load(statement)
        if isinstance(statement, Literal):
            return self._raised(np.array(statement.value).astype(statement.dtype.numpy))
        if isinstance(statement, Place):
            return self._index(statement.index).astype(statement.dtype.numpy)
        if isinstance(statement, Holds):
            return self._holds(statement.guard)
        node = _node(statement, tuple(self._dtype(name) for name in statement.operands))
        operands = [self._value(name) for name in statement.operands]
        (found,) = _RULES.primitive(get_op(statement.op), node, operands, {})
        return self._raised(found)

    def _value(self, name: str) -> Array:
        return self._raised(self._values[name])

    def _dtype(self, name: str) -> np.dtype[Any]:
        return self._values[name].dtype

    def _raised(self, array: Array) -> Array:
        """Add an axis of size 1 for every loop that was entered since."""
        return array.reshape(array.shape + (1,) * (len(self._places) - array.ndim))

    def _index(self, index: Index) -> Array:
        total = self._raised(np.array(index.constant, np.int64))
        for atom, factor in index.terms:
            total = total + self._atom(atom) * factor
        return total

    def _atom(self, atom: Atom) -> Array:
        if isinstance(atom, Axis):
            position = list(self._places).index(atom)
            places = self._places[atom]
            return places.reshape([-1 if i == position else 1 for i in range(len(self._places))])
        if isinstance(atom, Held):
            return self._value(atom.value).astype(np.int64).clip(0, atom.extent - 1)
        inner = self._index(atom.of)
        return inner // atom.by if isinstance(atom, Quotient) else inner % atom.by

    def _holds(self, guard: Guard) -> Array:
        found = self._raised(np.array(True))
        for bound in guard:
            index = self._index(bound.index)
            found = found & (bound.low <= index) & (index < bound.high)
        return found

    # -- memory

    def _memory(self, name: str, index: Sequence[Index]) -> tuple[Array, list[Array]]:
        """Find a buffer, and the indices of elements in it."""
        places = [self._index(part) for part in index]
        if name not in self._locals:
            return self._buffers[name], places
        own: list[Array] = []
        for position, at in enumerate(list(self._places.values())[: self._points]):
            shape = [-1 if i == position else 1 for i in range(len(self._places))]
            own.append(np.arange(len(at)).reshape(shape))
        return self._locals[name], own + places

    def _load(self, load: BufferLoad) -> Array:
        memory, places = self._memory(load.buffer, load.index)
        if not load.guard:
            return self._raised(memory[tuple(places)])
        holds = self._holds(load.guard)
        zero = np.zeros((), memory.dtype)
        if not holds.any():
            return self._raised(zero)
        return np.where(holds, memory[tuple(np.where(holds, at, 0) for at in places)], zero)

    def _store(self, store: BufferStore) -> None:
        memory, places = self._memory(store.buffer, store.index)
        value = self._value(store.value)
        if store.guard:
            holds = self._holds(store.guard)
            shape = np.broadcast_shapes(holds.shape, value.shape, *(at.shape for at in places))
            holds = np.broadcast_to(holds, shape)
            places = [np.broadcast_to(at, shape)[holds] for at in places]
            value = np.broadcast_to(value, shape)[holds]
        if store.combine is not None:
            value = _COMBINES[store.combine](memory[tuple(places)], value)
        memory[tuple(places)] = value if places else value.reshape(())

    # -- loops

    def _inside(self, axes: Sequence[Axis], places: Sequence[Array]) -> None:
        self._places = {**self._places, **dict(zip(axes, places, strict=True))}

    def _fold(self, fold: Fold) -> None:
        outer = self._places
        self._inside(fold.axes, [np.arange(a.extent) for a in fold.axes])
        self.body(fold.body)
        extents = tuple(a.extent for a in fold.axes)
        values = []
        for name in fold.values:
            value = self._value(name)
            full = np.broadcast_to(value, (*value.shape[: len(outer)], *extents))
            values.append(full.reshape(*full.shape[: len(outer)], math.prod(extents)))
        self._places = outer
        found = folded(fold.combine, values, fold.dtypes)
        self._values.update(zip(fold.names, found, strict=True))

    def _loop(self, loop: Loop) -> None:
        outer = self._places
        if not loop.ordered and not loop.carries:
            self._inside(loop.axes, [np.arange(a.extent) for a in loop.axes])
            self.body(loop.body)
            self._places = outer
            return
        kept = {carry.name: self._value(carry.start) for carry in loop.carries}
        for point in itertools.product(*(range(a.extent) for a in loop.axes)):
            self._inside(loop.axes, [np.array([n]) for n in point])
            self._values.update({name: self._raised(value) for name, value in kept.items()})
            self.body(loop.body)
            for carry in loop.carries:
                value = self._value(carry.next)
                kept[carry.name] = value.reshape(value.shape[: len(outer)])
            self._places = outer
        self._values.update(kept)


@cache
def _node(statement: Compute, given: tuple[np.dtype[Any], ...]) -> Node:
    inputs = [Value(TensorType(dtype(of), ())) for of in given]
    types = [TensorType(statement.dtype, ())]
    return Node(statement.op, inputs, dict(statement.attrs), types)


def folded(combine: Combine, values: Sequence[Array], dtypes: Sequence[DType]) -> list[Array]:
    """Combine over the last axis; 16-bit floats are combined in float32 and rounded once."""
    first = values[0]
    if combine in ("argmax", "argmin"):
        if first.shape[-1] == 0:
            return [np.zeros(first.shape[:-1], of.numpy) for of in dtypes]
        find = np.argmax if combine == "argmax" else np.argmin
        places = find(_RULES.work(first, TensorType(dtypes[0], ())), axis=-1)[..., None]
        return [np.take_along_axis(value, places, -1)[..., 0] for value in values]
    work = _RULES.work(first, TensorType(dtypes[0], ()))
    start = identity(combine, dtypes[0])
    given = {"initial": np.array(start).astype(work.dtype)}
    found = _COMBINES[combine].reduce(work, axis=-1, dtype=work.dtype, **given)
    return [np.asarray(found).astype(dtypes[0].numpy)]
