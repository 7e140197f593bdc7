"""The memory of traced arrays, and the views that share it.

NumPy's views share memory; values of a graph cannot. So an array is a ``Cell`` (the memory, which
changes) seen through a ``Lens`` (steps of views.py), through which it is read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from fusewire.dtypes import dtype
from fusewire.frontends.trace.views import (
    ComplexPart,
    Measure,
    Pick,
    ReadOnly,
    ViewStep,
    is_known,
    reshaped,
    widened,
)
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType

# Makes a value of the graph from elements.
Make = Callable[[Array], Value]


class Cell:
    """Memory that views share: known elements, or a value of the graph."""

    __slots__ = ("_strides", "known", "owned", "scope", "type", "value", "version")

    def __init__(
        self, type_: TensorType, value: Value | None, known: Array | None, scope: object
    ) -> None:
        self.type = type_
        self.value = value
        self.known = known
        # Whether ``known`` may be written; the caller's arrays are copied first.
        self.owned = False
        self.scope = scope
        self.version = 0
        self._strides = None if known is None else known.strides

    @property
    def layout(self) -> Array | None:
        """An array with these strides, never read; None if sizes vary."""
        if not self.type.is_static:
            return None
        of, strides = self.type.dtype.numpy, self._strides
        shape: Any = self.type.shape
        if strides is None:
            steps = np.cumprod([of.itemsize, *shape[:0:-1]], dtype=np.int64)
            strides = tuple(steps[::-1][: len(shape)].tolist())
        return np.lib.stride_tricks.as_strided(np.empty(1, of), shape, strides)

    def lie_like(self, layouts: Sequence[Array]) -> None:
        """Use the layout that NumPy gives to elementwise results of such arrays."""
        if all(layout.flags.c_contiguous for layout in layouts):
            return
        operands: Any = [*layouts, None]
        flags: Any = [*[["readonly"]] * len(layouts), ["writeonly", "allocate"]]
        of_each = [*(layout.dtype for layout in layouts), np.dtype(np.int8)]
        shape: Any = self.type.shape
        made = np.nditer(
            operands, ["zerosize_ok"], flags, op_dtypes=of_each, itershape=shape
        ).operands[-1]
        of = self.type.dtype.numpy
        self._strides = tuple(of.itemsize * stride for stride in made.strides)
        if self.known is not None:
            known = np.empty_like(made, of)
            known[...] = self.known
            self.known, self.owned = known, True

    def own(self) -> Array:
        """Return elements that may be written."""
        assert self.known is not None
        if not self.owned:
            self.known, self.owned = self.known.copy(order="K"), True
            self._strides = self.known.strides
        return self.known

    def whole(self, make: Make) -> Value:
        """Return the elements as a value."""
        if self.known is not None:
            return make(self.known)
        assert self.value is not None
        return self.value


class Lens:
    """A view of a cell. Immutable."""

    __slots__ = ("cell", "steps", "type")

    def __init__(self, cell: Cell, steps: tuple[ViewStep, ...] = ()) -> None:
        self.cell = cell
        self.steps = steps
        self.type = cell.type
        if steps:
            of = cell.type.dtype
            if any(isinstance(step, ComplexPart) for step in steps):
                of = dtype(f"float{of.bits // 2}")
            self.type = TensorType(of, steps[-1].shape)

    @property
    def known(self) -> Array | None:
        """The elements, where they are known while tracing. Not to be written."""
        known = self.cell.known
        if known is None or not self.steps:
            return known
        return self._seen(known) if all(map(is_known, self.steps)) else None

    @property
    def layout(self) -> Array | None:
        """An array with the strides of this view, never read; None if sizes vary."""
        layout = self.cell.layout if self.type.is_static else None
        if layout is None or not all(is_known(s) or isinstance(s, Pick) for s in self.steps):
            return None
        return self._seen(layout)

    @property
    def is_writable(self) -> bool:
        return not any(isinstance(step, ReadOnly) for step in self.steps)

    def _seen(self, array: Array) -> Array:
        return reduce(lambda seen, step: step.view(seen), self.steps, array)

    def sees_the_same(self, other: Lens) -> bool:
        """Return whether two lenses show the same elements of the same memory."""
        return self.cell is other.cell and self.steps == other.steps

    def read(self, make: Make) -> Value:
        """Return what the lens shows as a value."""
        known = self.known
        if known is not None:
            return make(known)
        return reduce(lambda value, step: step.read(value), self.steps, self.cell.whole(make))

    def write_known(self, elements: Array) -> None:
        """Overwrite known elements with known elements."""
        self._seen(self.cell.own())[...] = elements
        self.cell.version += 1

    def write(self, part: Value, make: Make, measure: Measure) -> Value:
        """Overwrite what the lens shows; the whole memory becomes the returned value."""
        # NumPy allows the new elements to have leading axes of size 1.
        extra = max(part.tensor.rank - self.type.rank, 0)
        part = widened(reshaped(part, part.tensor.shape[extra:]), self.type.shape, measure)
        stages = [self.cell.whole(make)]
        for step in self.steps[:-1]:
            stages.append(step.read(stages[-1]))
        for step, stage in zip(reversed(self.steps), reversed(stages), strict=False):
            part = step.write(stage, part, measure)
        self.cell.value, self.cell.known = part, None
        self.cell.version += 1
        return part
