"""The REST side of the Open Inference Protocol, as an ASGI application.

Inference requests take a short road of their own, since what is done here is done for each of them;
all else is routed by Starlette. Bodies are hostile: every length and number in them is checked
against the bytes that are there.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import orjson

from fusewire.errors import (
    FusewireError,
    NotJsonError,
    RequestError,
    RequestTooLarge,
    ServerBusy,
)
from fusewire.ir.graph import Array
from fusewire.serve.binding import BoundForm, TensorForm
from fusewire.serve.datatypes import (
    datatype_of,
    raw_view,
    read_listed,
    read_raw,
    write_listed,
    write_raw,
)
from fusewire.serve.logs import log_failure
from fusewire.serve.model import Generation, ServedModel
from fusewire.serve.repository import Repository, status_of

Scope: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[dict[str, Any]]]"
Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
Headers: TypeAlias = "list[tuple[bytes, bytes]]"
# Of a body, in order.
Parts: TypeAlias = "list[bytes | memoryview]"

_LENGTH = b"inference-header-content-length"
# Headers of requests that a model remembers, and how long they may be.
_KNOWN = 256
_KNOWN_BYTES = 4096
# A client is watched for leaving once it has waited so long.
_WATCH_AFTER = 0.1
# Longer answers are sent in parts, which are not copied.
_JOINED_BYTES = 1 << 16
_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")


@dataclass(frozen=True, eq=False)
class _Asked:
    """The JSON part of a request, checked against a generation of a model.

    ``starts`` are where binary tensors begin behind it; None where ``data`` has a list instead.
    ``outputs`` are positions of the outputs to send, and whether as binary.
    """

    form: BoundForm
    starts: tuple[int | None, ...]
    sizes: tuple[int, ...]
    data: tuple[Any, ...]
    outputs: tuple[tuple[int, bool], ...]
    id: str | None
    timeout: float | None
    # What follows the JSON part.
    rest: int


class ClientLeft(Exception):
    """The client closed the connection: nobody waits for an answer."""


class _Body:
    """The body of a request, whose bytes count as held until it is answered."""

    __slots__ = ("_held", "_repository", "receive")

    def __init__(self, repository: Repository, receive: Receive) -> None:
        self.receive = receive
        self._repository = repository
        self._held = 0

    def expect(self, size: int) -> None:
        """Refuse a body that says that it is too large."""
        if size > (limit := self._repository.limits.body_bytes):
            raise RequestTooLarge(f"The request has {size} bytes or more; the limit is {limit}.")
        self.hold(size)

    def hold(self, size: int) -> None:
        """Count so many bytes, if they are more than those that count already."""
        if size > self._held:
            self._repository.hold(size - self._held)
            self._held = size

    def release(self) -> None:
        """Count nothing more."""
        self._repository.release(self._held)
        self._held = 0

    async def read(self) -> bytes:
        """Read all of it, within the time that a client has."""
        message = await self.receive()
        if message["type"] != "http.request":
            raise ClientLeft
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            self.expect(len(body))
            return body
        seconds = self._repository.limits.read_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._rest(body)
        except TimeoutError:
            raise RequestError(f"The request was not sent within {seconds:g} seconds.") from None

    async def _rest(self, first: bytes) -> bytes:
        body, more = bytearray(first), True
        while more:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientLeft
            body += message.get("body", b"")
            self.expect(len(body))
            more = message.get("more_body", False)
        return bytes(body)


class RestApp:
    """Answers HTTP requests for the models of a repository."""

    def __init__(self, repository: Repository, pages: Callable[..., Awaitable[None]]) -> None:
        self._repository = repository
        self._limits = repository.limits
        self._pages = pages
        self._paths: dict[str, tuple[str, str | None]] = {}
        self._watched: deque[tuple[float, asyncio.Future[Any], Receive]] = deque()
        self._watchers: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["path"].endswith("/infer"):
            await self._infer(scope, receive, send)
        elif scope["type"] == "http":
            await self._pages(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        model: ServedModel | None = None
        body = _Body(self._repository, receive)
        try:
            if scope["method"] != "POST":
                raise RequestError("Inference takes a POST request.")
            model = self._model(scope["path"])
            headers, parts = await self._answer(model, scope, body)
            status = 200
        except ClientLeft:
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return
        except FusewireError as error:
            status, headers, parts = failure(error)
            if status >= 500 and not isinstance(error, RequestError):
                log_failure(model.config.name if model else None, "rest", error)
        finally:
            body.release()
        if model is not None:
            model.counts.note_answer("rest", str(status))
        size = sum(map(len, parts))
        headers.append((b"content-length", b"%d" % size))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if size > _JOINED_BYTES:
            for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            parts = []
        await send({"type": "http.response.body", "body": b"".join(parts)})

    def _model(self, path: str) -> ServedModel:
        known = self._paths.get(path)
        if known is None:
            known = _path_parts(path)
            if len(self._paths) < _KNOWN:
                self._paths[path] = known
        return self._repository.find(*known)

    async def _answer(
        self, model: ServedModel, scope: Scope, reading: _Body
    ) -> tuple[Headers, Parts]:
        length = encoding = None
        for name, value in scope["headers"]:
            if name == _LENGTH:
                length = _number(value)
            elif name == b"content-length":
                reading.expect(_number(value))
            elif name == b"content-encoding":
                encoding = value
        body = await reading.read()
        if encoding is not None:
            body = _inflated(body, encoding, self._limits.body_bytes)
            reading.hold(len(body))
        generation = self._repository.ready(model)
        size = len(body) if length is None else length
        asked = self._asked(generation, body, size)
        limit = self._limits.request_seconds
        seconds = limit if asked.timeout is None else min(limit, asked.timeout)
        arrays = _arrays(asked, body, len(body) - asked.rest)
        if size > _KNOWN_BYTES:
            # Lists of numbers take many times the memory of the arrays that were made of them.
            asked = replace(asked, data=())
        now = time.monotonic()
        future = generation.submit(arrays, asked.form, now + seconds)
        if asked.timeout is not None:
            self._repository.expire(future, seconds)
        self._watch(now, future, reading.receive)
        return _written(model, generation, asked, await future)

    def _asked(self, generation: Generation, body: bytes, length: int) -> _Asked:
        if not 0 < length <= len(body):
            raise RequestError(f"The header has {length} bytes of a body of {len(body)}.")
        if length > self._limits.json_bytes:
            raise RequestTooLarge(
                f"The JSON part has {length} bytes; the limit is {self._limits.json_bytes}. "
                "Send tensors as binary data."
            )
        header = body if length == len(body) else body[:length]
        rest = len(body) - length
        asked: _Asked | None = generation.headers.get(header)
        if asked is None:
            asked = _read_header(generation, header, self._limits.inputs)
            if rest != asked.rest:
                raise RequestError(f"{rest} bytes follow the header, which says {asked.rest}.")
            if length <= _KNOWN_BYTES and asked.id is None:
                if len(generation.headers) >= _KNOWN:
                    generation.headers.clear()
                generation.headers[header] = asked
        elif rest != asked.rest:
            raise RequestError(f"{rest} bytes follow the header, which says {asked.rest}.")
        return asked

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


async def _cancel_with(future: asyncio.Future[Any], receive: Receive) -> None:
    message = await receive()
    if message["type"] == "http.disconnect" and not future.done():
        future.cancel()


def _path_parts(path: str) -> tuple[str, str | None]:
    """Read `/v2/models/NAME[/versions/VERSION]/infer`."""
    parts = path.split("/")[1:]
    if parts[:2] == ["v2", "models"] and len(parts) == 4:
        return parts[2], None
    if parts[:2] == ["v2", "models"] and len(parts) == 6 and parts[3] == "versions":
        return parts[2], parts[4]
    raise RequestError("The path of an inference request is /v2/models/NAME/infer.")


def _number(value: bytes) -> int:
    if not (value.isdigit() and len(value) < 16):
        raise RequestError(f"{value[:40]!r} is not a length.")
    return int(value)


def _inflated(body: bytes, encoding: bytes, most: int) -> bytes:
    kinds = {b"gzip": 31, b"deflate": 15}
    if encoding not in kinds:
        raise RequestError(f"Content-Encoding {encoding[:40]!r}: send gzip, deflate or none.")
    try:
        inflating = zlib.decompressobj(kinds[encoding])
        found = inflating.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestError(f"The body is not {encoding.decode()}: {error}.") from None
    if len(found) > most:
        raise RequestTooLarge(f"The inflated body has more than {most} bytes.")
    if not inflating.eof:
        raise RequestError(f"The body is not {encoding.decode()}: it is cut off.")
    return found


def _read_header(generation: Generation, header: bytes, most_inputs: int) -> _Asked:
    try:
        said = json.loads(header, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The header is not JSON: {str(error)[:200]}.") from None
    inputs = _field(said, "inputs", list, None)
    if not inputs or len(inputs) > most_inputs:
        raise RequestError(f"A request needs a list of inputs, at most {most_inputs}.")
    forms = tuple(_form(item) for item in inputs)
    form = generation.binder.bind(forms)
    starts: list[int | None] = []
    sizes: list[int] = []
    at = 0
    for item, size, shown in zip(inputs, form.sizes, forms, strict=True):
        sent = _field(item, "parameters", dict, {}).get("binary_data_size")
        starts.append(None if sent is None else at)
        sizes.append(0 if sent is None else _checked_size(sent, size, shown.name))
        at += sizes[-1]
    about = _field(said, "parameters", dict, {})
    return _Asked(
        form,
        tuple(starts),
        tuple(sizes),
        tuple(_field(item, "data", list, None) for item in inputs),
        _outputs(said, about, generation),
        _field(said, "id", str, None),
        timeout_of(about.get("timeout")),
        at,
    )


def _checked_size(sent: Any, size: int | None, name: str) -> int:
    if type(sent) is not int or sent < 0 or (size is not None and sent != size):
        raise RequestError(f"The input {name} has binary_data_size {sent!r:.40}, not {size}.")
    return sent


def _field(said: Any, name: str, kind: type, default: Any) -> Any:
    if not isinstance(said, dict):
        raise RequestError(f"An object was expected, found a {type(said).__name__}.")
    value = said.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise RequestError(f"{name} is a {type(value).__name__}, not a {kind.__name__}.")
    return value


def _form(item: Any) -> TensorForm:
    shape = _field(item, "shape", list, None)
    is_shape = shape is not None and all(type(x) is int and 0 <= x < 1 << 40 for x in shape)
    if not is_shape or len(shape) > 64:
        raise RequestError("The shape of an input is a list of sizes.")
    name, datatype = _field(item, "name", str, ""), _field(item, "datatype", str, "")
    return TensorForm(name, datatype, tuple(shape))


def timeout_of(value: Any) -> float | None:
    """Read a timeout in microseconds, as clients of Triton send it."""
    if value is None:
        return None
    if type(value) is not int or value <= 0:
        raise RequestError(f"timeout {value!r:.40} is not a number of microseconds.")
    return value / 1e6


def _outputs(
    said: Any, about: Mapping[str, Any], generation: Generation
) -> tuple[tuple[int, bool], ...]:
    is_binary = about.get("binary_data_output", False) is True
    wanted = _field(said, "outputs", list, None)
    if not wanted:
        return tuple((place, is_binary) for place in range(len(generation.names)))
    if len(wanted) > len(generation.names):
        raise RequestError(
            f"{len(wanted)} outputs were asked for; there are {len(generation.names)}."
        )
    places = []
    for item in wanted:
        name = _field(item, "name", str, "")
        if name not in generation.names:
            names = ", ".join(generation.names)
            raise RequestError(f"There is no output {name!r:.80}. The outputs are {names}.")
        own = _field(item, "parameters", dict, {})
        if "classification" in own:
            raise RequestError("Classification of outputs is not served.")
        binary = own.get("binary_data", is_binary)
        places.append((generation.names.index(name), binary is True))
    return tuple(places)


def _arrays(asked: _Asked, body: bytes, start: int) -> list[Array]:
    """Make the inputs of the model; binary ones are views of the body."""
    form, view = asked.form, memoryview(body)
    arrays = []
    for place, at in enumerate(asked.starts):
        of, shape, count = form.dtypes[place], form.shapes[place], form.counts[place]
        if at is not None:
            begin = start + at
            raw = view[begin : begin + asked.sizes[place]]
            arrays.append(read_raw(raw, of, shape, count))
        else:
            arrays.append(read_listed(asked.data[place], of, shape, count, f"input {place}"))
    return form.arranged(arrays)


def _written(
    model: ServedModel, generation: Generation, asked: _Asked, outputs: Sequence[Array]
) -> tuple[Headers, Parts]:
    chosen = [outputs[place] for place, _ in asked.outputs]
    if asked.id is not None or not all(is_binary for _, is_binary in asked.outputs):
        return _described(model, generation, asked, chosen)
    # All that the header says follows from these; strings differ in size.
    key = (asked.outputs, *[array.shape for array in chosen])
    header = generation.answers.get(key)
    if header is None or any(array.dtype == object for array in chosen):
        headers, parts = _described(model, generation, asked, chosen)
        if len(generation.answers) >= _KNOWN:
            generation.answers.clear()
        generation.answers[key] = bytes(parts[0])
        return headers, parts
    raws = [raw_view(array) for array in chosen]
    return [_BINARY, (_LENGTH, b"%d" % len(header))], [header, *raws]


def _described(
    model: ServedModel, generation: Generation, asked: _Asked, chosen: Sequence[Array]
) -> tuple[Headers, Parts]:
    """Write an answer in full: a header in JSON, and binary outputs behind it."""
    rows: list[dict[str, Any]] = []
    parts: Parts = []
    for (place, is_binary), array in zip(asked.outputs, chosen, strict=True):
        port = generation.outputs[place]
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
    said: dict[str, Any] = {"model_name": model.config.name, "model_version": generation.version}
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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON; send the tensor as binary data")


def failure(error: FusewireError) -> tuple[int, Headers, Parts]:
    """Write an error as the protocol does, with its type as a code."""
    status = status_of(error)
    headers: Headers = [_JSON]
    if isinstance(error, ServerBusy):
        headers.append((b"retry-after", b"%d" % error.retry_after))
    said = {"error": str(error)[:2000], "code": type(error).__name__}
    return status, headers, [json.dumps(said).encode()]
