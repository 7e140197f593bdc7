"""Messages of gRPC as bytes: counted before they are inflated, and split before they are parsed.

gRPC would inflate a message before anybody of ours is asked, so it is told not to. A first pass
over a compressed message keeps what is not a binary tensor, which is little, and the sizes of
those; the tensors are inflated once these sizes are known to be right.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from fusewire.errors import RequestError, RequestTooLarge
from fusewire.serve.limits import ServeLimits

# Fields of a request: its inputs, and their binary tensors; of an input, its numbers.
_INPUTS, _RAW, _CONTENTS = 5, 7, 5
# Types of fields: a number of up to ten bytes, eight bytes, a length, four bytes.
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
# Lists of numbers that have one to ten bytes each, and eight when they are read.
_SHORT_NUMBERS = range(1, 6)
# The most fields of a message, of all its inputs, and of all their lists.
_MOST_FIELDS, _MOST_LISTED = 4096, 65_536
# The most bytes besides tensors. Those of empty parameters take longest to parse: 16 ms.
_MOST_REST = 256 << 10
# Messages of fewer bytes are parsed without a look at their inputs.
SMALL = 16 << 10
# Bytes that a message takes when it is read, for each byte that it may have.
_GROWTH = 4
_PIECE = 1 << 16
# No message begins so: a field of a type that there is not, and one that requests do not have.
_GZIP, _ZLIB = b"\x1f\x8b", 0x78


@dataclass(frozen=True)
class SplitMessage:
    """A message without its binary tensors; ``raws`` are these, unless they must be inflated."""

    outline: bytes
    sizes: tuple[int, ...]
    raws: tuple[bytes | memoryview, ...] | None


def is_compressed(raw: bytes) -> bool:
    """Tell whether a message is compressed, by gzip or as zlib does."""
    return _window(raw) is not None


def split_message(raw: bytes, limits: ServeLimits) -> SplitMessage:
    """Split a message, keeping nothing that is compressed; RequestError if it cannot be read."""
    stream = _Stream(raw, limits.body_bytes)
    outline, sizes = bytearray(), list[int]()
    raws: list[bytes | memoryview] = []
    for _ in range(_MOST_FIELDS):
        if stream.is_over():
            _check_inputs(outline, limits)
            kept = None if is_compressed(raw) else tuple(raws)
            return SplitMessage(bytes(outline), tuple(sizes), kept)
        tag, number = stream.varint()
        if number == _RAW << 3 | _LENGTH:
            _, size = stream.varint()
            sizes.append(size)
            raws.append(stream.pass_over(size))
        else:
            outline += tag + _field(stream, number & 7, limits.json_bytes - len(outline))
    raise _too_large(limits)


def inflated_tensors(raw: bytes, split: SplitMessage, limits: ServeLimits) -> list[bytes]:
    """Inflate the binary tensors of a message, whose sizes are right."""
    stream, tensors = _Stream(raw, limits.body_bytes), list[bytes]()
    while len(tensors) < len(split.sizes):
        _, number = stream.varint()
        if number == _RAW << 3 | _LENGTH:
            _, size = stream.varint()
            tensors.append(stream.take(size))
        else:
            _field(stream, number & 7, limits.json_bytes)
    return tensors


def _field(stream: _Stream, kind: int, most: int) -> bytes:
    """Take what follows the tag of a field."""
    if kind == _VARINT:
        return stream.varint()[0]
    if kind in (_EIGHT, _FOUR):
        return stream.take(8 if kind == _EIGHT else 4)
    if kind != _LENGTH:
        raise RequestError("The message has a field of an unknown type.")
    begin, size = stream.varint()
    if size > most:
        raise RequestTooLarge(
            f"The message has {size} bytes or more besides raw_input_contents; the limit is {most}."
            " Send tensors as raw_input_contents."
        )
    return begin + stream.take(size)


def _check_inputs(outline: bytearray, limits: ServeLimits) -> None:
    """Refuse inputs that take many times their bytes, or long, when they are read."""
    if len(outline) <= SMALL:
        return
    fields, listed = _MOST_FIELDS, _MOST_LISTED
    rest, taken = len(outline), 0
    for number, part in _fields(memoryview(outline), limits, _MOST_FIELDS):
        inner = _fields(part, limits, fields) if number == _INPUTS else []
        fields -= len(inner)
        for number_inside, contents in inner:
            if number_inside == _CONTENTS:
                lists = _fields(contents, limits, listed)
                listed -= len(lists)
                rest -= len(contents)
                taken += _taken(lists)
    if rest > _MOST_REST or taken > _GROWTH * limits.json_bytes:
        raise _too_large(limits)


def _taken(lists: Sequence[tuple[int, memoryview]]) -> int:
    """Count the bytes that lists of numbers take when they are read."""
    taken = 0
    for number, part in lists:
        if number in _SHORT_NUMBERS:
            # The last byte of each has its highest bit clear.
            taken += 8 * int(np.count_nonzero(np.frombuffer(part, np.uint8) < 0x80))
        taken += len(part) + 16
    return taken


def _fields(raw: memoryview, limits: ServeLimits, most: int) -> list[tuple[int, memoryview]]:
    """List the numbers of fields, and the bytes of those that have a length."""
    stream, found = _Stream(raw, len(raw)), list[tuple[int, memoryview]]()
    while not stream.is_over():
        if len(found) == most:
            raise _too_large(limits)
        _, number = stream.varint()
        kind = number & 7
        if kind == _LENGTH:
            _, size = stream.varint()
            found.append((number >> 3, memoryview(stream.pass_over(size))))
        else:
            _field(stream, kind, 0)
            found.append((number >> 3, raw[:0]))
    return found


def _too_large(limits: ServeLimits) -> RequestTooLarge:
    return RequestTooLarge(
        f"The message has too many fields, more than {_MOST_REST} bytes besides tensors, or "
        f"numbers that take more than {_GROWTH * limits.json_bytes} bytes. Send tensors as "
        "raw_input_contents."
    )


def _window(raw: bytes | memoryview) -> int | None:
    """Return what zlib calls the format of compressed bytes; None if they are not."""
    if raw[:2] == _GZIP:
        return 31
    is_zlib = len(raw) > 1 and raw[0] == _ZLIB and (raw[0] << 8 | raw[1]) % 31 == 0
    return 15 if is_zlib else None


@final
class _Stream:
    """The bytes of a message from its start on, inflated in pieces if they are compressed."""

    def __init__(self, raw: bytes | memoryview, most: int) -> None:
        window = _window(raw) if isinstance(raw, bytes) else None
        self._inflating = None if window is None else zlib.decompressobj(window)
        self._rest = raw
        self._ready = memoryview(b"" if self._inflating else raw)
        self._at = 0
        # How many more bytes there may be.
        self._most = most

    def is_over(self) -> bool:
        """Tell whether there are no more bytes."""
        return self._at == len(self._ready) and not self._refilled()

    def _refilled(self) -> bool:
        if self._inflating is None:
            return False
        piece = b""
        while not piece and not self._inflating.eof:
            try:
                piece = self._inflating.decompress(self._rest, _PIECE)
            except zlib.error as error:
                raise RequestError(f"The message cannot be inflated: {error}.") from None
            is_stuck = not piece and not self._inflating.unconsumed_tail
            self._rest = self._inflating.unconsumed_tail
            if is_stuck and not self._inflating.eof:
                raise RequestError("The message cannot be inflated: it is cut off.")
        self._most -= len(piece)
        if self._most < 0:
            raise RequestTooLarge("The inflated message is larger than the limit.")
        self._ready, self._at = memoryview(piece), 0
        return bool(piece)

    def varint(self) -> tuple[bytes, int]:
        """Take a number; returns its bytes, too."""
        number, begin = 0, self._at
        ready = self._ready
        for place, byte in enumerate(ready[begin : begin + 10]):
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                self._at = begin + place + 1
                return bytes(ready[begin : self._at]), number
        return self._slow_varint()

    def _slow_varint(self) -> tuple[bytes, int]:
        number, raw = 0, b""
        while len(raw) < 10:
            raw += self.take(1)
            number |= (raw[-1] & 0x7F) << 7 * (len(raw) - 1)
            if raw[-1] < 0x80:
                return raw, number
        raise RequestError("The message has a number of more than ten bytes.")

    def take(self, size: int) -> bytes:
        """Take so many bytes."""
        if size <= len(self._ready) - self._at:
            return bytes(self.pass_over(size))
        parts = bytearray()
        while len(parts) < size:
            parts += self._some(size - len(parts))
        return bytes(parts)

    def pass_over(self, size: int) -> bytes | memoryview:
        """Go on behind so many bytes; returns them if they need not be inflated."""
        end = self._at + size
        if end <= len(self._ready):
            passed = self._ready[self._at : end]
            self._at = end
            return passed
        while size > 0:
            size -= len(self._some(size))
        return b""

    def _some(self, most: int) -> memoryview:
        if self.is_over():
            raise RequestError("The message ends within a field.")
        part = self._ready[self._at : self._at + most]
        self._at += len(part)
        return part
