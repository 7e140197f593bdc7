"""One entry as bytes: nothing of it is believed before all of it was checked.

    magic (8) · length of the header (4) · header (JSON: key, payload's length and SHA-256)
    · payload · HMAC-SHA256 (32) of everything before it under the user's key

A digest beside a payload proves nothing against someone who can write both; the HMAC does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass

from fusewire.errors import StoreError
from fusewire.store.key import Key

MAGIC = b"FUSEWIR1"
_LENGTH = struct.Struct(">I")
_MAC = 32
_MOST_HEADER = 2**16
START = len(MAGIC) + _LENGTH.size


@dataclass(frozen=True)
class Header:
    """What an entry says of itself."""

    key: Key
    size: int
    sha256: str
    length: int

    @property
    def total(self) -> int:
        """Bytes of the whole entry."""
        return START + self.length + self.size + _MAC


def pack(key: Key, payload: bytes, secret: bytes) -> bytes:
    """Make an entry."""
    held = {**key.to_json(), "size": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    header = json.dumps(held, separators=(",", ":")).encode()
    if len(header) > _MOST_HEADER:
        raise StoreError(f"A key of {len(header):,} bytes: {_MOST_HEADER:,} are allowed.")
    body = b"".join((MAGIC, _LENGTH.pack(len(header)), header, payload))
    return body + hmac.digest(secret, body, "sha256")


def read_header(held: bytes) -> Header:
    """Read the header of an entry, or of the beginning of one; StoreError when it is none."""
    if len(held) < START or not held.startswith(MAGIC):
        raise StoreError("It does not begin like an entry of this format.")
    (length,) = _LENGTH.unpack_from(held, len(MAGIC))
    if length > _MOST_HEADER or len(held) < START + length:
        raise StoreError("Its header is cut off.")
    try:
        found = json.loads(held[START : START + length])
    except (ValueError, RecursionError):
        raise StoreError("Its header is not JSON.") from None
    if not isinstance(found, dict):
        raise StoreError("Its header is not an object.")
    size, sha256 = found.get("size"), found.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise StoreError("Its header has no size.")
    if not isinstance(sha256, str):
        raise StoreError("Its header has no digest.")
    return Header(Key.from_json(found), size, sha256, length)


def unpack(held: bytes, key: Key | None, secret: bytes) -> bytes:
    """Check an entry from end to end and give its payload; StoreError says what is wrong.

    ``key`` is the one asked for: an entry put under another's name is refused. None takes any.
    """
    header = read_header(held)
    if len(held) != header.total:
        raise StoreError(f"It has {len(held):,} bytes, and its header says {header.total:,}.")
    body, mac = held[:-_MAC], held[-_MAC:]
    if not hmac.compare_digest(hmac.digest(secret, body, "sha256"), mac):
        raise StoreError("It was not written with this user's key, or was changed since.")
    payload = body[START + header.length :]
    if hashlib.sha256(payload).hexdigest() != header.sha256:
        raise StoreError("Its payload is not what its digest says.")
    if key is not None and header.key != key:
        raise StoreError("It is the entry of another key.")
    return payload
