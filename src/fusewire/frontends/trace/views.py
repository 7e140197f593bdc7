"""Steps from an array to a view of it: each reads the view from a value, and writes it back."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, symbols
from fusewire.ir.graph import Array, Value
from fusewire.ops.creation import iota
from fusewire.ops.cumulative import cumsum
from fusewire.ops.dynamic import dynamic_broadcast_to
from fusewire.ops.elementwise import add, complex_, floor_divide, imag, real, remainder, subtract
from fusewire.ops.indexing import gather
from fusewire.ops.logic import equal, greater_equal, less, logical_and, where
from fusewire.ops.movement import broadcast_to, concat, expand_dims, reshape, transpose
from fusewire.ops.scatter import dynamic_update_slice, scatter_elements
from fusewire.ops.slicing import slice_, slice_size

# Returns a size as an int64 scalar of the graph.
Measure = Callable[[Dim], Value]


class ViewStep(abc.ABC):
    """One step from an array to a view of it; ``shape`` is the view's."""

    shape: Shape

    @abc.abstractmethod
    def view(self, array: Array) -> Array:
        """Apply to a real array; ValueError if only a copy is possible."""

    @abc.abstractmethod
    def read(self, whole: Value) -> Value:
        """Apply to a value."""

    @abc.abstractmethod
    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        """Return the whole with the view changed."""


@dataclass(frozen=True)
class Reshape(ViewStep):
    shape: Shape

    def view(self, array: Array) -> Array:
        static: Any = self.shape
        return np.reshape(array, static, copy=False)

    def read(self, whole: Value) -> Value:
        return reshaped(whole, self.shape)

    def write(self, whole: Value, part: Value, measure: Measure) -> Value:
        return reshaped(part, whole.tensor.shape)


@dataclass(frozen=True)
class Transpose(ViewStep):
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
class ComplexPart(ViewStep):
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
class ReadOnly(ViewStep):
    """A view that is read-only in NumPy: broadcast arrays, diagonals, windows."""

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
class Pick(ViewStep):
    """One place on an axis, which only the run determines."""

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
class BasicIndex(ViewStep):
    """Slices and single places of axes, with new axes of size 1 in between."""

    shape: Shape
    starts: Shape
    limits: Shape
    strides: tuple[int, ...]
    # Which axes stay; None stands for a new one.
    layout: tuple[bool | None, ...]

    @cached_property
    def cut(self) -> Shape:
        """The shape before single places are dropped and new axes added."""
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
        ends = list(zip(self.starts, self.limits, self.strides, strict=True))
        return _put(whole, part, ends, measure)


def is_known(step: ViewStep) -> bool:
    """Return whether a step can be applied to arrays while tracing."""
    dims = (*step.shape, *step.starts, *step.limits) if isinstance(step, BasicIndex) else step.shape
    return not isinstance(step, Pick) and all(isinstance(dim, int) for dim in dims)


def reshaped(value: Value, shape: Shape) -> Value:
    """Reshape unless it has that shape."""
    return value if value.tensor.shape == shape else reshape(value, shape=shape)


def has_open_size(dims: Iterable[Dim]) -> bool:
    """Return whether only a node determines one of the sizes, so that it must be an operand."""
    return any(item.unbacked for dim in dims for item in symbols(dim))


def sizes(dims: Sequence[Dim], measure: Measure) -> Any:
    """Return sizes as one int64 vector: an array if all are known."""
    if all(isinstance(dim, int) for dim in dims):
        return np.array(dims, np.int64)
    return concat(*(reshape(measure(dim), shape=(1,)) for dim in dims), axis=0)


def widened(value: Value, shape: Shape, measure: Measure) -> Value:
    """Broadcast unless it has that shape."""
    if value.tensor.shape == shape:
        return value
    if has_open_size(shape):
        return dynamic_broadcast_to(value, sizes(shape, measure), dims=shape)
    return broadcast_to(value, shape=shape)


def counted(dim: Dim, measure: Measure) -> Value:
    """Count from 0 up to a size."""
    if not has_open_size([dim]):
        return iota.new(shape=(dim,), axis=0)
    ones = widened(constant(np.array(1, np.int64)), (dim,), measure)
    return subtract(cumsum(ones, axis=0), 1)


def _put(
    whole: Value,
    part: Value,
    ends: Sequence[tuple[Dim, Dim, int]],
    measure: Measure,
) -> Value:
    """Overwrite a slice, given by start, limit and stride for each axis, with a part."""
    full: list[tuple[Dim, Dim, int]] = [(0, dim, 1) for dim in whole.tensor.shape]
    if list(ends) == full:
        return part
    if all(stride == 1 for *_, stride in ends):
        return dynamic_update_slice(whole, part, sizes([start for start, *_ in ends], measure))
    axis = next(i for i, (*_, stride) in enumerate(ends) if stride != 1)
    rest = list(ends)
    rest[axis] = full[axis]
    full[axis] = ends[axis]
    if rest != [(0, dim, 1) for dim in whole.tensor.shape]:
        # Several axes: write the others into the slice of this one, and that into the whole.
        rest[axis] = (0, part.tensor.shape[axis], 1)
        starts, limits, strides = zip(*full, strict=True)
        inner = slice_(whole, starts=starts, limits=limits, strides=strides)
        part = _put(inner, part, rest, measure)
    return _interleave(whole, part, axis, ends[axis][0], ends[axis][2], measure)


def _interleave(
    whole: Value, part: Value, axis: int, start: Dim, stride: int, measure: Measure
) -> Value:
    """Overwrite every stride-th place of an axis, by choosing each place from one of two."""
    dim, count = whole.tensor.shape[axis], part.tensor.shape[axis]
    source: Any
    if isinstance(dim, int) and isinstance(start, int) and isinstance(count, int):
        source = np.arange(dim)
        source[start + stride * np.arange(count)] = dim + np.arange(count)
    else:
        place = counted(dim, measure)
        away = subtract(place, measure(start))
        turn = floor_divide(away, stride)
        hit = logical_and(equal(remainder(away, stride), 0), greater_equal(turn, 0))
        hit = logical_and(hit, less(turn, measure(count)))
        source = where(hit, add(turn, measure(dim)), place)
    return gather(concat(whole, part, axis=axis), source, axis=axis)
