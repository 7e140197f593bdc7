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
        super().connection_made(transport)
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
