"""What joins a parent to one child: requests, replies, noise, and the news that it has ended.

The parent never waits without a deadline. Linux waits for all four at once (``poll``, ``pidfd``);
elsewhere threads wait, and tell. Both are the same to a ``Child``.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import sys
import threading
from abc import ABC, abstractmethod
from typing import NamedTuple, final

from fusewire.process.output import OutputTail
from fusewire.process.pipes import (
    Descriptor,
    PipeReader,
    PipeWriter,
    ThreadedReader,
    ThreadedWriter,
)
from fusewire.system.polling import CAN_POLL, READ, WRITE, descriptor_of, poller, unblock
from fusewire.system.spawn import Spawned

_PIECE = 1 << 16
# Seconds to wait for what threads still have to read of a process that has ended.
_LATE = 0.5


class LinkState(NamedTuple):
    """What can be done without waiting."""

    can_send: bool
    can_read: bool
    is_dead: bool


class Link(ABC):
    """The parent's side; ``requests`` and ``replies`` do not wait."""

    requests: PipeWriter
    replies: PipeReader
    noise: OutputTail

    @abstractmethod
    def wait(self, seconds: float, wants_to_send: bool) -> LinkState:
        """Wait until something can be done; keeps what the child prints meanwhile."""

    @abstractmethod
    def is_over(self, seconds: float = 0.0) -> bool:
        """Wait until the process has ended; tells whether it has."""

    @abstractmethod
    def has_reply(self) -> bool:
        """Tell whether there is something to read, or nothing will come any more."""

    @abstractmethod
    def hear_rest(self) -> None:
        """Keep what a process that has ended had printed."""

    @abstractmethod
    def close(self) -> None:
        """Close the parent's ends; the process must have ended."""

    @abstractmethod
    def forget(self) -> None:
        """Close the ends that a forked process inherited: the child is its parent's."""


def joined(spawned: Spawned, requests: int, replies: int, heard: int) -> Link:
    """Join this process to a child by the best means of the system; it owns the descriptors."""
    kind = PolledLink if CAN_POLL else ThreadedLink
    return kind(spawned, requests, replies, heard)


@final
class PolledLink(Link):
    """Waits in the kernel for pipes and process alike."""

    def __init__(self, spawned: Spawned, requests: int, replies: int, heard: int) -> None:
        self._ours = contextlib.ExitStack()
        # First, because it may fail, and then the pipes are still the caller's.
        self.alive = descriptor_of(spawned.pid)
        for end in (requests, replies, heard, self.alive):
            self._ours.callback(os.close, end)
        for end in (requests, replies, heard):
            unblock(end)
        self._requests, self._replies = requests, replies
        self.requests, self.replies = Descriptor(requests), Descriptor(replies)
        self.noise = OutputTail(heard)
        self._poller = poller()
        for end in (replies, heard, self.alive):
            self._poller.register(end, READ)
        self._is_sending = False

    def wait(self, seconds: float, wants_to_send: bool) -> LinkState:
        if wants_to_send != self._is_sending:
            self._is_sending = wants_to_send
            if wants_to_send:
                self._poller.register(self._requests, WRITE)
            else:
                self._poller.unregister(self._requests)
        found = {end for end, _ in self._poller.poll(math.ceil(seconds * 1000))}
        if self.noise.descriptor in found and not self.noise.drain():
            self._poller.unregister(self.noise.descriptor)
        return LinkState(self._requests in found, self._replies in found, self.alive in found)

    def is_over(self, seconds: float = 0.0) -> bool:
        return is_ready(seconds, self.alive)

    def has_reply(self) -> bool:
        return is_ready(0.0, self._replies)

    def hear_rest(self) -> None:
        self.noise.drain()

    def close(self) -> None:
        self._ours.close()

    def forget(self) -> None:
        self._ours.close()


@final
class ThreadedLink(Link):
    """Has a thread wait at each pipe, and one for the end of the process."""

    def __init__(self, spawned: Spawned, requests: int, replies: int, heard: int) -> None:
        self._process = spawned.process
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._is_silent = threading.Event()
        self._heard = heard
        self.noise = OutputTail()
        self._sink, self._source = ThreadedWriter(requests), ThreadedReader(replies, self._note)
        self.requests, self.replies = self._sink, self._source
        for work in (self._wait_for_end, self._listen):
            threading.Thread(target=work, name="fusewire-child", daemon=True).start()

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait_for_end(self) -> None:
        """Wait without reaping where that can be: the id of the group stays valid."""
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if sys.platform != "win32" and hasattr(os, "waitid"):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            elif sys.platform == "darwin":
                # Python has waitid there from 3.13 on.
                what, how = select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT
                event = select.kevent(self._process.pid, what, how, select.KQ_NOTE_EXIT)
                with contextlib.closing(select.kqueue()) as queue:
                    queue.control([event], 1)
            else:
                self._process.wait()
        self._over.set()
        self._note()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self._heard, _PIECE):
                self.noise.keep(piece)
        self._is_silent.set()
        os.close(self._heard)

    def wait(self, seconds: float, wants_to_send: bool) -> LinkState:
        with self._changed:
            self._changed.wait_for(lambda: any(self._ready(wants_to_send)), seconds)
            return self._ready(wants_to_send)

    def _ready(self, wants_to_send: bool) -> LinkState:
        can_send = wants_to_send and self._sink.has_room
        return LinkState(can_send, self._source.has_news, self._over.is_set())

    def is_over(self, seconds: float = 0.0) -> bool:
        return self._over.wait(seconds)

    def has_reply(self) -> bool:
        if not self._over.is_set():
            return self._source.has_news
        # What it wrote before it ended is on its way through the thread, and then the end.
        with self._changed:
            return self._changed.wait_for(lambda: self._source.has_news, _LATE)

    def hear_rest(self) -> None:
        # Not for long: a process that it started may hold the pipe.
        self._is_silent.wait(_LATE)

    def close(self) -> None:
        # Each thread closes its descriptor: a number that it still waits at must not be used again.
        self._sink.abandon()
        self._source.abandon()

    def forget(self) -> None:
        # The threads are not here, and their locks may be held for ever.
        self._sink.release()
        self._source.release()
        if not self._is_silent.is_set():
            os.close(self._heard)


def is_ready(seconds: float, *descriptors: int) -> bool:
    """Wait until one of the descriptors has something to read; tells whether one has."""
    waiting = poller()
    for descriptor in descriptors:
        waiting.register(descriptor, READ)
    return bool(waiting.poll(math.ceil(seconds * 1000)))
