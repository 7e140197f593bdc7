"""The body of an HTTP request: read as far as is needed, inflated in pieces, counted.

Nothing is kept of it beyond what the request may have, however well it is compressed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from fusewire.errors import RequestError, RequestTooLarge
from fusewire.serve.repository import Repository

Receive: TypeAlias = "Callable[[], Awaitable[dict[str, Any]]]"
Scope: TypeAlias = "dict[str, Any]"

_HEADER_LENGTH = b"inference-header-content-length"
_WINDOWS = {b"gzip": 31, b"deflate": 15}
# Inflated at a time, between which the event loop does other things.
_PIECE = 1 << 18


class ClientLeft(Exception):
    """The client closed the connection: nobody waits for an answer."""


class RequestBody:
    """The body of a request, whose bytes count as held until it is answered."""

    __slots__ = (
        "_encoding", "_held", "_pieces", "_repository", "buffer", "declared", "is_whole", "length",
        "receive",
    )  # fmt: skip

    def __init__(self, repository: Repository, receive: Receive) -> None:
        self.receive = receive
        self._repository = repository
        self._held = 0
        self._encoding: bytes | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        # How many bytes the request says that it has, and how many of them are JSON.
        self.declared: int | None = None
        self.length: int | None = None
        self.buffer = bytearray()
        self.is_whole = False

    def note_headers(self, scope: Scope) -> None:
        """Read what the headers say about the body; refuse one that says that it is too large."""
        for name, value in scope["headers"]:
            if name == _HEADER_LENGTH:
                self.length = _number(value)
            elif name == b"content-length":
                self.declared = _number(value)
            elif name == b"content-encoding":
                self._encoding = value
        limits = self._repository.limits
        if self.declared is not None and self.declared > limits.body_bytes:
            raise RequestTooLarge(
                f"The request has {self.declared} bytes or more; the limit is {limits.body_bytes}."
            )
        if self._encoding is None:
            json_size = self.declared if self.length is None else self.length
            if json_size is not None and json_size > limits.json_bytes:
                raise too_long_json(json_size, limits.json_bytes)
        else:
            if self._encoding not in _WINDOWS:
                shown = repr(self._encoding[:40])
                raise RequestError(f"Content-Encoding {shown}: send gzip, deflate or none.")
            self.declared = None

    def hold(self, size: int) -> None:
        """Count so many bytes, if they are more than those that count already."""
        if size > self._held:
            self._repository.hold(size - self._held)
            self._held = size

    def release(self) -> None:
        """Release the bytes held for the request."""
        self._repository.release(self._held)
        self._held = 0

    async def first(self) -> bytes | None:
        """Return the body if it is not compressed and came in one piece; else it is buffered."""
        message = await self.receive()
        if message["type"] != "http.request":
            raise ClientLeft
        body: bytes = message.get("body", b"")
        is_last = not message.get("more_body", False)
        if is_last and self._encoding is None:
            self.hold(len(body))
            self.is_whole = True
            return body
        received = self._received(body, is_last)
        self._pieces = received if self._encoding is None else _inflated(received, self._encoding)
        return None

    async def fill(self, size: int) -> None:
        """Read until so many bytes are buffered, or the body ends, within a client's time."""
        seconds = self._repository.limits.read_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._fill(size)
        except TimeoutError:
            raise RequestError(f"The request was not sent within {seconds:g} seconds.") from None

    async def _fill(self, size: int) -> None:
        assert self._pieces is not None, "it did not come in one piece"
        while len(self.buffer) < size and not self.is_whole:
            piece = await anext(self._pieces, None)
            if piece is None:
                self.is_whole = True
                return
            self.hold(len(self.buffer) + len(piece))
            self.buffer += piece

    async def _received(self, first: bytes, is_last: bool) -> AsyncIterator[bytes]:
        yield first
        while not is_last:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientLeft
            is_last = not message.get("more_body", False)
            yield message.get("body", b"")


async def _inflated(received: AsyncIterator[bytes], encoding: bytes) -> AsyncIterator[bytes]:
    """Inflate a body in pieces, as they are asked for."""
    inflating = zlib.decompressobj(_WINDOWS[encoding])
    async for raw in received:
        rest, piece = raw, bytes(_PIECE)
        while (rest or len(piece) == _PIECE) and not inflating.eof:
            try:
                piece = inflating.decompress(rest, _PIECE)
            except zlib.error as error:
                raise RequestError(f"The body is not {encoding.decode()}: {error}.") from None
            rest = inflating.unconsumed_tail
            yield piece
            await asyncio.sleep(0)
    if not inflating.eof:
        raise RequestError(f"The body is not {encoding.decode()}: it is cut off.")


def too_long_json(size: int, limit: int) -> RequestTooLarge:
    """Say that the JSON part of a request is too long."""
    return RequestTooLarge(
        f"The JSON part has {size} bytes or more; the limit is {limit}. Send tensors as binary "
        "data."
    )


def _number(value: bytes) -> int:
    if not (value.isdigit() and len(value) < 16):
        raise RequestError(f"{value[:40]!r} is not a length.")
    return int(value)
