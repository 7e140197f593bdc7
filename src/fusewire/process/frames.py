"""Frames: messages between a parent and its child, as bytes on a pipe.

Magic, version, lengths, a header in JSON, then blobs. Blobs keep their alignment: engines copy what
is not aligned, and a time measured in a child must hold for the parent. Nothing in a frame can
become code or an object of any class, and every length is checked before memory is allocated for
it. Reading is a generator that asks for buffers to be filled, so that one reader serves the child,
which blocks, and the parent, which must not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fusewire.errors import EngineGarbage, EngineOutOfMemory
from fusewire.host_memory import ALIGNMENT
from fusewire.ir.graph import Array
from fusewire.process.pipes import Descriptor, PipeReader, PipeWriter

MAGIC = b"FWpf"
VERSION = 2
MAX_HEADER = 1 << 24
MAX_BLOBS = 1 << 20

# Magic, version, number of blobs, bytes of the header, bytes of all blobs.
PREFIX = struct.Struct("<4sHxxIIQ")

Blobs = list[Array]


class Frame(NamedTuple):
    """One message; blobs are flat arrays of bytes."""

    header: dict[str, Any]
    blobs: Blobs

    def buffers(self) -> list[memoryview]:
        """List the buffers to write; blobs are not copied."""
        header = json.dumps(self.header, separators=(",", ":")).encode()
        sizes = [blob.nbytes for blob in self.blobs]
        if len(header) > MAX_HEADER or len(sizes) > MAX_BLOBS:
            raise EngineGarbage(
                f"A frame with {len(header)} bytes of header and {len(sizes)} blobs is too large: "
                f"the limits are {MAX_HEADER} and {MAX_BLOBS}."
            )
        prefix = PREFIX.pack(MAGIC, VERSION, len(sizes), len(header), sum(sizes))
        leans = [blob.ctypes.data % ALIGNMENT for blob in self.blobs]
        start = prefix + struct.pack(f"<{2 * len(sizes)}Q", *sizes, *leans) + header
        return [memoryview(start), *(blob.data for blob in self.blobs if blob.nbytes)]


def reading(limit: int) -> Generator[memoryview, None, Frame]:
    """Yield the buffers to fill, in order, and return the frame; ``limit`` bounds the blobs."""
    prefix = bytearray(PREFIX.size)
    yield memoryview(prefix)
    magic, version, count, length, total = PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION:
        raise EngineGarbage(f"Found {bytes(prefix[:6]).hex()} where a frame should start.")
    if length > MAX_HEADER or count > MAX_BLOBS or total > limit:
        raise EngineGarbage(
            f"A frame of {length} bytes of header and {count} blobs of {total} bytes: "
            f"the limits are {MAX_HEADER}, {MAX_BLOBS} and {limit}."
        )
    start = bytearray(16 * count + length)
    if start:
        yield memoryview(start)
    numbers = struct.unpack_from(f"<{2 * count}Q", start)
    sizes, leans = numbers[:count], numbers[count:]
    if sum(sizes) != total:
        raise EngineGarbage(f"The blobs have {sum(sizes)} bytes, but the frame says {total}.")
    header = _parsed(start[16 * count :])
    blobs = []
    for size, lean in zip(sizes, leans, strict=True):
        blob = _space(size, lean)
        if size:
            yield blob.data
        blobs.append(blob)
    return Frame(header, blobs)


def _space(size: int, lean: int) -> Array:
    """Allocate memory at an offset from the alignment that engines ask for."""
    try:
        room = np.empty(size + ALIGNMENT, np.uint8)
        start = (lean - room.ctypes.data) % ALIGNMENT
        return room[start : start + size]
    except MemoryError:
        raise EngineOutOfMemory(f"Not enough memory for a blob of {size} bytes.") from None


def _parsed(raw: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EngineGarbage(f"The header of a frame is not JSON: {error}.") from None
    if not isinstance(header, dict):
        raise EngineGarbage(f"The header of a frame is a {type(header).__name__}, not an object.")
    return header


class Incoming:
    """Reads frames from a pipe that may have only a part of one, or nothing, yet."""

    def __init__(self, source: int | PipeReader, limit: int) -> None:
        self._source = Descriptor(source) if isinstance(source, int) else source
        self._limit = limit
        self._start()

    def _start(self) -> None:
        self._frame = reading(self._limit)
        self._rest = next(self._frame)

    def read(self, most: int = 1 << 26) -> Frame | None:
        """Read at most ``most`` bytes; returns a frame once it is complete, else None.

        Raises EOFError at the end.
        """
        while most > 0:
            try:
                count = self._source.fill(self._rest)
            except BlockingIOError:
                return None
            if count == 0:
                raise EOFError
            most -= count
            self._rest = self._rest[count:]
            if not self._rest:
                try:
                    self._rest = next(self._frame)
                except StopIteration as stop:
                    self._start()
                    frame: Frame = stop.value
                    return frame
        return None


class Outgoing:
    """Writes a frame to a pipe that may accept only a part of it at a time."""

    def __init__(self, sink: int | PipeWriter, frame: Frame) -> None:
        self._sink = Descriptor(sink) if isinstance(sink, int) else sink
        self._rest: Sequence[memoryview] = frame.buffers()

    def write(self) -> bool:
        """Write what fits; returns whether that was all."""
        while self._rest:
            try:
                count = self._sink.send(self._rest)
            except BlockingIOError:
                return False
            self._rest = _after(self._rest, count)
        return True


def _after(buffers: Sequence[memoryview], count: int) -> list[memoryview]:
    """Drop the first ``count`` bytes."""
    for place, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[place + 1 :]]
        count -= len(buffer)
    return []
