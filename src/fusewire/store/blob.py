"""One entry as bytes; all of it is checked before any of it is used.

    magic (8) · length of the header (4) · header (JSON: kind, fields, size of the payload, who
    signed it if it is brought from elsewhere, and the hash if it is not SHA-256) · payload · digest
    (32) of each piece of it · HMAC-SHA256 (32), under the user's key, of all but the payload

A digest beside a payload proves nothing against someone who can write both. The HMAC covers the
digests, so that one pass over the payload, by several threads, proves it. That pass is most of what
a large entry costs a start: where the processor has no instructions for SHA-256, BLAKE2b takes half
the time.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from fusewire.errors import StoreError
from fusewire.host_memory import aligned_empty
from fusewire.store.key import Key

MAGIC = b"FUSEWIR3"
_LENGTH = struct.Struct(">I")
_START = len(MAGIC) + _LENGTH.size
_DIGEST = 32
# A piece is a quarter of a payload, within these limits: enough for several threads, each of which
# works for long without the interpreter lock, which an import may hold.
_LEAST_PIECE, _MOST_PIECE = 2**20, 2**24
_MOST_HEADER = 2**16
# Enough for the header of nearly every entry.
_GLANCE = 2**12
# Fewer pieces are not worth a thread; more threads do not read memory faster.
_LEAST_PIECES = 2
_MOST_THREADS = 4
_USUAL = "sha256"
_HASHES: dict[str, Callable[[Any], Any]] = {_USUAL: hashlib.sha256}
# Some builds of Python and OpenSSL leave it out, or do not allow it.
with contextlib.suppress(AttributeError, ValueError):
    hashlib.blake2b(b"", digest_size=_DIGEST).digest()
    _HASHES["blake2b"] = partial(hashlib.blake2b, digest_size=_DIGEST)
# Bytes, and how often they are hashed, to see which hash is faster here.
_SAMPLE, _TIMES = 2**18, 2


class ByteSource(Protocol):
    """Bytes of known size that several threads may read in parts."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, length: int) -> bytes:
        """Return ``size`` bytes from a place, fewer only at the end."""
        ...

    def fill(self, view: memoryview, at: int) -> int:
        """Read from a place into memory, up to the end."""
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
class Provenance:
    """Who signed an entry that was brought from elsewhere, and how long it is believed.

    It is part of the entry, so that one is never without it.
    """

    signer: str
    generation: int
    expires: int | None

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and time.time() >= self.expires

    @staticmethod
    def read(held: Any) -> Provenance | None:
        """Read what an entry says; StoreError if it is malformed."""
        if held is None:
            return None
        names = ("signer", "generation", "expires")
        given = tuple(held.get(name) for name in names) if isinstance(held, dict) else ()
        match given:
            case (str(signer), int(generation), int() | None as expires):
                return Provenance(signer, generation, expires)
        raise StoreError("Its header does not say who signed it.")


