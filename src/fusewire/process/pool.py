"""A pool of child processes, one per backend, replaced when dead or old."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from fusewire.contract.model_file import ModelFile, known_constants
from fusewire.dtypes import string
from fusewire.errors import EngineGarbage, IsolationError
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.text import INLINE_BYTES, print_graph
from fusewire.ops.outside import OUTSIDE
from fusewire.process.child import Child
from fusewire.process.codec import TEXT, write_value
from fusewire.process.confinement import Closing, Confinement, MissingVariables
from fusewire.process.forks import in_forked_child
from fusewire.process.frames import Blobs
from fusewire.process.guard import BY_CODE, CALLERS
from fusewire.process.limits import ChildLimits

Answer = TypeVar("Answer")
# Constants that a child may hold.
_KEPT_BYTES = 1 << 30


@dataclass(frozen=True)
class _Sent:
    """A constant that a child holds, as far as its parent must know it."""

    size: int
    # It must not keep the constant.
    told: weakref.ref[Callable[[], bool]]

    def is_current(self) -> bool:
        """Tell whether the constant is still in use, and was not written to."""
        is_current = self.told()
        return is_current is not None and is_current()


class Seat:
    """The child of a backend, and what that child holds."""

    def __init__(self, confinement: Confinement = Confinement()) -> None:
        self.confinement = confinement
        self._reference = ""
        self.lock = threading.Lock()
        self.child: Child | None = None
        self.constants: dict[str, _Sent] = {}
        self.executables: list[str] = []
        # The inputs that were timed last.
        self.inputs: object = None

    def fill(self, reference: str, jobs: int) -> Child:
        """Return the child, a new one if there is none that can be used."""
        child = self.child
        if child is None or not child.is_usable or child.jobs >= jobs:
            self.empty()
            self._reference = reference
            child = self.child = Child(reference, confinement=self.confinement)
        return child

    @property
    def held_before(self) -> int:
        """The resident bytes of the child when it began its last job."""
        return 0 if self.child is None else self.child.held_before

    def empty(self) -> None:
        """End the child, and forget what it held."""
        if self.child is not None:
            self.child.end()
        self.child, self.constants, self.executables, self.inputs = None, {}, [], None

    def written(self, region: Graph, blobs: Blobs, file: ModelFile | None = None) -> dict[str, Any]:
        """Write a region as the last part of a job, without constants that the child holds."""
        known = known_constants(region, file)
        needed = {
            digest: constant
            for digest, constant in known.items()
            if constant.array.nbytes > INLINE_BYTES and constant.type.dtype is not string
        }
        new, job = self._new_constants(needed)
        blobs.append(np.frombuffer(print_graph(region).encode(), np.uint8))
        if file is not None:
            blobs.append(np.frombuffer(file.payload, np.uint8))
            job["file"] = [file.format, file.digest, list(file.weights)]
        constants = {digest: write_value(x.array, blobs) for digest, x in new.items()}
        kept = [digest for digest, x in known.items() if x.is_held]
        return {**job, "has_region": True, "constants": constants, "kept": kept}

    def lent(self, weights: Mapping[str, Constant], blobs: Blobs) -> dict[str, Any]:
        """Write the weights of an artifact, in place of a region, as the last part of a job."""
        new, job = self._new_constants(weights)
        constants = {digest: write_value(x.array, blobs) for digest, x in new.items()}
        return {**job, "has_region": False, "constants": constants, "lent": list(weights)}

    def _new_constants(
        self, needed: Mapping[str, Constant]
    ) -> tuple[dict[str, Constant], dict[str, Any]]:
        """Return the constants that the child lacks, and a job that has it forget others."""
        # One that was written to meanwhile may have been so before it was sent.
        held = {digest for digest, sent in self.constants.items() if sent.is_current()}
        new = {digest: constant for digest, constant in needed.items() if digest not in held}
        sent = {
            digest: _Sent(x.array.nbytes, weakref.ref(x.is_current)) for digest, x in new.items()
        }
        forget: list[str] = []
        if sum(x.size for x in (*self.constants.values(), *sent.values())) > _KEPT_BYTES:
            forget = [digest for digest in self.constants if digest not in needed]
        for digest in forget:
            del self.constants[digest]
        self.constants |= sent
        return new, {"forget": forget, "ops": OUTSIDE.references()}

    def ask(
        self,
        header: dict[str, Any],
        blobs: Blobs,
        limits: ChildLimits,
        what: str,
        read: Callable[[Any, Iterator[Array]], Answer],
    ) -> Answer:
        """Run a job and read the answer; raises EngineError if there is none."""
        child = self.child
        assert child is not None, "the seat was filled"
        child.limit_processor(limits.seconds)
        try:
            frame = child.ask(header, blobs, limits, what)
        except MissingVariables:
            # It said so at its first job, so this one has all that a new child needs.
            child = self.child = Child(self._reference, confinement=self.confinement)
            child.greet(limits.seconds)
            child.limit_processor(limits.seconds)
            frame = child.ask(header, blobs, limits, what)
        except EngineGarbage:
            # What could not be sent was already noted as held.
            self.empty()
            raise
        given = iter(frame.blobs)
        try:
            if "error" in frame.header:
                raise reported_error(frame.header["error"])
            answer = read(frame.header.get("result"), given)
            if next(given, None) is not None:
                raise EngineGarbage("more blobs than expected")
        except EngineGarbage as error:
            if error.advice:
                raise
            # A child that gave one malformed answer is not asked again.
            raise child.post_mortem(EngineGarbage, error.reason, what) from None
        return answer


def reported_error(about: Any) -> Exception:
    """Rebuild the error that a child reports."""
    row = about if isinstance(about, dict) else {}
    code, reason, advice = (
        TEXT.read(row.get(x, ""), iter(())) for x in ("code", "reason", "advice")
    )
    for kind in CALLERS:
        if code == kind.__name__:
            return kind(reason)
    if code not in BY_CODE or not reason:
        return EngineGarbage(f"a malformed error: {repr(about)[:80]}")
    return BY_CODE[code](reason, advice)


class _Gate:
    """Lets one thread at a time run jobs while no other thread does, in all pools."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # How many jobs each thread runs, one within another.
        self._running: Counter[int] = Counter()
        self._alone: int | None = None

    @contextlib.contextmanager
    def job(self) -> Iterator[None]:
        """Run a job, when nobody wants to be alone."""
        me = threading.get_ident()
        with self._changed:
            # A job within one that runs must not wait: who wants to be alone waits for it.
            self._changed.wait_for(lambda: self._alone in (None, me) or self._running[me] > 0)
            self._running[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[me] -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Keep other threads from starting jobs; tells whether those that ran ended in time."""
        me = threading.get_ident()
        with self._changed:
            is_mine = self._changed.wait_for(lambda: self._alone is None, seconds)
            if is_mine:
                self._alone = me
            is_alone = is_mine and self._changed.wait_for(
                lambda: not any(n for thread, n in self._running.items() if thread != me), seconds
            )
        try:
            yield is_alone
        finally:
            with self._changed:
                if is_mine:
                    self._alone = None
                self._changed.notify_all()


_GATE = _Gate()
_POOLS: weakref.WeakSet[ChildPool] = weakref.WeakSet()
# How long to wait for the jobs of other threads.
_ALONE_SECONDS = 20.0


@contextlib.contextmanager
def alone() -> Iterator[bool]:
    """Run jobs while no other child of this process runs any; tells whether that is so.

    Children that are idle are ended, because they hold memory.
    """
    with _GATE.alone(_ALONE_SECONDS) as is_alone:
        for pool in list(_POOLS):
            pool.end_idle()
        yield is_alone


class ChildPool:
    """The children of this process. Thread-safe; jobs of one backend take turns."""

    def __init__(
        self,
        jobs_per_child: int = 256,
        start_seconds: float = 60.0,
        closing: Closing = "run",
    ) -> None:
        self._closing = closing
        self._jobs_per_child = jobs_per_child
        self._start_seconds = start_seconds
        self._is_closed = False
        self._lock = threading.Lock()
        self._seats: dict[str, Seat] = {}
        _POOLS.add(self)
        atexit.register(self.close)
        in_forked_child(functools.partial(_after_fork, weakref.ref(self)))

    def forget(self) -> None:
        """Start empty in a forked process: the children belong to its parent."""
        self._lock = threading.Lock()
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            if seat.child is not None:
                seat.child.forget()

    def _seat(self, reference: str, programs: tuple[str, ...] = ()) -> Seat:
        confinement = Confinement("compile" if programs else self._closing, programs)
        key = f"{reference} with {', '.join(programs)}" if programs else reference
        with self._lock:
            return self._seats.setdefault(key, Seat(confinement))

    def _fill(self, seat: Seat, reference: str) -> Child:
        if self._is_closed:
            raise IsolationError("The pool of child processes is closed. Create another.")
        return seat.fill(reference, self._jobs_per_child)

    def prepare(self, reference: str) -> None:
        """Start a child without waiting for it, so that the first job finds it ready."""
        seat = self._seat(reference)
        with seat.lock:
            self._fill(seat, reference)

    @contextlib.contextmanager
    def seated(
        self, reference: str, programs: tuple[str, ...] = ()
    ) -> Iterator[tuple[Seat, float]]:
        """Take a backend's child for a job, with the seconds it took to start, 0 if running.

        With ``programs`` it is a child that compiles, and may start these.
        """
        seat = self._seat(reference, programs)
        with _GATE.job(), seat.lock:
            child = self._fill(seat, reference)
            yield seat, child.greet(self._start_seconds)

    def pid(self, reference: str) -> int | None:
        """Return the process id of a backend's child, if there is one."""
        seat = self._seats.get(reference)
        child = None if seat is None else seat.child
        return None if child is None else child.pid

    def end_idle(self) -> None:
        """End the children that nobody uses at the moment; what they held is loaded again."""
        for seat in list(self._seats.values()):
            if seat.lock.acquire(blocking=False):
                try:
                    seat.empty()
                finally:
                    seat.lock.release()

    def release(self, reference: str) -> None:
        """End a backend's child that is no longer needed."""
        with self._lock:
            keys = [x for x in self._seats if x == reference or x.startswith(f"{reference} with ")]
            seats = [self._seats[key] for key in keys]
        for seat in seats:
            with seat.lock:
                seat.empty()

    def close(self) -> None:
        """End all children, including busy ones; safe to repeat."""
        atexit.unregister(self.close)
        with self._lock:
            self._is_closed = True
            seats = list(self._seats.values())
        for seat in seats:
            if (child := seat.child) is not None:
                child.interrupt()
            with seat.lock:
                seat.empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _after_fork(forked: weakref.ref[ChildPool]) -> None:
    # Threads of the parent may hold it, and are not here.
    global _GATE
    _GATE = _Gate()
    if (pool := forked()) is not None:
        pool.forget()


@functools.cache
def shared_pool() -> ChildPool:
    """Return the default pool; it is closed when the process ends."""
    return ChildPool()
