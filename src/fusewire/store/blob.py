"""One entry as bytes: nothing of it is believed before all of it was checked.

    magic (8) · length of the header (4) · header (JSON: kind, fields, size of the payload)
    · payload · SHA-256 of each piece of it · HMAC-SHA256 (32), under the user's key, of all but
    the payload

A digest beside a payload proves nothing against someone who can write both; the HMAC covers the
digests, so that one pass over the payload proves it, by as many threads as there are processors.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
import struct
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fusewire.errors import StoreError
from fusewire.host_memory import aligned_empty
from fusewire.store.key import Key

MAGIC = b"FUSEWIR3"
_LENGTH = struct.Struct(">I")
_START = len(MAGIC) + _LENGTH.size
_DIGEST = 32
# Pieces are a quarter of a payload, though never smaller or larger than this: enough for several
# threads, and each of them long at work without a word to Python, which may be busy importing.
_LEAST_PIECE, _MOST_PIECE = 2**20, 2**24
_MOST_HEADER = 2**16
# Enough for the header of nearly every entry.
_GLANCE = 2**12
# Fewer pieces are not worth a thread; more threads find nothing to do, memory is read no faster.
_LEAST_PIECES = 2
_MOST_THREADS = 4


class ByteSource(Protocol):
    """Bytes of known size that may be read in parts, by several threads at once."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, length: int) -> bytes:
        """Give so many bytes from a place, fewer only where they end."""
        ...

    def fill(self, view: memoryview, at: int) -> int:
        """Read from a place into memory, as far as there is something to read."""
        ...


@dataclass(frozen=True)
class Bytes:
    """Bytes in memory as a source."""

    held: bytes

    @property
    def size(self) -> int:
        return len(self.held)

    def read(self, at: int, length: int) -> bytes:
        """Give so many bytes from a place."""
        return self.held[at : at + length]

    def fill(self, view: memoryview, at: int) -> int:
        """Copy from a place."""
        found = self.read(at, len(view))
        view[: len(found)] = found
        return len(found)


@dataclass(frozen=True)
class Header:
    """What an entry says of itself; ``start`` is all that stands before its payload."""

    key: Key
    size: int
    start: bytes

    @property
    def total(self) -> int:
        """Bytes of the whole entry."""
        return len(self.start) + self.size + self.end

    @property
    def end(self) -> int:
        """Bytes of all that stands after the payload."""
        return _DIGEST * (-(-self.size // _piece(self.size)) + 1)


def pack(key: Key, payload: bytes, secret: bytes) -> tuple[bytes, bytes, bytes]:
    """Make an entry, in three parts of which the payload is the second."""
    held = {**key.to_json(), "size": len(payload)}
    header = json.dumps(held, separators=(",", ":")).encode()
    if len(header) > _MOST_HEADER:
        raise StoreError(f"A key of {len(header):,} bytes: {_MOST_HEADER:,} are allowed.")
    start = b"".join((MAGIC, _LENGTH.pack(len(header)), header))
    digests = _digests(memoryview(payload))
    return start, payload, digests + _mac(secret, start, digests)


def read_header(source: ByteSource) -> Header:
    """Read the header of an entry; StoreError when it is none."""
    held = source.read(0, _GLANCE)
    if len(held) < _START or not held.startswith(MAGIC):
        raise StoreError("It does not begin like an entry of this format.")
    (length,) = _LENGTH.unpack_from(held, len(MAGIC))
    if length > _MOST_HEADER:
        raise StoreError(f"Its header has {length:,} bytes, at most {_MOST_HEADER:,} are right.")
    if len(held) < _START + length:
        held = source.read(0, _START + length)
    start = held[: _START + length]
    try:
        found = json.loads(start[_START:])
    except (ValueError, RecursionError):
        raise StoreError("Its header is not JSON, or cut off.") from None
    key = Key.from_json(found)
    size = found.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise StoreError("Its header has no size.")
    return Header(key, size, start)


def unpack(
    source: ByteSource, key: Key | None, secret: bytes | None, most: int = sys.maxsize
) -> tuple[Header, bytes]:
    """Check an entry from end to end and give its payload; StoreError says what is wrong.

    ``key`` is the one asked for: an entry put under another's name is refused. None takes any.
    Without a ``secret`` the digests are checked, and nothing is known of who wrote it.
    """
    header, digests = _proven(source, key, secret, most)
    # Whose buffer becomes the payload without a copy.
    held = io.BytesIO(bytes(header.size))
    with held.getbuffer() as view:
        _fill(view, source, header, digests)
    return header, held.getvalue()


def unpack_block(
    source: ByteSource, key: Key, secret: bytes, most: int = sys.maxsize
) -> memoryview:
    """Check an entry like ``unpack``; its payload begins where engines take it as it lies."""
    header, digests = _proven(source, key, secret, most)
    view = aligned_empty((header.size,), np.dtype(np.uint8)).data
    _fill(view, source, header, digests)
    return view.toreadonly()


def _proven(
    source: ByteSource, key: Key | None, secret: bytes | None, most: int
) -> tuple[Header, bytes]:
    """Give the header and the digests of an entry, once it is known that the user wrote them."""
    header = read_header(source)
    if source.size != header.total:
        raise StoreError(f"It has {source.size:,} bytes, and its header says {header.total:,}.")
    if header.total > most:
        raise StoreError(f"It has {header.total:,} bytes, {most:,} are allowed.")
    if key is not None and header.key != key:
        raise StoreError("It is the entry of another key.")
    end = source.read(len(header.start) + header.size, header.end)
    digests, mac = end[:-_DIGEST], end[-_DIGEST:]
    if secret is not None and not hmac.compare_digest(_mac(secret, header.start, digests), mac):
        raise StoreError("It was not written with this user's key, or was changed since.")
    return header, digests


def _fill(view: memoryview, source: ByteSource, header: Header, digests: bytes) -> None:
    if _digests(view, source, len(header.start)) != digests:
        raise StoreError("Its payload is not what its digest says.")


def _mac(secret: bytes, start: bytes, digests: bytes) -> bytes:
    return hmac.digest(secret, start + digests, "sha256")


def _piece(size: int) -> int:
    return min(max(_LEAST_PIECE, -(-size // 4)), _MOST_PIECE)


def _digests(view: memoryview, source: ByteSource | None = None, at: int = 0) -> bytes:
    """Give the SHA-256 of each piece, one after the other; read first if there is a source."""
    piece = _piece(len(view))
    todo = deque((place, view[place : place + piece]) for place in range(0, len(view), piece))
    found: dict[int, bytes] = {}
    failed: list[OSError] = []

    def work() -> None:
        while not failed:
            try:
                place, part = todo.popleft()
                if source is not None:
                    source.fill(part, at + place)
                found[place] = hashlib.sha256(part).digest()
            except IndexError:
                return
            except OSError as error:
                failed.append(error)

    threads = []
    for _ in range(min(os.cpu_count() or 1, _MOST_THREADS, len(todo) // _LEAST_PIECES) - 1):
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread is to be had: this one does it all.
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return b"".join(found[place] for place in sorted(found))
