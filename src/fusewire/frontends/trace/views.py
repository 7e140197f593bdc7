"""Views: lenses onto the memory of another array, read through and written through.

NumPy's views share memory; values of a graph cannot. So an array under trace is a ``Cell`` (the
memory, which changes) and ``Step``s (how the view sees it). A step reads a view off a value, and
writes a changed view back into one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fusewire.ir.dims import Dim, Shape
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.creation import iota
from fusewire.ops.elementwise import add, complex_, floor_divide, imag, real, remainder, subtract
from fusewire.ops.indexing import gather
from fusewire.ops.logic import equal, greater_equal, less, logical_and, where
from fusewire.ops.movement import broadcast_to, concat, expand_dims, reshape, transpose
from fusewire.ops.scatter import dynamic_update_slice, scatter_elements
from fusewire.ops.slicing import slice_, slice_size

# Gives a size as an int64 scalar of the graph.
Measure = Callable[[Dim], Value]


class Cell:
    """Memory that views share: known elements, or a value of the graph."""

    __slots__ = ("known", "layout", "owned", "scope", "type", "value", "version")

    def __init__(
        self, type_: TensorType, value: Value | None, known: Array | None, scope: object
    ) -> None:
        self.type = type_
        self.value = value
        self.known = known
        # Whether ``known`` is ours to write; the caller's arrays are copied first.
        self.owned = False
        self.scope = scope
        self.version = 0
        self.layout: Array | None = None
        if known is not None:
            self.layout = _bare(known.shape, known.dtype, known.strides)
        elif type_.is_static:
            self.layout = _bare(type_.shape, type_.dtype.numpy, None)

    def own(self) -> Array:
        """Give elements that may be written."""
        assert self.known is not None
        if not self.owned:
            self.known, self.owned = self.known.copy(order="K"), True
            self.layout = _bare(self.known.shape, self.known.dtype, self.known.strides)
        return self.known


def _bare(shape: Any, dtype: Any, strides: Any) -> Array:
    """Make an array that stands for a layout: strides without memory, never to be read."""
    if strides is None:
        steps = np.cumprod([np.dtype(dtype).itemsize, *shape[:0:-1]], dtype=np.int64)
        strides = steps[::-1][: len(shape)].tolist()
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)


class Step(abc.ABC):
    """One step from an array to a view of it; ``shape`` is the view's."""

    shape: Shape

    @abc.abstractmethod
    def view(self, array: Array) -> Array:
        """See a real array so; ValueError when only a copy could be."""

    @abc.abstractmethod
    def read(self, whole: Value) -> Value:
        """See a value so."""

    @abc.abstractmethod
    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        """Give the whole with the view changed."""


@dataclass(frozen=True)
class Reshape(Step):
    shape: Shape

    def view(self, array: Array) -> Array:
        return np.reshape(array, self.shape, copy=False)  # type: ignore[arg-type]  # static here

    def read(self, whole: Value) -> Value:
        return reshaped(whole, self.shape)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        return reshaped(part, whole.tensor.shape)


@dataclass(frozen=True)
class Transpose(Step):
    shape: Shape
    perm: tuple[int, ...]

    def view(self, array: Array) -> Array:
        return array.transpose(self.perm)

    def read(self, whole: Value) -> Value:
        return transpose(whole, perm=self.perm)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        inverse = sorted(range(len(self.perm)), key=self.perm.__getitem__)
        return transpose(part, perm=tuple(inverse))


@dataclass(frozen=True)
class Part(Step):
    """The real or the imaginary part of complex numbers."""

    shape: Shape
    name: str

    def view(self, array: Array) -> Array:
        return array.real if self.name == "real" else array.imag

    def read(self, whole: Value) -> Value:
        return real(whole) if self.name == "real" else imag(whole)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        return complex_(part, imag(whole)) if self.name == "real" else complex_(real(whole), part)


@dataclass(frozen=True)
class ReadOnly(Step):
    """A view that NumPy lets nobody write: broadcast arrays, diagonals, windows."""

    shape: Shape
    name: str
    look: Callable[[Array], Array] = field(compare=False)
    take: Callable[[Value], Value] = field(compare=False)

    def view(self, array: Array) -> Array:
        return self.look(array)

    def read(self, whole: Value) -> Value:
        return self.take(whole)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        raise AssertionError(f"a {self.name} view is read-only")


