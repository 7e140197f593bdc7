"""Run regions: a call of an executable and little else. What every call goes through."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy import ndarray

from fusewire.contract.backend import Exchange, Executable, Held, Into
from fusewire.contract.buffer import Buffer
from fusewire.errors import EngineError, EngineRaised, FusewireError, RefusedError, note
from fusewire.events import EVENTS, EventList
from fusewire.ir.dims import Dim, Symbol
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops import limits
from fusewire.ops.limits import RunLimits
from fusewire.plan.fitting import SizeFitting
from fusewire.plan.observed import ObservedRun, observed_move
from fusewire.plan.plan import Plan, Region
from fusewire.plan.transfer import fetched, hand_over, to_host
from fusewire.process.forks import in_forked_child
from fusewire.process.guard import Run, guarded, guarded_run
from fusewire.process.jobs import JOBS, Job

if TYPE_CHECKING:
    from fusewire.plan.recovery import CircuitBreaker, Recovery

# The most executables of a region for an engine that needs sizes: each takes memory.
_KEPT = 64


@dataclass(frozen=True, eq=False)
class Built:
    """A region made ready: ``load`` returns what runs it, and how values enter that.

    If a child tried it, ``outputs`` are what it returned for these inputs; ``keep`` records what it
    compiled, if that is still to do. ``backend`` names the engine, if it is another than planned.
    """

    load: Callable[[], tuple[Executable, Exchange]]
    outputs: list[Any] | None = None
    keep: Callable[[], object] | None = None
    backend: str = ""


class RegionBuilder(Protocol):
    """Makes the regions of a plan ready to run."""

    def build(self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]) -> Built:
        """Build a region from its graph for these sizes, and try it on these inputs.

        Raises EngineRaised if the engine did; then these inputs may be at fault.
        """

    def recovery(self, region: Region) -> Recovery:
        """Make what decides the calls that the engine of a region fails."""

    def note_fallback(self, region: Region, error: EngineError) -> None:
        """Note that a region could not be built, so that the fallback runs it for now."""

    def plans_memory(self, region: Region) -> bool:
        """Tell whether the engine of a region says how many bytes a run takes."""

    def fits_sizes(self, region: Region) -> bool:
        """Tell whether a region is also compiled for sizes that are called often."""

    def may_lose_nan(self, region: Region) -> bool:
        """Tell whether the engine of a region runs nodes of its own that may lose NaN."""

    def exact(self) -> RegionBuilder:
        """Return a builder whose engines keep each NaN and infinity."""

    def build_or_raise(
        self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> Built:
        """Build a region that is served otherwise too: raises where another engine would run it."""

    @property
    def is_served(self) -> bool:
        """Whether nothing of a plan runs in this process."""

    @property
    def plan_body(self) -> Callable[[Graph], Plan] | None:
        """Plans a body of control flow once the sizes of the graph around it are known."""

    @property
    def limits(self) -> RunLimits:
        """The limits of a call, for what the interpreter runs of it."""


Key = tuple[tuple[int, ...], ...]


@final
class Loaded:
    """An executable; ``parts`` has what a call needs, in one place.

    A large model evicts everything else from the caches, so a call should touch few objects.
    They are what to call; whether arrays of any strides, or all that are contiguous, are taken as
    they are; the lock of an engine that takes turns; and a name.
    Calls may be counted, after a failure, and observed, while a profile is on: then it is another
    to call, and calls that are neither cost nothing more. ``region`` is for profiles.
    """

    __slots__ = (
        "__weakref__",
        "_counted",
        "_executable",
        "_plain_parts",
        "_region",
        "exchange",
        "parts",
    )

    def __init__(
        self, name: str, executable: Executable, exchange: Exchange, region: Region | None = None
    ) -> None:
        self.exchange = exchange
        turn = None if executable.is_reentrant else threading.Lock()
        # Such an engine takes any contiguous array.
        is_plain = exchange.alignment <= 1 and not exchange.needs_writable
        is_any = is_plain and executable.takes_any_strides
        run: Run = executable.run
        self.parts = self._plain_parts = (run, is_any, is_plain, turn, name)
        self._executable = executable
        self._counted: Run | None = None
        self._region = region
        LOADED.add(self)
        # Runs after the last run has ended, which holds this object, and not at exit.
        weakref.finalize(self, _close, executable).atexit = False

    def count(self, breaker: CircuitBreaker) -> None:
        """Count the calls from now on, until so many go well that it may stop."""
        # Weak: an executable is closed when nothing refers to it, not when cycles are collected.
        stop = weakref.WeakMethod(self.stop_counting)
        self._counted = breaker.counted(self._executable.run, stop)
        self.choose_run()

    @property
    def is_counted(self) -> bool:
        """Whether its calls are counted."""
        return self._counted is not None

    def stop_counting(self) -> None:
        """Run directly."""
        self._counted = None
        self.choose_run()

    def choose_run(self, ended: tuple[EventList, ...] = ()) -> None:
        """Have the next calls be counted and observed as they should be now.

        ``ended`` are the events of a profile that has ended: an engine that was asked for its
        kernels may know them only now.
        """
        run, before = self._counted, self.parts[0]
        if EVENTS.is_on and self._region is not None:
            may_ask = EVENTS.wants_kernels and not self.is_counted
            executable = self._executable if may_ask else None
            run = run or self._executable.run
            if isinstance(before, ObservedRun) and before.fits(run, executable):
                return
            run = ObservedRun(run, self._plain_parts[-1], self._region, executable)
        self.parts = self._plain_parts if run is None else (run, *self._plain_parts[1:])
        if isinstance(before, ObservedRun):
            before.end((*ended, *EVENTS.lists))

    def run_bytes(self) -> int | None:
        """Return the bytes that a run takes besides inputs and weights; None if nobody says."""
        return guarded(self._plain_parts[-1], "load", "a region", self._executable.run_bytes)


@final
class LoadedSet:
    """The executables of this process, for profiles to find; they may go at any time."""

    def __init__(self) -> None:
        self._items: weakref.WeakSet[Loaded] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, loaded: Loaded) -> None:
        """Add one, and have its calls be observed if a profile is on."""
        with self._lock:
            self._items.add(loaded)
        if EVENTS.is_on:
            loaded.choose_run()

    def choose_runs(self, ended: tuple[EventList, ...] = ()) -> None:
        """Have all be observed, or no longer, after a profile has begun or ended."""
        with self._lock:
            items = list(self._items)
        for loaded in items:
            loaded.choose_run(ended)

    def forget_lock(self) -> None:
        """Start with a new lock in a forked process: a thread may have held the old one."""
        self._lock = threading.Lock()


LOADED = LoadedSet()
in_forked_child(LOADED.forget_lock)


@final
class _Answered(Executable):
    """The outputs that a child returned, for the one call whose inputs it had."""

    def __init__(self, outputs: list[Any]) -> None:
        self._outputs = outputs

    @property
    def is_reentrant(self) -> bool:
        """It computes nothing."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Return the outputs."""
        return self._outputs

    def close(self) -> None:
        """Nothing to close."""


