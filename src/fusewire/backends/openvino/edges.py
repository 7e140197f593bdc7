"""Arrays at the edge between NumPy and the engine, converted to the engine's storage.

Needs no graph: what was told of it once is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fusewire import dtypes
from fusewire.backends.openvino.storage import LONG, Storage
from fusewire.contract.backend import Slot
from fusewire.errors import DimError, EngineRaised
from fusewire.ir.dims import Dim, Shape, Symbol, bind_alone, evaluate
from fusewire.ir.graph import Array

Show = Callable[[Array], Array]


@dataclass(frozen=True)
class Edge:
    """An input or an output.

    ``show`` turns the caller's arrays into the engine's, or those of the engine into the
    caller's; ``shape`` is the engine's where it is known, with 0 for what the run tells.
    """

    storage: Storage
    dims: Shape
    show: Show | None

    @property
    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        known = tuple(dim if isinstance(dim, int) else 0 for dim in self.dims)
        return (*known, self.storage.parts) if self.storage.parts > 1 else known

    @property
    def bytes(self) -> int:
        """Give the size of what the engine writes, 0 where the run tells it."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.storage.carrier.itemsize


@dataclass(frozen=True)
class Told:
    """What the graph around an input or output tells of it; ``reach`` is that of a narrowed one."""

    storage: Storage
    is_direct: bool = False
    reach: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Border:
    """What the graph tells of its inputs and outputs; ``sizes`` must fit int32 at every call."""

    inputs: tuple[Told, ...]
    outputs: tuple[Told, ...]
    sizes: tuple[Dim, ...] = ()


@final
class SizeCheck:
    """Sizes that the engine counts in 32 bits, looked at once for all calls with the same shapes.

    An array without elements may have an axis of any size.
    """

    def __init__(self, inputs: Sequence[Edge], sizes: Sequence[Dim]) -> None:
        self._inputs = inputs
        self._sizes = sizes
        self._fitting: set[tuple[tuple[int, ...], ...]] = set()

    def check(self, arrays: Sequence[Array]) -> None:
        """Raise EngineRaised if a size does not fit."""
        shapes = tuple([x.shape for x in arrays])
        if shapes in self._fitting:
            return
        bound: dict[Symbol, int] = {}
        for edge, shape in zip(self._inputs, shapes, strict=True):
            bind_alone(edge.dims, shape, bound)
        for dim in self._sizes:
            try:
                size = evaluate(dim, bound)
            except DimError:
                # Of a branch that is not taken, sizes may contradict each other.
                continue
            if not -(2**31) <= size < 2**31:
                told = "A size" if isinstance(dim, int) else f"The size {dim}"
                raise EngineRaised(
                    f"{told} is {size}, and OpenVINO counts in 32 bits.",
                    "Run it on another backend.",
                )
        if len(self._fitting) >= _KEPT:
            # Not one by one: another thread may be doing the same.
            self._fitting = set()
        self._fitting.add(shapes)


# The most shapes whose sizes are known to fit.
_KEPT = 256


def input_edge(slot: Slot, told: Told) -> Edge:
    """Say how arrays go in."""
    storage, of = told.storage, slot.dtype
    show: Show | None
    if of in LONG and storage.parts == 1:
        show = _narrowing(slot.name, told)
    elif storage.parts > 1:
        show = _splitting(storage)
    else:
        show = _showing(of.numpy, storage.carrier)
    return Edge(storage, slot.dims, show)


def output_edge(slot: Slot, told: Told) -> Edge:
    """Say how arrays come out."""
    storage, of = told.storage, slot.dtype
    if of in LONG and storage.parts == 1:
        storage = Storage("i64", "i64", np.dtype(np.int64))
    if storage.parts > 1:
        return Edge(storage, slot.dims, _joining(of.numpy))
    return Edge(storage, slot.dims, _showing(storage.carrier, of.numpy))


def _showing(of: np.dtype[Any], to: np.dtype[Any]) -> Show | None:
    """Show the bits of one dtype as another; ints of less than a byte leave the rest of it open."""
    if of == to:
        return None
    if any(d.is_integer and d.bits < 8 for d in map(dtypes.dtype, (of, to))):
        return lambda x: x.astype(to)
    return lambda x: x.view(to)


def _splitting(storage: Storage) -> Show:
    def show(x: Array) -> Array:
        whole = x if x.flags.c_contiguous else x.copy()
        return whole.reshape(-1).view(storage.carrier).reshape(*x.shape, storage.parts)

    return show


def _joining(dtype: np.dtype[Any]) -> Show:
    return lambda x: x.reshape(-1).view(dtype).reshape(x.shape[:-1])


def _narrowing(name: str, told: Told) -> Show:
    """Convert to int32; what does not fit is clipped where only its being out of reach counts."""

    low, high = told.reach

    def show(x: Array) -> Array:
        if x.size == 0 or (low <= x.min() and x.max() <= high):
            return x.astype(np.int32)
        if not told.is_direct:
            raise EngineRaised(
                f"The input {name} has numbers from {x.min()} to {x.max()}, and OpenVINO computes "
                "places in 32 bits.",
                "Run it on another backend.",
            )
        return np.asarray(np.clip(x, -(2**31), 2**31 - 1)).astype(np.int32)

    return show
