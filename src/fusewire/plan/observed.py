"""Note what calls do while a profile is on; otherwise no call comes here."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, final

import numpy as np

from fusewire.contract.backend import Held, Into
from fusewire.contract.buffer import Buffer
from fusewire.contract.profiling import KernelTime, Profiled
from fusewire.errors import EngineError
from fusewire.events import EVENTS, EventList, RawEvent
from fusewire.plan.plan import FUNCTION, Region
from fusewire.process.guard import Run, guarded, waited

# The runs of a region that are kept for kernels that come late.
_MOST_RUNS = 100_000


@final
class ObservedRun:
    """Runs an executable to the end, and notes the run and the kernels that its engine reports."""

    def __init__(
        self,
        run: Run,
        backend: str,
        region: Region,
        executable: object = None,
    ) -> None:
        """``executable`` is asked for its kernels, if it can tell; None: they are not asked for."""
        self._run = run
        self._backend = backend
        self._title, self._device = region.title, region.device.id
        self._profiled = executable if isinstance(executable, Profiled) else None
        # The runs whose kernels the engine may tell of at the end.
        self._runs: deque[RawEvent] = deque(maxlen=_MOST_RUNS)
        self._lock = threading.Lock()
        self._running = 0
        self._has_begun = False
        # Who learns of kernels that are known only at the end; None before it.
        self._late: tuple[EventList, ...] | None = None

    def fits(self, run: Run, executable: object) -> bool:
        """Tell whether it runs this, and asks that executable for its kernels."""
        return self._run == run and self._profiled is (
            executable if isinstance(executable, Profiled) else None
        )

    def __call__(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end: a device would go on beside what comes next."""
        if not self._start():
            # The profile ended after this call had found its run.
            return self._run(inputs, into)
        try:
            return self._observed(inputs, into)
        finally:
            self._finish()

    def _observed(self, inputs: Sequence[Held], into: Into) -> list[Held]:
        kernels: Sequence[KernelTime] = ()
        start = perf_counter()
        if self._profiled is None:
            outputs = waited(self._run(inputs, into))
        else:
            outputs, kernels = self._profiled.run_profiled(inputs, into)
        end, thread = perf_counter(), threading.current_thread()
        where = self._backend, self._device, thread.ident or 0, thread.name
        region = RawEvent("region", self._title, start, end, *where)
        EVENTS.add(region)
        if self._profiled is not None:
            self._runs.append(region)
            self._note(kernels, [region], EVENTS.lists)
        return outputs

    def _start(self) -> bool:
        """Count a run, and have the engine begin at the first; False after the end."""
        with self._lock:
            if self._late is not None:
                return False
            self._running += 1
            is_first, self._has_begun = not self._has_begun, True
        if is_first and self._profiled is not None:
            about = {"backend": self._backend, "device": self._device}
            try:
                with EVENTS.span("load", self._title, purpose="to measure kernels", **about):
                    self._profiled.begin_profile()
            except BaseException:
                self._finish()
                raise
        return True

    def _finish(self) -> None:
        """Count the end of a run; the last one after the end of the profile ends it here too."""
        with self._lock:
            self._running -= 1
            late = self._late if self._running == 0 else None
        if late is not None:
            self._end(late)

    def end(self, lists: tuple[EventList, ...]) -> None:
        """Let go of what only profiles need, once no run has it any more; safe to repeat.

        ``lists`` learn of kernels that are known only then.
        """
        with self._lock:
            is_idle = self._late is None and self._running == 0
            self._late = lists if self._late is None else self._late
        if is_idle:
            self._end(lists)

    def _end(self, lists: tuple[EventList, ...]) -> None:
        if self._profiled is None:
            return
        runs = sorted(self._runs, key=lambda run: run.start)
        self._runs.clear()
        with suppress(EngineError):
            profiled = self._profiled
            kernels = guarded(self._backend, "run", "a region", profiled.end_profile)
            self._note(kernels, runs, lists)

    def _note(
        self,
        kernels: Sequence[KernelTime],
        runs: Sequence[RawEvent],
        lists: tuple[EventList, ...],
    ) -> None:
        """Note kernels within the runs that they are parts of."""
        starts = [run.start for run in runs]
        for kernel in kernels:
            # An engine's clock may be off by a little; a part of a run lies within it.
            place = bisect_right(starts, kernel.start) - 1
            run = runs[max(place, 0)] if runs else None
            if run is None:
                return
            begun = min(max(kernel.start, run.start), run.end)
            ended = min(begun + max(kernel.seconds, 0.0), run.end)
            event = run._replace(
                kind="kernel",
                name=kernel.name,
                start=begun,
                end=ended,
                details={"engine_seconds": kernel.seconds},
            )
            for events in lists:
                events.add(event)


@final
class ObservedCall:
    """Runs calls of one signature of a program, and notes them."""

    def __init__(self, run: Callable[[Any], list[Any]], name: str, backend: str) -> None:
        self.unobserved = run
        self._name = name
        self._backend = backend
        # The user's own function has no regions: its call is one.
        self._is_whole = backend == FUNCTION

    def __call__(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Run, and note the call, also one that raises."""
        with EVENTS.span("call", self._name, backend=self._backend):
            if not self._is_whole:
                return self.unobserved(arguments)
            with EVENTS.span("region", self._name, backend=self._backend, device="cpu"):
                return self.unobserved(arguments)


def observed_move(values: Sequence[Held], move: Callable[[Held], Any], memory: str) -> list[Any]:
    """Move values to a memory, and note those that it took something to move."""
    start = perf_counter()
    moved = [move(value) for value in values]
    end = perf_counter()
    pairs = [(x, y) for x, y in zip(values, moved, strict=True) if x is not y]
    if pairs:
        sources = sorted({x.device if isinstance(x, Buffer) else "host" for x, _ in pairs})
        size = sum(map(_size, [y for _, y in pairs]))
        name = f"{', '.join(sources)} to {memory}"
        EVENTS.note("hand-over", name, start, end, "", memory, bytes=size, tensors=len(pairs))
    return moved


def _size(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray | np.generic) else 0
