"""Large requests in JSON, parsed in a child process within limits.

Both parsers of JSON hold the interpreter's lock while they parse, so a thread would stop the server
as long.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np

from fusewire.errors import (
    BackendCrashed,
    BackendHung,
    BackendKilled,
    EngineGarbage,
    EngineOutOfMemory,
    RequestError,
    RequestTooLarge,
    ServerBusy,
)
from fusewire.ir.graph import Array
from fusewire.process.child import Child
from fusewire.process.frames import Frame
from fusewire.process.limits import ChildLimits
from fusewire.serve.json_child import REST_BYTES
from fusewire.serve.limits import ServeLimits

_MODULE = "fusewire.serve.json_child"
_START_SECONDS = 60.0
_ERRORS = {kind.__name__: kind for kind in (RequestError, RequestTooLarge)}


@final
class JsonReader:
    """Has one child, which is started when it is first needed, and again when it died."""

    def __init__(self, limits: ServeLimits) -> None:
        self._limits = limits
        self._child: Child | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="json")
        self._turn = asyncio.Lock()

    async def read(self, raw: bytes) -> tuple[bytes, dict[int, Array]]:
        """Return a request without the tensors that it lists, and their bytes by place."""
        seconds = self._limits.request_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise ServerBusy(
                f"Other requests with more than {self._limits.json_at_once} bytes of JSON were "
                f"parsed for {seconds:g} seconds."
            ) from None
        try:
            loop = asyncio.get_running_loop()
            frame = await loop.run_in_executor(self._thread, self._asked, raw)
        finally:
            self._turn.release()
        return _read(frame)

    def _asked(self, raw: bytes) -> Frame:
        try:
            return self._attempt(raw)
        except (BackendCrashed, BackendKilled):
            # It may have died before, or because somebody ended it.
            return self._attempt(raw)

    def _attempt(self, raw: bytes) -> Frame:
        limits = ChildLimits(self._limits.parse_seconds, self._limits.parse_bytes)
        child = self._running()
        child.greet(_START_SECONDS)
        try:
            header = {"inputs": self._limits.inputs}
            return child.ask(header, [np.frombuffer(raw, np.uint8)], limits, "a request in JSON")
        except (EngineOutOfMemory, BackendHung) as error:
            raise RequestTooLarge(
                f"The JSON part takes too much to parse: {error.reason.rstrip('.')}. Send tensors "
                "as binary data."
            ) from None

    def _running(self) -> Child:
        if self._child is None or not self._child.is_usable:
            self._end()
            self._child = Child("json", _MODULE)
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def close(self) -> None:
        """End the child, when no request is read any more."""
        self._thread.shutdown(wait=True)
        self._end()


def _read(frame: Frame) -> tuple[bytes, dict[int, Array]]:
    """Check what the child answered."""
    if "error" in frame.header:
        name, said = frame.header["error"]
        raise _ERRORS.get(name, RequestError)(str(said))
    rest, *parts = frame.blobs
    if rest.nbytes > REST_BYTES:
        raise EngineGarbage(f"{rest.nbytes} bytes of JSON remain of a request")
    return rest.tobytes(), dict(zip(frame.header["places"], parts, strict=True))
