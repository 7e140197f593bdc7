"""Limits of a run: its end in time, and the bytes that its values may take.

``limited`` sets them for everything below it, in this thread. The interpreter counts the bytes of
its values, predicts those of each node before it allocates them, and looks at the clock at every
node and at every round of a loop. A BudgetError is the caller's: another engine would not help.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.errors import BudgetError
from fusewire.ir.graph import Array, Graph, Node
from fusewire.ir.types import TensorType

# What a string takes, with the reference to it: each character as much as the widest may.
_STRING_BYTES, _CHARACTER_BYTES = 88, 4
_MIB = 1 << 20
# Smaller arrays are not counted: there are never enough of them to matter.
SMALL = 1 << 12


@dataclass(frozen=True)
class RunLimits:
    """Limits of one run: seconds, and bytes of its values; None is no limit.

    ``asked_bytes`` is the limit that the user asked for, which engines are held to as well.
    """

    seconds: float | None = None
    memory_bytes: int | None = None
    asked_bytes: int | None = None


class Meter:
    """What one run uses, against its limits; ``stop`` raises when nobody needs the run anymore.

    Steps of a plan that run at the same time share one.
    """

    __slots__ = ("_live", "_lock", "_memory", "_seconds", "_stop", "bodies", "deadline", "used")

    def __init__(self, limits: RunLimits, stop: Callable[[], None] | None = None) -> None:
        self._seconds = limits.seconds
        seconds = math.inf if limits.seconds is None else limits.seconds
        self.deadline = time.monotonic() + seconds
        self._memory = limits.memory_bytes
        self._stop = stop
        # How often the arrays that own memory are held, and their bytes.
        self._live: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self.used = 0
        # How many bodies of control flow this run is in.
        self.bodies = 0

    def allow(self, seconds: float) -> None:
        """Do not count seconds in which an engine compiled; in a loop, they count."""
        if not self.bodies:
            self.deadline += seconds

    def tick(self, node: Node | None = None) -> None:
        """Raise if the time is up."""
        if self._stop is not None:
            self._stop()
        if time.monotonic() > self.deadline:
            raise BudgetError(
                f"The run took longer than {self._seconds:g} seconds{_at(node)}. Raise deadline, "
                "or check the inputs that decide how often a loop runs."
            )

    def need(self, count: int, node: Node | None = None, where: str = "") -> None:
        """Raise if so many bytes more would exceed the limit."""
        if self._memory is not None and self.used + count > self._memory:
            raise BudgetError(
                f"The run needs {count / _MIB:,.0f} MiB more{where or _at(node)} and holds "
                f"{self.used / _MIB:,.0f} MiB; the limit is {self._memory / _MIB:,.0f} MiB. Raise "
                "memory_limit, or check the inputs that decide sizes."
            )

    def hold(self, values: Sequence[Any]) -> None:
        """Count the bytes of values, once for all that share them."""
        for value in values:
            if type(value) is list:
                self.hold(value)
            elif isinstance(value, np.ndarray) and not _is_small(value):
                owner = _owner(value)
                with self._lock:
                    row = self._live.get(id(owner))
                    if row is None:
                        row = self._live[id(owner)] = [0, _owned_bytes(owner)]
                        self.used += row[1]
                    row[0] += 1

    def drop(self, values: Sequence[Any]) -> None:
        """Stop counting values that were held."""
        for value in values:
            if type(value) is list:
                self.drop(value)
            elif isinstance(value, np.ndarray) and not _is_small(value):
                key = id(_owner(value))
                with self._lock:
                    row = self._live.get(key)
                    if row is not None:
                        row[0] -= 1
                        if row[0] <= 0:
                            self.used -= row[1]
                            del self._live[key]


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


def meter() -> Meter | None:
    """Return the meter of the run that this is part of, if it has limits."""
    return _METER.get()


@contextlib.contextmanager
def limited(limits: RunLimits, stop: Callable[[], None] | None = None) -> Iterator[Meter]:
    """Run under limits; a part of a run that has limits keeps to those."""
    current = _METER.get()
    if current is not None:
        yield current
        return
    token = _METER.set(made := Meter(limits, stop))
    try:
        yield made
    finally:
        _METER.reset(token)


def text_bytes(array: Array) -> int:
    """Count what the strings of an array take."""
    characters = sum(map(len, array.reshape(-1)))
    return _CHARACTER_BYTES * characters + _STRING_BYTES * array.size


def value_bytes(value: Any) -> int:
    """Count what the tensors of a value take."""
    if isinstance(value, list):
        return sum(map(value_bytes, value))
    if not isinstance(value, np.ndarray):
        return 0
    return text_bytes(value) if value.dtype == object else value.nbytes


def array_bytes(shapes: Sequence[Sequence[int]], itemsizes: Sequence[int]) -> int:
    """Count what arrays of these shapes take; a negative size, which is refused, counts as 0."""
    pairs = zip(shapes, itemsizes, strict=True)
    return sum(math.prod(max(int(n), 0) for n in shape) * size for shape, size in pairs)


def returned_bytes(graph: Graph) -> int:
    """Count what a graph returns, as far as its types tell."""
    types = [v.type for v in graph.outputs if isinstance(v.type, TensorType)]
    sizes = [type_.size * type_.dtype.itemsize for type_ in types]
    return sum(size for size in sizes if isinstance(size, int))


def _at(node: Node | None) -> str:
    if node is None:
        return ""
    return f" at {node!r}" + (f" ({node.source})" if node.source else "")


def _is_small(array: Array) -> bool:
    return array.nbytes < SMALL and array.dtype != object


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _owned_bytes(owner: Array) -> int:
    """Count what an array takes that owns its memory; a repeated axis takes none."""
    if owner.dtype == object:
        return text_bytes(owner)
    dims = zip(owner.shape, owner.strides, strict=True)
    return int(math.prod(n for n, stride in dims if stride)) * owner.itemsize
