"""Connections that do not wait for slow clients for ever."""

from __future__ import annotations

import asyncio
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# A client has so long from connecting, or from the first byte of a request, to the end of its
# headers; and this many bytes for them.
HEADER_SECONDS = 10.0
HEADER_BYTES = 64 << 10
# From there to the end of the body. The application answers earlier if it can.
BODY_SECONDS = 30.0
# So long may what was sent to a client wait for it to read.
WRITE_SECONDS = 60.0


@final
class OpenTransport(asyncio.Transport):
    """A transport to which nothing is written once its client has left.

    Uvicorn 0.54 goes on with requests that it has read, and uvloop raises RuntimeError for each.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Describe the connection."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Tell whether the connection ends, or has ended."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Have the client wait."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, unless nobody is there to read them."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End the connection when what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()


@final
class GuardedConnection(HttpToolsProtocol):  # type: ignore[misc] # uvicorn is not read by mypy
    """An HTTP connection of uvicorn that is closed if a request does not arrive in time.

    Uvicorn 0.54 waits without a limit: for headers, for a body, and for a client to read.
    """

    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _is_in_request = False
    _is_in_headers = False
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(OpenTransport(transport))
        self._expect(HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Read what came; wait for the rest of the request if it is not whole."""
        super().data_received(data)
        if not self._is_in_request or self.transport.is_closing():
            return
        self._header_bytes += len(data) if self._is_in_headers else 0
        if self._header_bytes > HEADER_BYTES:
            self.transport.close()
        elif self._reading is None:
            self._expect(HEADER_SECONDS if self._is_in_headers else BODY_SECONDS)

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        super().on_message_begin()
        self._is_in_request = self._is_in_headers = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        """Note that headers are whole."""
        self._is_in_headers = False
        self._settle()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the body is whole."""
        self._is_in_request = False
        self._settle()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._writing = self._writing or loop.call_later(WRITE_SECONDS, self._unread)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._settle_writing()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._settle()
        self._settle_writing()
        # What it sent before and nobody has begun to answer.
        self.pipeline.clear()
        super().connection_lost(exc)

    def _expect(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._reading = loop.call_later(seconds, self._late, seconds)

    def _settle(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _settle_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _late(self, seconds: float) -> None:
        self._reading = None
        if self.flow.read_paused:
            # It waits for an earlier request of this connection, and is not slow.
            self._expect(seconds)
        elif not self.transport.is_closing():
            self.transport.close()

    def _unread(self) -> None:
        self._writing = None
        self.transport.abort()
