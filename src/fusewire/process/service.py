"""Engines that stay in a child process, where every call has a deadline and a memory limit.

A ``Service`` has one child at a time, and starts another when it dies. Several threads call at
once, each over a lane of its own. A call during which the child died is repeated once, while no
other call runs: so the call that is to blame dies alone, and those that ran beside it get their
answers. A call that reaches its deadline is not repeated, unless another ran nearly as long beside
it, nor is one that used too much memory while no other ran.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TypeVar, final

from fusewire.contract.backend import Artifact, Device
from fusewire.ir.graph import Array
from fusewire.process.arena import Arena
from fusewire.process.forks import in_forked_child
from fusewire.process.lanes import LANES, Fault, Loadable, Replay, ServedChild
from fusewire.process.limits import ChildLimits
from fusewire.process.serving import LANE_BYTES

Answer = TypeVar("Answer")


class _State:
    """What a service has to end; a finalizer holds it."""

    def __init__(self) -> None:
        self.arena = Arena(LANES * LANE_BYTES)
        self.served: ServedChild | None = None

    def end(self) -> None:
        if self.served is not None:
            self.served.end()
            self.served = None
        self.arena.close()


@final
class Service:
    """Serves the executables of one backend; ends its child when nobody refers to it."""

    def __init__(self, reference: str, limits: ChildLimits) -> None:
        self.reference = reference
        self.limits = limits
        # How many children have died so far.
        self.deaths = 0
        self._numbers = itertools.count(1)
        self._dropped: list[int] = []
        self._start()
        _SERVICES.add(self)

    def _start(self) -> None:
        self._state = _State()
        self._end = weakref.finalize(self, self._state.end)
        self._lock = threading.Lock()
        self._gate = threading.Condition(self._lock)
        self._waiting = 0
        self._idle = list(range(LANES))
        self._is_exclusive = False
        self._waiting_alone = 0

    @property
    def arena(self) -> Arena:
        """The memory that is shared with the child."""
        return self._state.arena

    @property
    def pid(self) -> int | None:
        """The process id of the child, if there is one."""
        served = self._state.served
        return None if served is None else served.pid

    @property
    def loaded(self) -> int:
        """How many executables the child holds."""
        served = self._state.served
        return 0 if served is None else len(served.loaded)

    def loadable(
        self, artifact: Artifact, device: Device, weights: Mapping[str, Array]
    ) -> Loadable:
        """Number an artifact, for every child of this service."""
        return Loadable(next(self._numbers), artifact, device, weights)

    def drop(self, loadable: Loadable) -> None:
        """Have the child close an executable, when it is next asked for something."""
        # Called by finalizers, so in any thread, whatever locks it holds.
        self._dropped.append(loadable.number)

    def load(self, loadable: Loadable) -> bool:
        """Load an artifact; returns whether several threads may run it at once."""
        return self.call(loadable, lambda served, lane: served.load(loadable))

    def call(self, loadable: Loadable, work: Callable[[ServedChild, int], Answer]) -> Answer:
        """Do some work on a lane of a child that has loaded an artifact."""
        try:
            return self._attempt(loadable, work, False)
        except Replay:
            return self._attempt(loadable, work, True)

    def _attempt(
        self, loadable: Loadable, work: Callable[[ServedChild, int], Answer], is_alone: bool
    ) -> Answer:
        served, lane = self._enter(is_alone)
        try:
            if self._dropped or loadable.number not in served.loaded:
                served.begin(lane)
                served.load(loadable, self._taken_drops())
            served.begin(lane)
            return work(served, lane)
        except Fault as fault:
            # The traceback keeps the memory of the call until the child is dead.
            outcome = served.blame(fault, lane, is_alone)
        finally:
            served.finish(lane)
            self._leave(lane, is_alone)
        try:
            raise outcome
        finally:
            # Otherwise it refers to itself, by its traceback.
            del outcome

    def _taken_drops(self) -> list[int]:
        dropped = []
        while self._dropped:
            dropped.append(self._dropped.pop())
        return dropped

    def _enter(self, is_alone: bool) -> tuple[ServedChild, int]:
        """Take a lane of a child that is alive; alone, wait until no other call runs."""
        with self._lock:
            if not self._may_enter(is_alone):
                self._wait_to_enter(is_alone)
            lane = self._idle.pop()
            served = self._state.served
            if served is not None and served.error is None:
                self._is_exclusive = is_alone
                return served, lane
            self._is_exclusive = True
        try:
            return self._restarted(), lane
        except BaseException:
            self._leave(lane, True)
            raise
        finally:
            if not is_alone:
                self._open()

    def _wait_to_enter(self, is_alone: bool) -> None:
        self._waiting += 1
        self._waiting_alone += is_alone
        try:
            while not self._may_enter(is_alone):
                self._gate.wait()
        finally:
            self._waiting -= 1
            self._waiting_alone -= is_alone

    def _may_enter(self, is_alone: bool) -> bool:
        if self._is_exclusive:
            return False
        served = self._state.served
        # Descriptors of a dead child are closed when nobody polls them.
        if is_alone or served is None or served.error is not None:
            return len(self._idle) == LANES
        return bool(self._idle) and not self._waiting_alone

    def _restarted(self) -> ServedChild:
        state = self._state
        if state.served is not None:
            self.deaths += 1
            state.served.end()
            state.served = None
        state.served = ServedChild(self.reference, state.arena, self.limits)
        return state.served

    def _leave(self, lane: int, is_alone: bool) -> None:
        with self._lock:
            self._idle.append(lane)
            if is_alone:
                self._is_exclusive = False
            if self._waiting:
                self._gate.notify_all()

    def _open(self) -> None:
        with self._lock:
            self._is_exclusive = False
            self._gate.notify_all()

    def close(self) -> None:
        """End the child; a later call starts another."""
        with self._lock:
            self._waiting += 1
            while self._is_exclusive or len(self._idle) < LANES:
                self._gate.wait()
            self._waiting -= 1
            if self._state.served is not None:
                self._state.served.end()
                self._state.served = None

    def forget(self) -> None:
        """Start again in a forked process: the child and the memory belong to its parent."""
        self._end.detach()
        if self._state.served is not None:
            self._state.served.forget()
        self._start()


_SERVICES: weakref.WeakSet[Service] = weakref.WeakSet()


def deaths() -> int:
    """Count the children that have died of all services that this process still has."""
    return sum(service.deaths for service in list(_SERVICES))


def _after_fork() -> None:
    for service in list(_SERVICES):
        service.forget()


in_forked_child(_after_fork)
