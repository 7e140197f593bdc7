"""Child processes that run cases in parallel; a crash or hang costs one case."""

from __future__ import annotations

import contextlib
import queue
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from fusewire.errors import EngineError, EngineGarbage
from fusewire.process.child import Child
from fusewire.process.confinement import Confinement
from fusewire.process.limits import ChildLimits

WORKER = "fusewire.testing.onnx_suite.worker"
# A refusal is a failure because the backend does not take a node.
Status = Literal["passed", "failed", "refused", "excluded"]
LIMITS = ChildLimits(seconds=180.0, memory_bytes=8 << 30)
_START_SECONDS = 300.0
# Engines leak memory with every program they compile.
_JOBS_PER_CHILD = 1100


@dataclass(frozen=True)
class SuiteOutcome:
    """The result of a case; ``elsewhere`` counts nodes that the backend did not run itself."""

    status: Status
    reason: str = ""
    seconds: float = 0.0
    elsewhere: int = 0


class _Seat:
    """One child, started when it is needed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._child: Child | None = None

    def ask(self, header: dict[str, Any], what: str) -> dict[str, Any]:
        child = self._child
        if child is None or not child.is_usable or child.jobs >= _JOBS_PER_CHILD:
            self.empty()
            child = self._child = Child("onnx_suite", WORKER, confinement=Confinement("open"))
        child.greet(_START_SECONDS)
        return child.ask({**header, "home": str(self._home)}, [], LIMITS, what).header

    def interrupt(self) -> None:
        if self._child is not None:
            self._child.interrupt()

    def empty(self) -> None:
        if self._child is not None:
            self._child.end()


class Crew:
    """Runs cases in ``size`` children at once."""

    def __init__(self, size: int = 2) -> None:
        self._ours = contextlib.ExitStack()
        home = self._ours.enter_context(tempfile.TemporaryDirectory(prefix="onnx_suite"))
        self._threads = ThreadPoolExecutor(size)
        self._seats = [_Seat(Path(home) / str(i)) for i in range(size)]
        self._free: queue.SimpleQueue[_Seat] = queue.SimpleQueue()
        for seat in self._seats:
            self._free.put(seat)

    def names(self) -> list[str]:
        """List all cases; the first call starts a child, which takes some seconds."""
        with self._seated() as seat:
            return list(map(str, seat.ask({}, "the list of cases")["names"]))

    def run(self, side: str, cases: Sequence[str]) -> Iterator[tuple[str, SuiteOutcome]]:
        """Run cases on a side, and yield each as soon as it is done."""
        waiting = {self._threads.submit(self._outcome, side, case): case for case in cases}
        for done in as_completed(waiting):
            yield waiting[done], done.result()

    def _outcome(self, side: str, case: str) -> SuiteOutcome:
        with self._seated() as seat:
            try:
                found = seat.ask({"side": side, "case": case}, case)
            except EngineError as error:
                return SuiteOutcome("failed", error.reason)
        if found.get("status") not in get_args(Status):
            raise EngineGarbage(f"A child answered {found!r} for {case} on {side}.")
        told = str(found["reason"]), float(found["seconds"]), int(found["elsewhere"])
        return SuiteOutcome(found["status"], *told)

    @contextlib.contextmanager
    def _seated(self) -> Iterator[_Seat]:
        seat = self._free.get()
        try:
            yield seat
        finally:
            self._free.put(seat)

    def close(self) -> None:
        """End the children, including busy ones."""
        for seat in self._seats:
            seat.interrupt()
        self._threads.shutdown(cancel_futures=True)
        for seat in self._seats:
            seat.empty()
        self._ours.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
