"""Connections that do not wait for slow clients for ever."""

from __future__ import annotations

import asyncio
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# A client has so long from connecting, or from the first byte of a request, to the end of its
# headers; and this many bytes for them.
HEADER_SECONDS = 10.0
HEADER_BYTES = 64 << 10


@final
class GuardedConnection(HttpToolsProtocol):  # type: ignore[misc] # uvicorn is not read by mypy
    """An HTTP connection of uvicorn that is closed if headers do not arrive in time.

    Uvicorn 0.54 waits for them without a limit.
    """

    _timer: asyncio.TimerHandle | None = None
    _is_in_headers = False
    _header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Read what came; wait for the rest of the headers if they are not whole."""
        super().data_received(data)
        if self._is_in_headers and not self.transport.is_closing():
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self.transport.close()
            elif self._timer is None:
                self._expect()

    def on_message_begin(self) -> None:
        """Note that headers begin."""
        super().on_message_begin()
        self._is_in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Note that headers are whole."""
        self._is_in_headers = False
        if self._timer is not None:
            self._settle()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._settle()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._late)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            self.transport.close()