@dataclass(frozen=True)
class Pick(Step):
    """One place on an axis, which only the run can tell."""

    shape: Shape
    axis: int
    index: Value

    def view(self, array: Array) -> Array:
        return array[(slice(None),) * self.axis + (slice(1), ...)].squeeze(self.axis)

    def read(self, whole: Value) -> Value:
        return gather(whole, self.index, axis=self.axis)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        row = expand_dims(part, axes=(self.axis,))
        places = broadcast_to(self.index, shape=row.tensor.shape)
        return scatter_elements(whole, places, row, axis=self.axis)


@dataclass(frozen=True)
class Index(Step):
    """Slices and single places of axes, with new axes of size 1 between."""

    shape: Shape
    starts: Shape
    limits: Shape
    strides: tuple[int, ...]
    # Which axes stay; None stands for a new one.
    layout: tuple[bool | None, ...]

    @cached_property
    def cut(self) -> Shape:
        """The shape before single places are dropped and new axes made."""
        ends = zip(self.starts, self.limits, self.strides, strict=True)
        return tuple(slice_size(*end) for end in ends)

    def view(self, array: Array) -> Array:
        ends = iter(zip(self.starts, self.limits, self.strides, strict=True))
        key: list[Any] = []
        for kept in self.layout:
            if kept is None:
                key.append(None)
                continue
            start, limit, stride = next(ends)
            key.append(slice(start, None if limit == -1 else limit, stride) if kept else start)
        return array[(*key, ...)]

    def read(self, whole: Value) -> Value:
        if self.cut != whole.tensor.shape or any(stride != 1 for stride in self.strides):
            whole = slice_(whole, starts=self.starts, limits=self.limits, strides=self.strides)
        return reshaped(whole, self.shape)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        part = reshaped(part, self.cut)
        return _put(whole, part, self.starts, self.limits, self.strides, measure)


def is_known(step: Step) -> bool:
    """Tell whether a step can be taken on arrays while tracing."""
    dims = (*step.shape, *step.starts, *step.limits) if isinstance(step, Index) else step.shape
    return not isinstance(step, Pick) and all(isinstance(dim, int) for dim in dims)


def reshaped(value: Value, shape: Shape) -> Value:
    """Reshape unless it has that shape."""
    return value if value.tensor.shape == shape else reshape(value, shape=shape)


def _put(
    whole: Value,
    part: Value,
    starts: Sequence[Dim],
    limits: Sequence[Dim],
    strides: Sequence[int],
    measure: Measure,
) -> Value:
    """Write a part over a slice."""
    dims = whole.tensor.shape
    ends = list(zip(starts, limits, strides, strict=True))
    if all(end == (0, dim, 1) for end, dim in zip(ends, dims, strict=True)):
        return part
    if all(stride == 1 for stride in strides):
        return dynamic_update_slice(whole, part, sizes(starts, measure))
    axis = next(i for i, stride in enumerate(strides) if stride != 1)
    full = [(0, dim, 1) for dim in dims]
    full[axis] = ends[axis]
    if [end for i, end in enumerate(ends) if i != axis] != [
        end for i, end in enumerate(full) if i != axis
    ]:
        # Several axes: write the others into the slice of this one, and that into the whole.
        ends[axis] = (0, part.tensor.shape[axis], 1)
        outer = tuple(zip(*full, strict=True))
        inner = slice_(whole, starts=outer[0], limits=outer[1], strides=outer[2])
        part = _put(inner, part, *zip(*ends, strict=True), measure)  # type: ignore[arg-type]
    return _interleave(whole, part, axis, *full[axis], measure)


def sizes(dims: Sequence[Dim], measure: Measure) -> Any:
    """Give sizes as one int64 vector: an array where all are known."""
    if all(isinstance(dim, int) for dim in dims):
        return np.array(dims, np.int64)
    return concat(*(reshape(measure(dim), shape=(1,)) for dim in dims), axis=0)


def _interleave(
    whole: Value, part: Value, axis: int, start: Dim, limit: Dim, stride: int, measure: Measure
) -> Value:
    """Write over every stride-th place of an axis: take each place from the one or the other."""
    dim, count = whole.tensor.shape[axis], part.tensor.shape[axis]
    source: Any
    if isinstance(dim, int) and isinstance(start, int) and isinstance(count, int):
        source = np.arange(dim)
        source[start + stride * np.arange(count)] = dim + np.arange(count)
    else:
        place = iota.new(shape=(dim,), axis=0)
        away = subtract(place, measure(start))
        turn = floor_divide(away, stride)
        hit = logical_and(equal(remainder(away, stride), 0), greater_equal(turn, 0))
        hit = logical_and(hit, less(turn, measure(count)))
        source = where(hit, add(turn, measure(dim)), place)
    return gather(concat(whole, part, axis=axis), source, axis=axis)
