"""A child in service, as the parent sees it: calls over lanes, watched while they wait.

Answers are not trusted. Their headers are copied out of shared memory before they are read.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Artifact, Device
from fusewire.errors import (
    BackendCrashed,
    BackendHung,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
)
from fusewire.ir.graph import Array
from fusewire.process.arena import Arena
from fusewire.process.child import TICK, Child, not_started
from fusewire.process.codec import FLAG, WHOLE_OR_NONE, Written, write_record, write_value
from fusewire.process.frames import Blobs
from fusewire.process.limits import ChildLimits
from fusewire.process.link import is_ready
from fusewire.process.pool import reported_error
from fusewire.process.serving import HEADER, LANE_BYTES, SIGNAL
from fusewire.system.polling import READ, poller, unblock

LANES = 8
_START_SECONDS = 60.0
_MODULE = "fusewire.process.serving"


class Fault(Exception):
    """The child did not answer a call; ``error`` if it was examined already."""

    def __init__(
        self, kind: type[EngineError], found: str = "", error: EngineError | None = None
    ) -> None:
        super().__init__(found)
        self.kind = kind
        self.found = found
        self.error = error


class Replay(Exception):
    """A call that may not be to blame for the death of its child, and is to be repeated alone."""


@dataclass(frozen=True, eq=False)
class Loadable:
    """An artifact as a child loads it, also again after another child has died."""

    number: int
    artifact: Artifact
    device: Device
    weights: Mapping[str, Array]


class _Lane:
    """The parent's ends of a lane."""

    def __init__(self, start: int, requests: int, replies: int) -> None:
        self.start = start
        self.requests = requests
        self.replies = replies
        self.number = 0
        # When the call in progress began; 0 if there is none.
        self.since = 0.0
        self.poller = poller()
        self.poller.register(replies, READ)


