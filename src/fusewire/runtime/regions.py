"""Run regions: a call of an executable and little else. What every call goes through."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, final

import numpy as np
from numpy import ndarray

from fusewire.contract.backend import Buffer, Event, Exchange, Executable, Held
from fusewire.errors import EngineError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType, type_symbols
from fusewire.process.guard import guarded, guarded_run
from fusewire.runtime.plan import Plan, Region
from fusewire.runtime.transfer import hand_over, to_host

# The most executables of a region for an engine that needs sizes: each takes memory.
_KEPT = 64


class RegionBuilder(Protocol):
    """Makes the regions of a plan ready to run."""

    def build(
        self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> tuple[Executable, Exchange]:
        """Build a region from its graph for these sizes, and try it on these inputs."""

    def rescue(
        self, region: Region, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        """Build a region whose engine failed on the fallback, or raise."""

    @property
    def plan_body(self) -> Callable[[Graph], Plan] | None:
        """Plans a body of control flow once the sizes of the graph around it are known."""


@final
class Loaded:
    """An executable; ``parts`` has what a call needs, in one place.

    A large model evicts everything else from the caches, so a call should touch few objects.
    """

    __slots__ = ("__weakref__", "parts")

    def __init__(self, executable: Executable, exchange: Exchange) -> None:
        run: Callable[[Sequence[Held]], Event] = executable.run
        is_host = exchange.memory == "host"
        # Such an engine takes any contiguous array.
        is_plain = exchange.alignment <= 1 and not exchange.needs_writable
        turn = None if executable.is_reentrant else threading.Lock()
        self.parts = (run, exchange, is_host, is_plain, turn)
        # Runs after the last run has ended, which holds this object, and not at exit.
        weakref.finalize(self, _close, executable).atexit = False


def _close(executable: Executable) -> None:
    """Close an executable; the caller could do nothing about an error."""
    with contextlib.suppress(EngineError):
        guarded("engine", "run", "a region", executable.close)


@final
class RegionRunner:
    """A region and its executables: one, or one per size for an engine that needs sizes."""

    def __init__(self, region: Region, builder: RegionBuilder, is_last: bool = False) -> None:
        """``is_last``: its outputs go to the caller, on the host."""
        self._region = region
        self._is_last = is_last
        self._name = region.backend
        self._builder = builder
        self._symbols = {s for v in region.inputs for s in type_symbols(v.type)}
        self._per_size = region.shapes != "dynamic" and bool(self._symbols)
        self._made: dict[tuple[tuple[int, ...], ...], Loaded] = {}
        self._lock = threading.RLock()

    def run(self, inputs: Sequence[Held], is_rescued: bool = False) -> list[Held]:
        """Run on values from anywhere. What stays on a device is not waited for."""
        # Every call of a program comes this way: loops that end early, and few calls.
        key = tuple(map(shape_of, inputs)) if self._per_size else ()
        loaded = self._made.get(key) or self._make(key, inputs)
        run, exchange, is_host, is_plain, turn = loaded.parts
        name, taken = self._name, inputs
        try:
            for value in inputs:
                if type(value) is ndarray and is_plain and value.flags.c_contiguous:
                    continue
                taken = guarded(name, "run", "a region", _hand_over, inputs, exchange)
                break
            if turn is None:
                found = guarded_run(name, run, taken, is_host)
            else:
                with turn:
                    found = guarded_run(name, run, taken, True)
            if self._is_last:
                for value in found:
                    if type(value) is not ndarray:
                        return guarded(name, "run", "a region", _to_host, found)
            return found
        except EngineError as error:
            if is_rescued:
                raise
            with self._lock:
                made = self._builder.rescue(self._region, self._graph(inputs), error)
                self._made[key] = Loaded(*made)
            return self.run(inputs, is_rescued=True)

    def _make(self, key: tuple[tuple[int, ...], ...], inputs: Sequence[Held]) -> Loaded:
        with self._lock:
            loaded = self._made.get(key)
            if loaded is None:
                built = self._builder.build(self._region, lambda: self._graph(inputs), inputs)
                while len(self._made) >= _KEPT:
                    # Drop the oldest; if it is running, it is closed when it is done.
                    self._made.pop(next(iter(self._made)))
                loaded = self._made[key] = Loaded(*built)
        return loaded

    def _graph(self, inputs: Sequence[Held]) -> Graph:
        return self._sized(inputs) if self._per_size else self._region.graph

    def _sized(self, inputs: Sequence[Held]) -> Graph:
        from fusewire.ops.interpret import bind

        sizes: dict[Symbol, int] = {}
        for value, array in zip(self._region.inputs, inputs, strict=True):
            assert isinstance(value.type, TensorType)
            bind(value.type, shape_of(array), sizes, f"The input {value.name}")
        known: dict[Symbol, Dim] = dict(sizes)
        return bind_symbols(self._region.graph, known)

    def close(self) -> None:
        """Drop the executables; one that is running is closed when it is done."""
        self._made.clear()


def _hand_over(values: Sequence[Held], exchange: Exchange) -> list[Held]:
    return [hand_over(value, exchange) for value in values]


def _to_host(values: Sequence[Held]) -> list[Held]:
    return [to_host(value) for value in values]


def shape_of(value: Held) -> tuple[int, ...]:
    """Return the shape of an array or a buffer; () for other values."""
    if isinstance(value, np.ndarray | np.generic):
        return tuple(value.shape)
    if not isinstance(value, Buffer):
        return ()
    return tuple(dim for dim in value.type.shape if isinstance(dim, int))