@final
class _Loading:
    """An executable that a job loads while the caller already has the child's answer.

    The job records what was compiled first: a process that ends after one call waits for that,
    and not for an executable that nobody will use.
    """

    def __init__(self, name: str, built: Built, region: Region) -> None:
        self._name = name
        self._built = built
        self._region = region
        self._is_kept = False
        self._loaded: Loaded | None = None
        self._job: Job | None = None

    def start(self) -> None:
        """Load in a job; if no thread can be started, ``result`` does the work."""
        job = Job("loading", "now", self._work, must_end=True)
        with contextlib.suppress(RuntimeError):
            JOBS.put(job)
            # Set afterwards: one that never runs would keep this object alive, and it the job.
            self._job = job

    def _work(self) -> None:
        # ``result`` tries again, and raises what is wrong.
        with contextlib.suppress(OSError, MemoryError, ValueError, FusewireError):
            self._keep()
            if threading.main_thread().is_alive():
                self._loaded = self._load()

    def _keep(self) -> None:
        if self._built.keep is not None and not self._is_kept:
            self._is_kept = True
            self._built.keep()

    def result(self) -> Loaded:
        """Wait for the executable."""
        if self._job is not None:
            self._job.wait()
        self._keep()
        return self._loaded or self._load()

    def _load(self) -> Loaded:
        return Loaded(self._name, *self._built.load(), self._region)


def _close(executable: Executable) -> None:
    """Close an executable; the caller could do nothing about an error."""
    with contextlib.suppress(EngineError):
        guarded("engine", "run", "a region", executable.close)