@dataclass(frozen=True)
class Header:
    """What an entry says about itself; ``start`` is everything before its payload."""

    key: Key
    size: int
    start: bytes
    provenance: Provenance | None = None
    hash: str = _USUAL

    @property
    def total(self) -> int:
        """Bytes of the whole entry."""
        return len(self.start) + self.size + self.end

    @property
    def end(self) -> int:
        """Bytes of everything after the payload."""
        return _DIGEST * (-(-self.size // _piece(self.size)) + 1)


def pack(
    key: Key, payload: bytes, secret: bytes, provenance: Provenance | None = None
) -> tuple[bytes, bytes, bytes]:
    """Make an entry in three parts; the second is the payload."""
    held = {**key.to_json(), "size": len(payload)}
    if provenance is not None:
        held["provenance"] = asdict(provenance)
    name = fastest_hash() if len(payload) >= _LEAST_PIECE else _USUAL
    if name != _USUAL:
        held["hash"] = name
    header = json.dumps(held, separators=(",", ":")).encode()
    if len(header) > _MOST_HEADER:
        raise StoreError(f"A key has {len(header):,} bytes; the limit is {_MOST_HEADER:,}.")
    start = b"".join((MAGIC, _LENGTH.pack(len(header)), header))
    digests = piece_digests(memoryview(payload), name=name)
    return start, payload, digests + _mac(secret, start, digests)


def read_header(source: ByteSource) -> Header:
    """Read the header of an entry; StoreError if it is not one."""
    held = source.read(0, _GLANCE)
    if len(held) < _START or not held.startswith(MAGIC):
        raise StoreError("It is not an entry of this format.")
    (length,) = _LENGTH.unpack_from(held, len(MAGIC))
    if length > _MOST_HEADER:
        raise StoreError(f"Its header has {length:,} bytes; the limit is {_MOST_HEADER:,}.")
    if len(held) < _START + length:
        held = source.read(0, _START + length)
    start = held[: _START + length]
    try:
        found = json.loads(start[_START:])
    except (ValueError, RecursionError):
        raise StoreError("Its header is not JSON, or is truncated.") from None
    key = Key.from_json(found)
    size = found.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise StoreError("Its header has no size.")
    name = found.get("hash", _USUAL)
    if not isinstance(name, str) or name not in _HASHES:
        raise StoreError("Its header names an unknown hash.")
    return Header(key, size, start, Provenance.read(found.get("provenance")), name)


def unpack(
    source: ByteSource, key: Key | None, secret: bytes | None, most: int = sys.maxsize
) -> tuple[Header, bytes]:
    """Check a whole entry and return its payload; StoreError says what is wrong.

    ``key`` is the expected key: an entry under the name of another is refused. None accepts any.
    Without a ``secret`` only the digests are checked, and the writer is unknown.
    """
    header, digests = _proven(source, key, secret, most)
    # Its buffer becomes the payload without a copy.
    held = io.BytesIO(bytes(header.size))
    with held.getbuffer() as view:
        _fill(view, source, header, digests)
    return header, held.getvalue()


def unpack_block(
    source: ByteSource, key: Key, secret: bytes, most: int = sys.maxsize
) -> memoryview:
    """Check an entry like ``unpack``; its payload is aligned as engines need it."""
    header, digests = _proven(source, key, secret, most)
    view = aligned_empty((header.size,), np.dtype(np.uint8)).data
    _fill(view, source, header, digests)
    return view.toreadonly()


def _proven(
    source: ByteSource, key: Key | None, secret: bytes | None, most: int
) -> tuple[Header, bytes]:
    """Return the header and digests of an entry, after checking that the user wrote them."""
    header = read_header(source)
    if source.size != header.total:
        raise StoreError(f"It has {source.size:,} bytes, but its header says {header.total:,}.")
    if header.total > most:
        raise StoreError(f"It has {header.total:,} bytes; the limit is {most:,}.")
    if key is not None and header.key != key:
        raise StoreError("It belongs to another key.")
    end = source.read(len(header.start) + header.size, header.end)
    digests, mac = end[:-_DIGEST], end[-_DIGEST:]
    if secret is not None and not hmac.compare_digest(_mac(secret, header.start, digests), mac):
        raise StoreError("It was not written with this user's key, or was changed afterwards.")
    if header.provenance is not None and header.provenance.is_expired:
        raise StoreError("The signature of who made it has expired.")
    return header, digests


def _fill(view: memoryview, source: ByteSource, header: Header, digests: bytes) -> None:
    if piece_digests(view, source, len(header.start), header.hash) != digests:
        raise StoreError("Its payload does not match its digest.")


def _mac(secret: bytes, start: bytes, digests: bytes) -> bytes:
    return hmac.digest(secret, start + digests, "sha256")


def _piece(size: int) -> int:
    return min(max(_LEAST_PIECE, -(-size // 4)), _MOST_PIECE)


@cache
def fastest_hash() -> str:
    """Name the hash that takes the least time on this machine."""
    sample = bytes(_SAMPLE)

    def seconds(name: str) -> float:
        start = time.perf_counter()
        _HASHES[name](sample).digest()
        return time.perf_counter() - start

    return min(_HASHES, key=lambda name: min(seconds(name) for _ in range(_TIMES)))


def piece_digests(
    view: memoryview, source: ByteSource | None = None, at: int = 0, name: str = _USUAL
) -> bytes:
    """Return the concatenated digests of all pieces; a source is read first."""
    piece = _piece(len(view))
    todo = deque((place, view[place : place + piece]) for place in range(0, len(view), piece))
    found: dict[int, bytes] = {}
    failed: list[OSError] = []
    hashed = _HASHES[name]

    def work() -> None:
        while not failed:
            try:
                place, part = todo.popleft()
                if source is not None:
                    source.fill(part, at + place)
                found[place] = hashed(part).digest()
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
            # No thread can be started: this one does all the work.
            break
        threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return b"".join(found[place] for place in sorted(found))
