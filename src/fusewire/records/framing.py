"""A header and blobs in a row, the blobs aligned so that engines can use them in place."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fusewire.ir.graph import Array

_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
# A header names blobs; one that is larger was not written here, and would take much memory.
_MOST_HEADER = 2**26


def framed(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs in a row, the blobs aligned so that engines need no copy."""
    sizes = [blob.nbytes for blob in blobs]
    head = json.dumps([header, sizes]).encode()
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head]
    at = _LENGTH.size + len(head)
    for blob in blobs:
        parts += [bytes(-at % _ALIGNED), blob.data]
        at += len(parts[-2]) + blob.nbytes
    return b"".join(parts)


def unframed(payload: bytes | memoryview) -> tuple[Any, Iterator[Array]]:
    """Read a header, and its blobs in place, in order; ValueError if the payload is invalid."""
    if len(payload) < _LENGTH.size:
        raise ValueError("The payload is too short.")
    (length,) = _LENGTH.unpack_from(payload)
    if length > _MOST_HEADER:
        raise ValueError(f"The header has {length:,} bytes.")
    at = _LENGTH.size + length
    header, sizes = json.loads(bytes(payload[_LENGTH.size : at]))
    blobs = []
    for size in sizes:
        at += -at % _ALIGNED
        blobs.append(np.frombuffer(payload, np.uint8, size, at))
        at += size
    return header, iter(blobs)