@final
class RegionRunner:
    """A region and its executables: one, or one per size for an engine that needs sizes.

    An engine that is only faster with sizes has one for any size, and some for those that are
    called often.
    """

    def __init__(self, region: Region, builder: RegionBuilder, is_last: bool = False) -> None:
        """``is_last``: its outputs go to the caller, on the host."""
        self._region = region
        self._is_last = is_last
        self._builder = builder
        self._symbols = {s for v in region.inputs for s in type_symbols(v.type)}
        self._fitting = SizeFitting(region) if builder.fits_sizes(region) else None
        needs_sizes = region.shapes != "dynamic" and bool(self._symbols)
        self._per_size = needs_sizes or self._fitting is not None
        self._made: dict[Key, Loaded] = {}
        # What threads load, after a child answered the first call.
        self._loading: dict[Key, _Loading] = {}
        self._lock = threading.RLock()
        # Made at the first failure.
        self._recovery: Recovery | None = None
        self._breakers: dict[Key, CircuitBreaker] = {}
        # The engine of the plan, and those that took its place.
        self._engines = {region.backend}
        self._is_closed = False

    def run(
        self, inputs: Sequence[Held], into: Into = (), keeps_buffers: bool = False
    ) -> list[Held]:
        """Run on values from anywhere. What stays on a device is not waited for.

        Outputs may be written where ``into`` says, as in ``Executable.run``. With
        ``keeps_buffers``, also the last region of a plan leaves its outputs where they are.
        """
        # Every call of a program comes this way: loops that end early, and few calls.
        key = tuple(map(shape_of, inputs)) if self._per_size else ()
        loaded = self._made.get(key) or self._make(key, inputs)
        run, is_any, is_plain, turn, name = loaded.parts
        taken = inputs
        try:
            for value in inputs:
                if type(value) is ndarray and (is_any or (is_plain and value.flags.c_contiguous)):
                    continue
                taken = guarded(name, "run", "a region", _hand_over, inputs, loaded.exchange)
                break
            if turn is None:
                found = guarded_run(name, run, taken, into)
            else:
                with turn:
                    found = guarded_run(name, run, taken, into, waits=True)
            if self._is_last and not keeps_buffers:
                for value in found:
                    if type(value) is not ndarray:
                        return guarded(name, "run", "a region", _to_host, found)
            return found
        except EngineError as error:
            return self.recover(inputs, error)

    def run_bytes(self, inputs: Sequence[Held]) -> int | None:
        """Return the bytes that the engine planned for such a run; None if it does not say.

        Builds the region, unless nothing would be known then.
        """
        if not self._builder.plans_memory(self._region):
            return None
        key = tuple(map(shape_of, inputs)) if self._per_size else ()
        if key not in self._made:
            self._make(key, inputs)
        # A child may have answered the first, and another thread loads it.
        loaded = self._made.get(key) or self._make(key, inputs)
        return loaded.run_bytes()

    def recover(self, inputs: Sequence[Held], error: EngineError) -> list[Held]:
        """Answer a call that the engine failed, as the fallback does, or raise."""
        from fusewire.plan.recovery import DECIDABLE

        if not isinstance(error, DECIDABLE):
            raise error
        key = tuple(map(shape_of, inputs)) if self._per_size else ()
        if self._fitting is not None and key not in self._made:
            key = ()
        recovery, region = self._recovering(), self._region
        with EVENTS.span(
            "fallback", region.title, backend=recovery.fallback, engine=region.backend
        ):
            outputs = recovery.decide(inputs, error)
        with self._lock:
            loaded, breaker = self._made.get(key), self._breaker(key)
            # If it is not the engine's, another call that failed has replaced it.
            if loaded is not None and loaded.parts[-1] in self._engines:
                self._count_failure(key, loaded, breaker)
        return outputs

    def _count_failure(self, key: Key, loaded: Loaded, breaker: CircuitBreaker) -> None:
        """Count the calls of an engine from its first failure on; it rests if it keeps failing."""
        is_first = not loaded.is_counted
        if breaker.fail(is_first):
            self._rest(key, breaker, lambda: self._made.__setitem__(key, loaded))
        elif is_first:
            loaded.count(breaker)

    def _rest(
        self,
        key: Key,
        breaker: CircuitBreaker,
        end_rest: Callable[[], object],
        seconds: float = 0.0,
    ) -> Loaded:
        """Put the fallback in the place of an engine for a while."""
        from fusewire.plan.recovery import RestingEngine

        recovery = self._recovering()
        breaker.rest(seconds)
        resting = RestingEngine(recovery.executable, breaker, end_rest)
        loaded = self._made[key] = Loaded(
            recovery.fallback, resting, recovery.exchange, self._region
        )
        return loaded

    def _recovering(self) -> Recovery:
        with self._lock:
            if self._recovery is None:
                self._recovery = self._builder.recovery(self._region)
            return self._recovery

    def _breaker(self, key: Key) -> CircuitBreaker:
        from fusewire.plan.recovery import CircuitBreaker

        while len(self._breakers) > _KEPT:
            self._breakers.pop(next(iter(self._breakers)))
        return self._breakers.setdefault(key, CircuitBreaker(self._recovering()))

    def _make(self, key: Key, inputs: Sequence[Held]) -> Loaded:
        with self._lock:
            loaded = self._made.get(key)
            if loaded is None and key and self._fitting and not self._fitting.is_first(key):
                return self._unfitted(self._fitting, key, inputs)
            if loaded is None:
                start = time.monotonic()
                region = self._region
                about = {"backend": region.backend, "device": region.device.id}
                with EVENTS.span("prepare", region.title, **about):
                    loaded = self._load_or_rest(key, inputs)
                if self._is_closed:
                    # Only the call that is running needs it.
                    self.close()
                if (meter := limits.meter()) is not None:
                    meter.allow(time.monotonic() - start)
        return loaded

    def _unfitted(self, fitting: SizeFitting, key: Key, inputs: Sequence[Held]) -> Loaded:
        """Return what serves any size; behind it, the engine compiles for those that come often."""
        loaded = self._made.get(())
        if loaded is None:
            return self._make((), inputs)
        if fitting.is_due(key):
            # The caller may change the arrays after the call.
            copies = [np.array(fetched(value)) for value in inputs]
            work = partial(self._fit, fitting.region, key, copies)
            # A process that ends waits for it: engines abort if it ends while they compile.
            with contextlib.suppress(RuntimeError):
                JOBS.put(Job("fitting", "compile", work, must_end=True))
        return loaded

    def _fit(self, region: Region, key: Key, inputs: Sequence[Held]) -> None:
        """Compile for sizes, and have their calls run that."""
        try:
            built = self._builder.build_or_raise(region, lambda: self._sized(inputs), inputs)
            if not threading.main_thread().is_alive() or self._is_closed:
                return
            loaded = _Loading(region.backend, built, self._region).result()
        except (FusewireError, OSError, MemoryError, ValueError) as error:
            note(f"{region.backend} does not compile for sizes that are called often: {error}")
            return
        with self._lock:
            self._made[key] = loaded
            if self._is_closed:
                self._made.pop(key)

    def _load_or_rest(self, key: Key, inputs: Sequence[Held]) -> Loaded:
        if key and self._fitting is not None:
            try:
                return self._load(key, inputs)
            except (EngineError, RefusedError) as error:
                note(f"{self._region.backend} does not compile for the sizes of a call: {error}")
                self._fitting.leave_out(key)
                return self._made.get(()) or self._load_or_rest((), inputs)
        start = time.monotonic()
        try:
            return self._load(key, inputs)
        except EngineRaised as error:
            seconds = time.monotonic() - start
            # Raises if the values are at fault; then the next call builds it.
            self._recovering().decide(inputs, error)
            self._builder.note_fallback(self._region, error)
            return self._rest(key, self._breaker(key), lambda: self._made.pop(key, None), seconds)

    def _load(self, key: Key, inputs: Sequence[Held]) -> Loaded:
        """Build and load it; at first, return the answer of the child that tried it."""
        name, loading = self._region.backend, self._loading.pop(key, None)
        if loading is None:
            while len(self._made) + len(self._loading) >= _KEPT:
                # Drop the oldest; if it is running, it is closed when it is done.
                oldest: dict[Key, Any] = self._made or self._loading
                oldest.pop(next(iter(oldest)))
            # With a key, it is made for these sizes alone.
            graph = partial(self._sized, inputs) if key else lambda: self._region.graph
            region, build = self._region, self._builder.build
            if key and self._fitting is not None:
                # Where that fails, there is what runs any size.
                region, build = self._fitting.region, self._builder.build_or_raise
            built = build(region, graph, inputs)
            name = built.backend or name
            self._engines.add(name)
            loading = _Loading(name, built, self._region)
            if built.outputs is not None and key not in self._breakers:
                loading.start()
                self._loading[key] = loading
                return Loaded(name, _Answered(built.outputs), Exchange(needs_contiguous=False))
        loaded = self._made[key] = loading.result()
        if key in self._breakers:
            loaded.count(self._breakers[key])
        return loaded

    def _sized(self, inputs: Sequence[Held]) -> Graph:
        from fusewire.ir.builder import bind_symbols
        from fusewire.ops.interpret import bind

        sizes: dict[Symbol, int] = {}
        for value, array in zip(self._region.inputs, inputs, strict=True):
            assert isinstance(value.type, TensorType)
            bind(value.type, shape_of(array), sizes, f"The input {value.name}")
        known: dict[Symbol, Dim] = dict(sizes)
        return bind_symbols(self._region.graph, known)

    def close(self) -> None:
        """Drop the executables; one that is running is closed when it is done.

        A call that had begun may still build one, which is not kept.
        """
        self._is_closed = True
        self._made.clear()
        self._loading.clear()


def _hand_over(values: Sequence[Held], exchange: Exchange) -> list[Held]:
    if EVENTS.is_on:
        return observed_move(values, lambda value: hand_over(value, exchange), exchange.memory)
    return [hand_over(value, exchange) for value in values]


def _to_host(values: Sequence[Held]) -> list[Held]:
    if EVENTS.is_on:
        return observed_move(values, to_host, "host")
    return [to_host(value) for value in values]


def shape_of(value: Held) -> tuple[int, ...]:
    """Return the shape of an array or a buffer; () for other values."""
    if isinstance(value, np.ndarray | np.generic):
        return tuple(value.shape)
    return value.shape if isinstance(value, Buffer) else ()