class ServedChild:
    """A child with lanes; used until it dies, which ``error`` then explains."""

    def __init__(self, reference: str, arena: Arena, limits: ChildLimits) -> None:
        self.error: EngineError | None = None
        self._limits = limits
        self._arena = arena
        self._memory = arena.map
        # The executables it holds, and whether several threads may run them.
        self.loaded: dict[int, bool] = {}
        self._blaming = threading.Lock()
        self._control = threading.Lock()
        self._ours = contextlib.ExitStack()
        try:
            self._start(reference, arena)
        except OSError as error:
            self.end()
            raise not_started(reference, str(error)) from error
        except BaseException:
            self.end()
            raise
        self._most = limits.resident_bytes(0)
        self._looked = time.monotonic()
        self._looks = 0

    def _start(self, reference: str, arena: Arena) -> None:
        with contextlib.ExitStack() as theirs:
            ends = [self._lane_ends(theirs, index) for index in range(LANES)]
            self._lanes = [lane for lane, _ in ends]
            shared = [arena.descriptor, *(end for _, pair in ends for end in pair)]
            self._child = Child(reference, _MODULE, shared, is_watched=True)
        self._ours.callback(self._child.end)
        for lane in self._lanes:
            lane.poller.register(self._child.polled.alive, READ)
            lane.poller.register(self._child.noise.descriptor, READ)
        self._child.greet(_START_SECONDS)

    def _lane_ends(self, theirs: contextlib.ExitStack, index: int) -> tuple[_Lane, tuple[int, int]]:
        asked, ask = os.pipe()
        hear, told = os.pipe()
        for stack, end in ((theirs, asked), (self._ours, ask), (self._ours, hear), (theirs, told)):
            stack.callback(os.close, end)
        unblock(hear)
        return _Lane(index * LANE_BYTES, ask, hear), (asked, told)

    @property
    def pid(self) -> int:
        return self._child.pid

    def load(self, loadable: Loadable, dropped: Sequence[int] = ()) -> bool:
        """Load an artifact unless it is loaded; returns whether several threads may run it."""
        known = self.loaded.get(loadable.number)
        if known is not None and not dropped:
            return known
        with self._control:
            known = self.loaded.get(loadable.number)
            job: dict[str, Any] = {"kind": "ping"}
            blobs: Blobs = []
            if known is None:
                weights, device = loadable.weights, write_record(loadable.device, blobs)
                job = {"kind": "load", "held": str(loadable.number), "device": device}
                job["artifact"] = write_record(loadable.artifact, blobs)
                job["weights"] = {name: write_value(x, blobs) for name, x in weights.items()}
            job["drop"] = [str(x) for x in dropped if self.loaded.pop(x, None) is not None]
            sent = sum(blob.nbytes for blob in blobs)
            # Calls on other lanes look at its memory meanwhile.
            self._most = self._limits.resident_bytes(self._child.kept + sent)
            result = self._asked(job, blobs, self._limits)
            self._child.kept += sent
            if known is None:
                known = self.loaded[loadable.number] = _read(FLAG, result)
        return known

    def run_bytes(self, loadable: Loadable) -> int | None:
        """Ask how many bytes a run of what is loaded takes; None if the engine does not say."""
        job = {"kind": "weigh", "held": str(loadable.number)}
        with self._control:
            result = self._asked(job, [], self._limits)
        count: int | None = _read(WHOLE_OR_NONE, result)
        return count

    def _asked(self, job: dict[str, Any], blobs: Blobs, limits: ChildLimits) -> Any:
        try:
            frame = self._child.ask(job, blobs, limits, "a region")
        except EngineError as error:
            raise Fault(type(error), error=_copy(error)) from None
        if "error" in frame.header:
            raise reported_error(frame.header["error"])
        return frame.header.get("result")

    def begin(self, index: int) -> None:
        """Note that a call begins on a lane."""
        self._lanes[index].since = time.monotonic()

    def finish(self, index: int) -> None:
        """Note that no call uses a lane."""
        self._lanes[index].since = 0.0

    def call(self, index: int, request: bytes) -> bytes:
        """Send a request over a lane and return the answer; raises Fault if there is none."""
        lane = self._lanes[index]
        lane.number += 1
        size, start = len(request), lane.start
        if size > HEADER:
            raise EngineGarbage(f"a header of {size} bytes; the limit is {HEADER}")
        self._memory[start : start + size] = request
        try:
            os.write(lane.requests, SIGNAL.pack(lane.number, size))
            return self._waited(lane)
        except BrokenPipeError:
            raise Fault(BackendCrashed) from None
        except (Fault, EngineError):
            raise
        except BaseException:
            # Interrupted: nobody will read the answer.
            self._child.kill()
            raise

    def _waited(self, lane: _Lane) -> bytes:
        seconds, poll, replies = self._limits.seconds, lane.poller.poll, lane.replies
        now = lane.since
        deadline = now + seconds
        while now < deadline:
            for descriptor, _ in poll(math.ceil(min(TICK, deadline - now) * 1000)):
                if descriptor == replies:
                    answer = self._answer(lane)
                    if time.monotonic() - self._looked > TICK:
                        self._look()
                    return answer
                if descriptor == self._child.noise.descriptor:
                    if not self._child.noise.drain():
                        lane.poller.unregister(descriptor)
                elif not is_ready(0.0, replies):
                    raise Fault(BackendCrashed)
            now = time.monotonic()
            if now - self._looked > TICK:
                self._look()
        raise Fault(BackendHung, f"the limit is {seconds:g} seconds")

    def _answer(self, lane: _Lane) -> bytes:
        """Copy an answer out of shared memory."""
        signal = os.read(lane.replies, 4 * SIGNAL.size)
        if not signal:
            raise Fault(BackendCrashed)
        number, length = SIGNAL.unpack(signal) if len(signal) == SIGNAL.size else (0, 0)
        if number != lane.number or not 0 < length <= HEADER:
            raise Fault(EngineGarbage, f"{signal.hex()} where an answer should be")
        start = lane.start + HEADER
        return self._memory[start : start + length]

    def _look(self) -> None:
        """Measure the memory of the child."""
        self._looked = time.monotonic()
        self._looks += 1
        used = self._child.memory(self._looks) + self._arena.strayed()
        most = max(self._most, self._child.floor)
        if used > most:
            found = f"it used {used >> 20} MiB; the limit is {most >> 20}"
            raise Fault(EngineOutOfMemory, found)

    def blame(self, fault: Fault, index: int, is_alone: bool) -> EngineError | Replay:
        """Kill the child, and say what a call that found a fault gets.

        ``is_alone`` if it is repeated already.
        """
        kind = fault.kind
        with self._blaming:
            if self.error is not None:
                return _copy(self.error) if is_alone else Replay()
            now, own = time.monotonic(), self._lanes[index]
            others = [now - x.since for x in self._lanes if x.since and x is not own]
            self.error = fault.error or self._child.post_mortem(
                kind, fault.found, "a region", "run"
            )
            self._arena.trim()
        if kind is EngineOutOfMemory:
            is_own = not others
        else:
            # A call that runs nearly as long may be the one that hangs, and keep this one from
            # running: engines can hold the interpreter lock.
            is_slowed = any(seconds > self._limits.seconds / 2 for seconds in others)
            is_hung = issubclass(kind, BackendHung) and not is_slowed
            is_own = is_hung or kind is EngineGarbage
        return _copy(self.error) if is_alone or is_own else Replay()

    def end(self) -> None:
        """Kill the child and close all descriptors; nobody else may use it."""
        self._ours.close()

    def forget(self) -> None:
        """Release it without killing: after a fork, the process belongs to the parent."""
        self._child.forget()
        self._ours.close()


def _read(kind: Written, result: Any) -> Any:
    """Read what a child answers; it may say anything."""
    try:
        return kind.read(result, iter(()))
    except EngineGarbage as error:
        raise Fault(EngineGarbage, error.reason) from None


def _copy(error: EngineError) -> EngineError:
    """Copy an error to raise it: the traceback of one that is kept would keep everything alive."""
    return type(error)(error.reason, error.advice)
