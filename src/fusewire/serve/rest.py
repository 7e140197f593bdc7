"""The REST side of the Open Inference Protocol, as an ASGI application.

Inference requests take a short road of their own, since what is done here is done for each of them;
all else is routed by Starlette. Bodies are hostile: every length and number in them is checked
against the bytes that are there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import orjson

from fusewire.errors import (
    FusewireError,
    NotJsonError,
    RequestError,
    RequestTooLarge,
    ServerBusy,
    TokenError,
)
from fusewire.ir.graph import Array
from fusewire.serve.access import Doorkeeper
from fusewire.serve.body import ClientLeft, Receive, RequestBody, Scope, too_long_json
from fusewire.serve.datatypes import datatype_of, raw_view, write_listed, write_raw
from fusewire.serve.header import RequestHeader, read_header
from fusewire.serve.json_reader import JsonReader
from fusewire.serve.logs import log_failure
from fusewire.serve.model import LoadedModel, ServedModel
from fusewire.serve.repository import Repository, status_of

Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
Headers: TypeAlias = "list[tuple[bytes, bytes]]"
# Of a body, in order.
Parts: TypeAlias = "list[bytes | memoryview]"
# A request, and its tensors in the order of the model's inputs.
Read: TypeAlias = "tuple[LoadedModel, RequestHeader, list[Array]]"

_LENGTH = b"inference-header-content-length"
# Paths that are remembered, headers and answers of requests to a model, and how long headers are.
_KNOWN = 256
_KNOWN_BYTES = 4096
# A client is watched for leaving once it has waited so long.
_WATCH_AFTER = 0.1
# Longer answers are sent in parts, which are not copied.
_JOINED_BYTES = 1 << 16
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")


class RestApp:
    """Answers HTTP requests for the models of a repository."""

    def __init__(self, repository: Repository, pages: Callable[..., Awaitable[None]]) -> None:
        self._repository = repository
        self._limits = repository.limits
        self._pages = pages
        self._json = JsonReader(repository.limits)
        self._doorkeeper = Doorkeeper(repository.access)
        self._watched: deque[tuple[float, asyncio.Future[Any], Receive]] = deque()
        self._watchers: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["path"].endswith("/infer"):
            await self._infer(scope, receive, send)
        elif scope["type"] == "http":
            await self._page(scope, receive, send)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._doorkeeper.check(scope)
        except FusewireError as error:
            await _send(send, *failure(error))
        else:
            await self._pages(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            model = self._found(scope)
        except FusewireError as error:
            await _send(send, *failure(error))
            return
        body = RequestBody(self._repository, receive)
        try:
            headers, parts = await self._answer(model, scope, body)
            status = 200
        except ClientLeft:
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None, "a coroutine runs in a task"
            if task.cancelling():
                raise
            return
        except FusewireError as error:
            status, headers, parts = failure(error)
            if status >= 500 and not isinstance(error, RequestError):
                log_failure(model.config.name, "rest", error)
        finally:
            body.release()
        model.counts.note_answer("rest", str(status))
        await _send(send, status, headers, parts)

    def _found(self, scope: Scope) -> ServedModel:
        """Find the model that a request asks, if it may."""
        self._doorkeeper.check(scope)
        if scope["method"] != "POST":
            raise RequestError("Inference takes a POST request.")
        return self._repository.find(*_path_parts(scope["path"]))

    async def _answer(
        self, model: ServedModel, scope: Scope, reading: RequestBody
    ) -> tuple[Headers, Parts]:
        reading.note_headers(scope)
        loaded, asked, arrays = await self._read(model, reading)
        limit = self._limits.request_seconds
        seconds = limit if asked.timeout is None else min(limit, asked.timeout)
        now = time.monotonic()
        future = loaded.submit(arrays, asked.form, now + seconds)
        if asked.timeout is not None:
            self._repository.expire(future, seconds)
        self._watch(now, future, reading.receive)
        return _written(model, loaded, asked, await future)

    async def _read(self, model: ServedModel, reading: RequestBody) -> Read:
        """Read a request, as far as it is not refused before, and make its tensors."""
        body = await reading.first()
        if body is None:
            return await self._read_pieces(model, reading)
        size = len(body) if reading.length is None else reading.length
        if size > len(body):
            raise RequestError(f"The header has {size} bytes of a body of {len(body)}.")
        if size > self._limits.json_bytes:
            raise too_long_json(size, self._limits.json_bytes)
        loaded, asked = await self._header(model, body[:size])
        _check_rest(asked, len(body) - size)
        arrays = asked.arrays(body, size)
        return loaded, asked if size <= _KNOWN_BYTES else asked.without_lists(), arrays

    async def _read_pieces(self, model: ServedModel, reading: RequestBody) -> Read:
        """Read a request that is long, slow or compressed."""
        most, length, buffer = self._limits.json_bytes, reading.length, reading.buffer
        await reading.fill(most + 1 if length is None else min(length, most + 1))
        size = len(buffer) if length is None else length
        if size > most:
            raise too_long_json(size, most)
        if size > len(buffer):
            raise RequestError(f"The header has {size} bytes of a body of {len(buffer)}.")
        with memoryview(buffer) as view:
            raw = bytes(view[:size])
        if length is None:
            buffer.clear()
        loaded, asked = await self._header(model, raw)
        if length is None:
            _check_rest(asked, 0)
            return loaded, asked.without_lists(), asked.arrays(b"", 0)
        return await self._read_rest(model, reading, raw, asked)

    async def _read_rest(
        self, model: ServedModel, reading: RequestBody, raw: bytes, asked: RequestHeader
    ) -> Read:
        """Read the binary tensors of a request, as many bytes as its JSON part says."""
        total = len(raw) + asked.rest
        if total > self._limits.body_bytes:
            raise RequestTooLarge(
                f"The request has {total} bytes or more; the limit is {self._limits.body_bytes}."
            )
        if reading.declared is not None:
            _check_rest(asked, reading.declared - len(raw))
        await reading.fill(total + 1)
        _check_rest(asked, len(reading.buffer) - len(raw))
        body = memoryview(reading.buffer).toreadonly()
        arrays = await _arrays_of(asked, body, len(raw))
        loaded = self._repository.ready(model)
        if not loaded.binder.has(asked.form):
            # It was replaced while the tensors came.
            loaded, asked = await self._header(model, raw)
            _check_rest(asked, len(reading.buffer) - len(raw))
            arrays = asked.arrays(body, len(raw))
        return loaded, asked.without_lists(), arrays

    async def _header(self, model: ServedModel, raw: bytes) -> tuple[LoadedModel, RequestHeader]:
        """Read the JSON part of a request, here if that is quick, else in a child."""
        loaded = self._repository.ready(model)
        known: RequestHeader | None = loaded.headers.get(raw)
        if known is not None:
            return loaded, known
        listed: dict[int, Array] = {}
        size, rest = len(raw), raw
        if size > self._limits.json_at_once:
            rest, listed = await self._json.read(raw)
            loaded = self._repository.ready(model)
        asked = read_header(loaded, rest, self._limits.inputs, listed)
        if size <= _KNOWN_BYTES and asked.id is None:
            if len(loaded.headers) >= _KNOWN:
                loaded.headers.clear()
            loaded.headers[raw] = asked
        return loaded, asked

    async def close(self) -> None:
        """End the child that parses large requests."""
        await asyncio.get_running_loop().run_in_executor(None, self._json.close)

    def _watch(self, now: float, future: asyncio.Future[Any], receive: Receive) -> None:
        """Have requests that wait for long be cancelled when their client leaves."""
        watched = self._watched
        watched.append((now, future, receive))
        while watched[0][0] < now - _WATCH_AFTER:
            _, waiting, ask = watched.popleft()
            if not waiting.done():
                task = asyncio.get_running_loop().create_task(_cancel_with(waiting, ask))
                self._watchers.add(task)
                task.add_done_callback(self._watchers.discard)


async def _send(send: Send, status: int, headers: Headers, parts: Parts) -> None:
    size = sum(map(len, parts))
    headers.append((b"content-length", b"%d" % size))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if size > _JOINED_BYTES:
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        parts = []
    await send({"type": "http.response.body", "body": b"".join(parts)})


async def _cancel_with(future: asyncio.Future[Any], receive: Receive) -> None:
    message = await receive()
    if message["type"] == "http.disconnect":
        future.cancel()


@functools.lru_cache(_KNOWN)
def _path_parts(path: str) -> tuple[str, str | None]:
    """Read `/v2/models/NAME[/versions/VERSION]/infer`."""
    parts = path.split("/")[1:]
    if parts[:2] == ["v2", "models"] and len(parts) == 4:
        return parts[2], None
    if parts[:2] == ["v2", "models"] and len(parts) == 6 and parts[3] == "versions":
        return parts[2], parts[4]
    raise RequestError("The path of an inference request is /v2/models/NAME/infer.")


async def _arrays_of(asked: RequestHeader, body: memoryview, start: int) -> list[Array]:
    """Make the inputs of the model; texts are read one by one, which takes long for many."""
    if None in asked.form.sizes:
        return await asyncio.to_thread(asked.arrays, body, start)
    return asked.arrays(body, start)


def _check_rest(asked: RequestHeader, rest: int) -> None:
    if rest != asked.rest:
        raise RequestError(f"{rest} bytes follow the header, which says {asked.rest}.")


def _written(
    model: ServedModel, loaded: LoadedModel, asked: RequestHeader, outputs: Sequence[Array]
) -> tuple[Headers, Parts]:
    chosen = [outputs[place] for place, _ in asked.outputs]
    if asked.id is not None or not all(is_binary for _, is_binary in asked.outputs):
        return _described(model, loaded, asked, chosen)
    # All that the header says follows from these; strings differ in size.
    key = (asked.outputs, *[array.shape for array in chosen])
    header = loaded.answers.get(key)
    if header is None or any(array.dtype == object for array in chosen):
        headers, parts = _described(model, loaded, asked, chosen)
        if len(loaded.answers) >= _KNOWN:
            loaded.answers.clear()
        loaded.answers[key] = bytes(parts[0])
        return headers, parts
    raws = [raw_view(array) for array in chosen]
    return [_BINARY, (_LENGTH, b"%d" % len(header))], [header, *raws]


def _described(
    model: ServedModel, loaded: LoadedModel, asked: RequestHeader, chosen: Sequence[Array]
) -> tuple[Headers, Parts]:
    """Write an answer in full: a header in JSON, and binary outputs behind it."""
    rows: list[dict[str, Any]] = []
    parts: Parts = []
    for (place, is_binary), array in zip(asked.outputs, chosen, strict=True):
        port = loaded.outputs[place]
        row: dict[str, Any] = {
            "name": port.name,
            "datatype": datatype_of(port.dtype),
            "shape": list(array.shape),
        }
        if is_binary:
            parts.append(write_raw(array))
            row["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            try:
                row["data"] = write_listed(array)
            except ValueError:
                raise NotJsonError(
                    f"The output {port.name} has NaN or infinity, which are not numbers of JSON. "
                    'Ask for it as binary data: "parameters": {"binary_data": true}.'
                ) from None
        rows.append(row)
    said: dict[str, Any] = {"model_name": model.config.name, "model_version": loaded.version}
    if asked.id is not None:
        said["id"] = asked.id
    said["outputs"] = rows
    header = _json(said)
    if not parts:
        return [_JSON], [header]
    return [_BINARY, (_LENGTH, b"%d" % len(header))], [header, *parts]


def _json(said: dict[str, Any]) -> bytes:
    """Write an answer; numbers of tensors take most of the time that it takes."""
    try:
        return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        # A text has half of a pair of surrogates, which only an escape can write.
        return json.dumps(said, separators=(",", ":"), default=np.ndarray.tolist).encode()


def failure(error: FusewireError) -> tuple[int, Headers, Parts]:
    """Write an error as the protocol does, with its type as a code."""
    status = status_of(error)
    headers: Headers = [_JSON]
    if isinstance(error, ServerBusy):
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if isinstance(error, TokenError):
        headers.append((b"www-authenticate", b"Bearer"))
    said = {"error": str(error)[:2000], "code": type(error).__name__}
    return status, headers, [json.dumps(said).encode()]
