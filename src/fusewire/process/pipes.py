"""Ends of pipes that do not wait: descriptors where the system can, threads where it cannot.

A descriptor that does not block is read and written directly. Windows has none for pipes: there a
thread waits in the place of the reader, or of the writer, and hands over what came. The threads
are the same everywhere, so that they are tested on every system.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

_PIECE = 1 << 20
# Bytes that wait to be fetched before the thread stops reading.
_MOST_WAITING = 1 << 23
_MANY_BUFFERS = 64
# The most that the kernel gives to those without privileges.
_PIPE_BYTES = 1 << 20


def open_pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Open a pipe; each end is closed with its stack."""
    ends = os.pipe()
    for stack, end in zip((reader, writer), ends, strict=True):
        stack.callback(os.close, end)
    return ends


def widen(*pipes: int) -> None:
    """Let pipes hold more: weights go through them, and a full pipe stops both sides."""
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, AttributeError, OSError):
            import fcntl

            for end in pipes:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class PipeReader(ABC):
    """Where bytes come from."""

    @abstractmethod
    def fill(self, view: memoryview) -> int:
        """Read what is there into memory; 0 at the end, BlockingIOError if there is nothing."""


class PipeWriter(ABC):
    """Where bytes go to."""

    @abstractmethod
    def send(self, buffers: Sequence[memoryview]) -> int:
        """Write what fits and return how much; BlockingIOError if nothing does."""


@final
class Descriptor(PipeReader, PipeWriter):
    """A descriptor, which blocks or not."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fill(self, view: memoryview) -> int:
        if hasattr(os, "readv"):
            return int(os.readv(self._number, [view]))
        piece = os.read(self._number, min(len(view), _PIECE))
        view[: len(piece)] = piece
        return len(piece)

    def send(self, buffers: Sequence[memoryview]) -> int:
        if hasattr(os, "writev"):
            return int(os.writev(self._number, buffers[:_MANY_BUFFERS]))
        return os.write(self._number, buffers[0][:_PIECE])


@final
class ThreadedReader(PipeReader):
    """Reads a descriptor in a thread, which closes it at the end; ``noted`` when there is news."""

    def __init__(self, number: int, noted: Callable[[], None]) -> None:
        self._number = number
        self._noted = noted
        self._changed = threading.Condition()
        self._pieces: deque[memoryview] = deque()
        self._waiting = 0
        self._is_over = False
        self._is_abandoned = False
        self._is_closed = False
        threading.Thread(target=self._read, name="fusewire-pipe", daemon=True).start()

    @property
    def has_news(self) -> bool:
        """Whether ``fill`` would not raise BlockingIOError."""
        return bool(self._pieces) or self._is_over

    def _read(self) -> None:
        piece = b"-"
        while piece and not self._is_abandoned:
            try:
                piece = os.read(self._number, _PIECE)
            except OSError:
                # Windows says so of a pipe whose other end is closed.
                piece = b""
            with self._changed:
                if piece:
                    self._pieces.append(memoryview(piece))
                    self._waiting += len(piece)
                else:
                    self._is_over = True
            self._noted()
            with self._changed:
                self._changed.wait_for(lambda: self._waiting < _MOST_WAITING)
        self.release()

    def fill(self, view: memoryview) -> int:
        with self._changed:
            if not self._pieces:
                if self._is_over:
                    return 0
                raise BlockingIOError
            piece = self._pieces.popleft()
            count = min(len(piece), len(view))
            view[:count] = piece[:count]
            if count < len(piece):
                self._pieces.appendleft(piece[count:])
            self._waiting -= count
            self._changed.notify()
            return count

    def abandon(self) -> None:
        """Let the thread end when the other end is closed; nobody fetches any more."""
        with self._changed:
            self._is_abandoned = True
            self._pieces.clear()
            self._waiting = 0
            self._changed.notify()

    def release(self) -> None:
        """Close the descriptor; to be called by the thread, or where the thread is not: forked."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._number)


@final
class ThreadedWriter(PipeWriter):
    """Writes to a descriptor in a thread, which closes it at the end."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._changed = threading.Condition()
        self._buffers: Sequence[memoryview] | None = None
        self._is_broken = False
        self._is_abandoned = False
        self._is_closed = False
        threading.Thread(target=self._write, name="fusewire-pipe", daemon=True).start()

    @property
    def has_room(self) -> bool:
        """Whether ``send`` would not raise BlockingIOError."""
        return self._buffers is None

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._buffers is not None or self._is_abandoned)
                buffers = self._buffers
            if buffers is None:
                break
            try:
                for buffer in buffers:
                    _write_all(self._number, buffer)
            except OSError:
                self._is_broken = True
            with self._changed:
                self._buffers = None
        self.release()

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Take all buffers; they must not change until the other side has answered."""
        with self._changed:
            if self._is_broken:
                raise BrokenPipeError
            if self._buffers is not None:
                raise BlockingIOError
            self._buffers = buffers
            self._changed.notify()
        return sum(map(len, buffers))

    def abandon(self) -> None:
        """Let the thread end when what it writes is written, or cannot be."""
        with self._changed:
            self._is_abandoned = True
            self._changed.notify()

    def release(self) -> None:
        """Close the descriptor; to be called by the thread, or where the thread is not: forked."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._number)


def _write_all(number: int, buffer: memoryview) -> None:
    while buffer:
        buffer = buffer[os.write(number, buffer[:_PIECE]) :]
