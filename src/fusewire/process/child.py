"""One child process, as the parent sees it: start, ask, watch, kill.

The parent does not trust what a child says, and never waits without a deadline. It watches from
outside, so it can also kill a child that holds its interpreter lock or is stopped.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, get_args

from fusewire.errors import (
    BackendCrashed,
    BackendHung,
    BackendKilled,
    BackendNotStarted,
    EngineError,
    EngineGarbage,
    EngineOutOfMemory,
    IsolationError,
)
from fusewire.process.confinement import Confinement
from fusewire.process.forks import without_forks
from fusewire.process.frames import VERSION, Blobs, Frame, Incoming, Outgoing
from fusewire.process.guard import KINDS, Phase, failure
from fusewire.process.lifeline import HAS_LIFELINES, tie
from fusewire.process.limits import ChildLimits
from fusewire.process.link import Link, PolledLink, joined
from fusewire.process.output import OutputTail
from fusewire.process.pipes import open_pipe, widen
from fusewire.process.removal import remove_tree
from fusewire.system.processes import (
    descendants,
    limit_processor,
    processor_seconds,
    resident,
    share_idleness,
)
from fusewire.system.spawn import FROM_OUTSIDE, Spawned, signal_name

TICK = 0.025
_TICKS_PER_WALK = 8
_GRACE = 0.1
_PATIENCE = 5.0
_LONGEST_NAME = 200
# What an engine may take beside its libraries, whatever the limit.
_ENGINE_BYTES = 96 << 20
# What a child does before it works on a region.
_BEFORE_REGIONS = ("import", "probe", "claim")
# The share of its seconds after which a child ends by itself what it interprets.
_OWN = 0.9
# How many times its limit the system lets a child commit, where it limits that at all.
_COMMITTED = 2
# Exit codes of Windows from here on are exceptions, such as access violations.
_EXCEPTIONS = 0xC0000000

# Browsers and phones start no processes; an interpreter inside a program does not know itself.
CAN_ISOLATE = bool(sys.executable) and sys.platform not in ("emscripten", "wasi", "ios", "android")
# What happened instead of an answer, and the details.
Mishap: TypeAlias = tuple[type[EngineError], str]


class Child:
    """A worker process for one backend; one job at a time.

    ``module`` is the code it runs, which gets the ``shared`` descriptors. If ``is_watched``,
    others poll its descriptors too: they stay open until ``end``, also if it dies.
    """

    def __init__(
        self,
        reference: str,
        module: str = "fusewire.process.worker",
        shared: Sequence[int] = (),
        *,
        confinement: Confinement = Confinement(),
        is_watched: bool = False,
    ) -> None:
        if not CAN_ISOLATE:
            raise IsolationError(
                "Child processes need a system that starts them and a Python executable, found "
                f"{sys.platform} and {sys.executable!r}. Pass isolate='never' to run engines in "
                "this process."
            )
        self.name = self._reference = reference
        self._confinement = confinement.of(reference)
        self.jobs = 0
        # Resident bytes when it began its last job.
        self.held_before = 0
        self._is_ready = False
        self._phase: Phase = "import"
        self._is_ended = False
        # Resident bytes once its engine was imported, and it began to work on a region.
        self._at_rest = 0
        # Bytes of weights and inputs in it, with those of this job.
        self._given = 0
        # Bytes that it was given in earlier jobs and keeps, as its owner counts them.
        self.kept = 0
        self._is_killed = False
        self._is_watched = is_watched
        self._is_interrupted = False
        self._signals = threading.Lock()
        self._started = time.monotonic()
        self._ours = contextlib.ExitStack()
        try:
            self._start(reference, module, shared, self._confinement)
        except OSError as error:
            self._ours.close()
            raise not_started(reference, str(error)) from error

    def _start(
        self, reference: str, module: str, shared: Sequence[int], confinement: Confinement
    ) -> None:
        # The first folder of a process is made under a lock, which a forked one would wait for.
        with without_forks():
            scratch = tempfile.mkdtemp(prefix="fusewire-")
        self._ours.callback(_remove, scratch, os.getpid())
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ends:
            requests, asked = open_pipe(theirs, ends)
            heard, replies = open_pipe(ends, theirs)
            widen(requests, replies)
            life, _ = open_pipe(theirs, self._ours)
            printed, noise = open_pipe(ends, theirs)
            command = [sys.executable, "-P", "-m", "fusewire.process.start"]
            command += [confinement.as_argument(scratch), module, reference]
            passed = (requests, replies, life, *shared)
            environment = confinement.environment(scratch)
            self._spawned = Spawned(command, passed, noise, environment)
            self._ours.callback(self._spawned.close)
            if HAS_LIFELINES:
                # Not by the child alone: it starts late on a busy machine, and we may be gone then.
                tie(life, self.pid)
            self._link: Link = joined(self._spawned, asked, heard, printed)
            # The link closes them.
            ends.pop_all()
        share_idleness(self.pid)

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
        return self._spawned.pid

    @property
    def floor(self) -> int:
        """Resident bytes that it may have whatever its limit: its engine, and what that needs."""
        return self._at_rest + _ENGINE_BYTES

    @property
    def noise(self) -> OutputTail:
        """What it prints."""
        return self._link.noise

    @property
    def polled(self) -> PolledLink:
        """What joins it to this process, for those who poll it too."""
        assert isinstance(self._link, PolledLink), "it is watched only where the kernel polls"
        return self._link

    @property
    def is_usable(self) -> bool:
        """Whether it is alive and silent: unsolicited output is garbage."""
        if self._is_ended:
            return False
        return not self._link.is_over() and not (self._is_ready and self._link.has_reply())

    def greet(self, seconds: float) -> float:
        """Wait until it is ready for jobs; returns the seconds that took, 0 if it was ready.

        Raises BackendNotStarted if it does not become ready.
        """
        if self._is_ready:
            return 0.0
        found = self._heard(None, ChildLimits(seconds))
        if isinstance(found, Frame) and found.header.get("hello") == VERSION:
            self._is_ready = True
            return time.monotonic() - self._started
        is_dead = (
            not isinstance(found, Frame)
            and found[0] is BackendCrashed
            and self._link.is_over(_PATIENCE)
        )
        self._end()
        if self._is_interrupted:
            raise IsolationError(f"The pool was closed while {self.name} was starting.")
        late = f"its process was not ready after {seconds:g} seconds, or is not one of ours"
        told = _exit_of(self._spawned.process.returncode) if is_dead else late
        raise not_started(self.name, f"{told}.{self.noise.last_words()}")

    def ask(self, header: dict[str, Any], blobs: Blobs, limits: ChildLimits, what: str) -> Frame:
        """Run a job; any error ends the child."""
        self.jobs += 1
        self._phase = "import"
        # What is interpreted there ends by itself, and the child lives on.
        own = {"seconds": _OWN * limits.seconds, "memory": limits.most_bytes}
        found = self._heard(Frame({**header, "job": self.jobs, "limits": own}, blobs), limits)
        if not isinstance(found, Frame):
            raise self.post_mortem(*found, what)
        if found.header.get("job") != self.jobs:
            raise self.post_mortem(EngineGarbage, "an answer to another job", what)
        return found

    def limit_processor(self, seconds: float) -> None:
        """Have the kernel end a trial that uses all cores for longer, should nobody watch."""
        used = processor_seconds(self.pid) + seconds * (os.cpu_count() or 1)
        limit_processor(self.pid, math.ceil(used) + 1)

    def _heard(self, asked: Frame | None, limits: ChildLimits) -> Frame | Mishap:
        try:
            return self._listen(asked, limits)
        except EngineError as error:
            return type(error), error.reason
        except BaseException:
            # Interrupted in the middle of a frame: what follows cannot be understood.
            self._end()
            raise

    def _listen(self, asked: Frame | None, limits: ChildLimits) -> Frame | Mishap:
        """Write and read until there is an answer, a limit is reached, or the child is gone."""
        sent = 0 if asked is None else sum(blob.nbytes for blob in asked.blobs)
        self._given = self.kept + sent
        most = replace(limits, memory_bytes=None).resident_bytes(self._given)
        self.held_before = resident(self.pid)
        self._spawned.limit_memory(_COMMITTED * most)
        incoming = Incoming(self._link.replies, limits.resident_bytes(self._given))
        outgoing = None if asked is None else Outgoing(self._link.requests, asked)
        start = time.monotonic()
        deadline, look, ticks = start + limits.seconds, start + TICK, 0
        while (now := time.monotonic()) < deadline:
            if now >= look:
                look, ticks = now + TICK, ticks + 1
                if excess := self._excess(self.memory(ticks), limits, most):
                    return EngineOutOfMemory, excess
            ready = self._link.wait(min(look, deadline) - now, outgoing is not None)
            if ready.can_send and outgoing is not None and _is_sent(outgoing):
                outgoing = None
            if ready.can_read or ready.is_dead:
                answer = self._receive(incoming, is_last=ready.is_dead)
                if answer is not None:
                    return answer
        return BackendHung, f"the limit is {limits.seconds:g} seconds"

    def _excess(self, held: int, limits: ChildLimits, most: int) -> str:
        """Say how far it is beyond its limit; empty if it keeps to it.

        A caller's limit is for regions. It holds neither for an engine that is imported and looks
        for devices, which has ``most``, nor for the little that any engine takes to work at all.
        """
        if limits.memory_bytes is not None and self._phase not in _BEFORE_REGIONS:
            most = max(limits.memory_bytes, self.floor)
        return f"it used {held >> 20} MiB; the limit is {most >> 20}" if held > most else ""

    def _receive(self, incoming: Incoming, is_last: bool) -> Frame | Mishap | None:
        """Read an answer or a phase; ``is_last`` if nothing more will be written."""
        try:
            frame = incoming.read()
        except EOFError:
            return BackendCrashed, ""
        if frame is None:
            is_empty = is_last and not self._link.has_reply()
            return (BackendCrashed, "") if is_empty else None
        if "phase" not in frame.header:
            return frame
        phase, name = frame.header["phase"], frame.header.get("name")
        if phase not in get_args(Phase) or type(name) is not str or len(name) > _LONGEST_NAME:
            raise EngineGarbage(f"it reported an unknown phase {repr(phase)[:40]}")
        self._phase, self.name = phase, name
        if phase not in _BEFORE_REGIONS and not self._at_rest:
            # What it says it had then, and no more than it has: it may lie, and may have gone on.
            said = frame.header.get("resident")
            held = min(said if type(said) is int else 0, resident(self.pid))
            self._at_rest = max(held - self._given, 0)
        if phase == "import" and "environment" in frame.header:
            self._confinement.note(self._reference, frame.header["environment"])
        return None

    def memory(self, ticks: int) -> int:
        """Measure the process, and now and then its descendants, which are slow to find."""
        own = resident(self.pid)
        if ticks % _TICKS_PER_WALK:
            return own
        return own + sum(resident(pid) for pid in descendants(self.pid))

    def post_mortem(
        self, kind: type[EngineError], found: str, what: str, phase: Phase | None = None
    ) -> EngineError:
        """End the child, and say what happened to it."""
        if kind is BackendCrashed:
            is_dead = self._link.is_over(_PATIENCE)
            self._end()
            code = self._spawned.process.returncode
            found = _exit_of(code) if is_dead else "it closed its pipe"
            if is_dead and -code in FROM_OUTSIDE:
                kind = BackendKilled
        else:
            self._end(_GRACE)
        if self._is_interrupted:
            raise IsolationError(f"The pool was closed while {self.name} was working on {what}.")
        told = f"{found.rstrip('.')}.{self.noise.last_words()}"
        return failure(kind, self.name, phase or self._phase, what, told)

    def interrupt(self) -> None:
        """Kill it from any thread; the thread that waits for it does the rest."""
        with self._signals:
            self._is_interrupted = True
            if not self._is_killed:
                self._spawned.kill()

    def _end(self, grace: float = 0.0) -> None:
        if self._is_watched:
            self.kill(grace)
        else:
            self.end(grace)

    def end(self, grace: float = 0.0) -> None:
        """Kill it, and close its descriptors."""
        self.kill(grace)
        with self._signals:
            if not self._is_ended:
                self._link.close()
                self._ours.close()
                self._is_ended = True

    def kill(self, grace: float = 0.0) -> None:
        """Kill the group and its descendants, and reap; with a grace for last words."""
        with self._signals:
            if self._is_killed:
                return
            # Listed now, because orphans of a dead process are no longer its descendants.
            family = descendants(self.pid)
            if grace:
                self._spawned.ask_to_end()
                self._link.is_over(grace)
            self._spawned.kill(family)
            self._link.is_over(_PATIENCE)
            self._spawned.process.poll()
            self._link.hear_rest()
            self._is_killed = True

    def forget(self) -> None:
        """Release it without killing: after a fork, the process belongs to the parent."""
        self._link.forget()
        self._ours.close()
        self._is_ended = self._is_killed = True


def _remove(scratch: str, owner: int) -> None:
    # A forked process forgets a child that its parent still uses.
    if os.getpid() == owner:
        remove_tree(scratch)


def _is_sent(outgoing: Outgoing) -> bool:
    try:
        return outgoing.write()
    except BrokenPipeError:
        # It no longer reads; its death or silence is detected elsewhere.
        return True


def not_started(name: str, told: str) -> BackendNotStarted:
    """Make the error of a process that the system did not start, or gave no pipes."""
    happened, advice = KINDS[BackendNotStarted]
    return BackendNotStarted(f"The process of {name} {happened}: {told.rstrip('.')}.", advice)


def _exit_of(code: int) -> str:
    if code >= _EXCEPTIONS:
        return f"it died of exception {code:#x}"
    if code >= 0:
        return f"it exited with code {code}"
    name = signal_name(-code)
    if -code not in FROM_OUTSIDE:
        return f"it died of {name}"
    hint = ", perhaps because the machine ran out of memory" if name == "SIGKILL" else ""
    return f"it died of {name}, which another process or the system sent{hint}"
