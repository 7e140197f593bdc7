"""The gRPC side of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

import grpc
import numpy as np

from fusewire.errors import (
    FusewireError,
    RequestError,
    RequestForbidden,
    RequestTimeout,
    RequestTooLarge,
    ServerBusy,
    TokenError,
    UnknownModelError,
)
from fusewire.ir.graph import Array
from fusewire.serve.binding import BoundForm, TensorForm
from fusewire.serve.datatypes import datatype_of, read_listed, read_raw, write_raw
from fusewire.serve.logs import log_failure
from fusewire.serve.messages import METHODS, SERVICE, messages, parse
from fusewire.serve.model import LoadedModel, ServedModel
from fusewire.serve.pages import server_metadata
from fusewire.serve.receiving import Context, Receiver
from fusewire.serve.repository import Repository, status_of
from fusewire.serve.wire import (
    SMALL,
    SplitMessage,
    inflated_tensors,
    is_compressed,
    split_message,
)

Handler: TypeAlias = "Callable[[_Call], Awaitable[Any]]"
Answer = TypeVar("Answer")

# The first that an error is.
_CODES: Sequence[tuple[type[FusewireError], grpc.StatusCode]] = (
    (UnknownModelError, grpc.StatusCode.NOT_FOUND),
    (TokenError, grpc.StatusCode.UNAUTHENTICATED),
    (RequestForbidden, grpc.StatusCode.PERMISSION_DENIED),
    (RequestTooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RequestTimeout, grpc.StatusCode.DEADLINE_EXCEEDED),
    (ServerBusy, grpc.StatusCode.UNAVAILABLE),
)
# Where a request without raw contents has its numbers.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# Metadata and headers that a call may have.
_METADATA_BYTES = 16 << 10
# A connection without a call is closed after so long; clients connect again.
_IDLE_SECONDS = 300
# Large messages are read in threads, which give way to the event loop between their steps. Models
# that compile have others.
_THREADS = 2
# Numbers of a list that are read in one step.
_STEP = 1 << 14


def code_of(error: FusewireError) -> grpc.StatusCode:
    """Give the gRPC code of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    is_callers = status_of(error) < 500
    return grpc.StatusCode.INVALID_ARGUMENT if is_callers else grpc.StatusCode.INTERNAL


class GrpcService:
    """Answers calls for the models of a repository."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._messages = messages()
        self._answer = self._messages.ModelInferResponse
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
        self._receiver = Receiver(repository.limits, self._refused)
        # Whoever restarts or balances servers asks for these, without a token.
        self._probes = (self._server_live, self._server_ready)

    def server(self) -> grpc.aio.Server:
        """Make a server that is not started yet."""
        limits = self._repository.limits
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _METADATA_BYTES),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
                ("grpc.so_reuseport", 0),
                # Otherwise it takes megabytes of messages that nobody has asked for.
                ("grpc.http2.bdp_probe", 0),
                # It would inflate before anything is counted.
                ("grpc.per_message_decompression", 0),
            ],
            maximum_concurrent_rpcs=limits.connections,
        )
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(
                # Read by the handler, which checks who asks, and then what it reads.
                partial(
                    self._answered,
                    getattr(self, f"_{_snake(name)}"),
                    getattr(self._messages, request),
                ),
                None,
                getattr(self._messages, response).SerializeToString,
            )
            for name, (request, response) in METHODS.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return server

    async def _answered(self, answer: Handler, kind: Any, _: Any, context: Context) -> Any:
        """Read a message and answer it; errors of ours become codes of gRPC."""
        call = _Call(self._repository, context, self._threads)
        try:
            if answer in self._probes:
                # Their messages are empty: nobody waits for them.
                return await answer(call)
            self._repository.access.check(_authorization(context))
            # What gRPC raises when a call is aborted refers to itself, to this frame and to all
            # errors behind it, until the collector of garbage comes by: no message is kept here.
            call.take(await self._receiver.receive(context))
            return await self._answer_to(call, answer, kind)
        except FusewireError as error:
            refusal = self._refusal(error, getattr(call.request, "model_name", ""))
        finally:
            call.release()
        return await context.abort(*refusal)

    async def _answer_to(self, call: _Call, answer: Handler, kind: Any) -> Any:
        call.hold(len(call.raw))
        if call.is_large:
            call.split = await call.do(split_message, call.raw, self._repository.limits)
        call.request = parse(kind, call.split.outline)
        return await answer(call)

    async def _refused(self, context: Context, error: FusewireError) -> None:
        """End a call from outside; InternalError says that its client has left."""
        with contextlib.suppress(grpc.aio.AbortError, grpc.aio.InternalError):
            await context.abort(*self._refusal(error))

    def _refusal(self, error: FusewireError, name: str = "") -> tuple[Any, ...]:
        """Count and log an error; returns what to abort its call with."""
        code, model = code_of(error), self._repository.models.get(name)
        if model is not None:
            model.counts.note_answer("grpc", code.name)
        if status_of(error) >= 500 and not isinstance(error, RequestError):
            log_failure(name, "grpc", error)
        return code, str(error)[:2000], (("fusewire-code", type(error).__name__),)

    async def _server_live(self, call: _Call) -> Any:
        return self._messages.ServerLiveResponse(live=True)

    async def _server_ready(self, call: _Call) -> Any:
        return self._messages.ServerReadyResponse(ready=self._repository.is_ready)

    async def _model_ready(self, call: _Call) -> Any:
        model = self._repository.find(call.request.name, call.request.version)
        return self._messages.ModelReadyResponse(ready=model.is_ready)

    async def _server_metadata(self, call: _Call) -> Any:
        return self._messages.ServerMetadataResponse(**server_metadata())

    async def _model_metadata(self, call: _Call) -> Any:
        model = self._repository.find(call.request.name, call.request.version)
        return self._messages.ModelMetadataResponse(**self._repository.metadata(model))

    async def _model_infer(self, call: _Call) -> Any:
        request = call.request
        model = self._repository.find(request.model_name, request.model_version)
        loaded = self._repository.ready(model)
        if len(request.inputs) > self._repository.limits.inputs:
            raise RequestTooLarge(f"The request has {len(request.inputs)} inputs.")
        forms = tuple([TensorForm(x.name, x.datatype, tuple(x.shape)) for x in request.inputs])
        if any(dim < 0 for _, _, shape in forms for dim in shape):
            raise RequestError("The shape of an input is a list of sizes.")
        form = loaded.binder.bind(forms)
        _wanted(request, loaded)
        raws = await call.tensors(form)
        arrays = await call.do(_arrays, request, raws, form)
        if not loaded.binder.has(form) or loaded is not model.current:
            # It was replaced while the tensors were read.
            loaded = self._repository.ready(model)
            form = loaded.binder.bind(forms)
        arrays = form.arranged(arrays)
        seconds = self._seconds(request, call.context)
        future = loaded.submit(arrays, form, time.monotonic() + seconds)
        if seconds < self._repository.limits.request_seconds:
            self._repository.expire(future, seconds)
        answer = self._written(model, loaded, request, await future)
        model.counts.note_answer("grpc", "OK")
        return answer

    def _seconds(self, request: Any, context: Context) -> float:
        """Tell how long a call may take: the least of our limit, its deadline and its timeout."""
        seconds = self._repository.limits.request_seconds
        left = context.time_remaining()
        if left is not None:
            seconds = min(seconds, max(left, 0.0))
        if request.parameters and "timeout" in request.parameters:
            asked = request.parameters["timeout"].int64_param
            if asked <= 0:
                raise RequestError(f"timeout {asked} is not a number of microseconds.")
            seconds = min(seconds, asked / 1e6)
        return seconds

    def _written(
        self, model: ServedModel, loaded: LoadedModel, request: Any, outputs: Sequence[Array]
    ) -> Any:
        answer = self._answer(
            model_name=model.config.name, model_version=loaded.version, id=request.id
        )
        for place in _wanted(request, loaded):
            port, array = loaded.outputs[place], outputs[place]
            answer.outputs.add(name=port.name, datatype=datatype_of(port.dtype), shape=array.shape)
            answer.raw_output_contents.append(write_raw(array))
        return answer


def _authorization(context: Context) -> bytes | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value.encode() if isinstance(value, str) else value
    return None


def _wanted(request: Any, loaded: LoadedModel) -> Sequence[int]:
    names = [item.name for item in request.outputs]
    if not names:
        return range(len(loaded.names))
    unknown = [name for name in names if name not in loaded.names]
    if unknown or len(names) > len(loaded.names):
        shown = ", ".join(loaded.names)
        raise RequestError(f"There is no output {unknown[:1]}. The outputs are {shown}.")
    return [loaded.names.index(name) for name in names]


def _arrays(request: Any, raws: Sequence[bytes | memoryview], form: BoundForm) -> list[Array]:
    if not raws:
        return [_listed(item, form, place) for place, item in enumerate(request.inputs)]
    rows = zip(raws, form.dtypes, form.shapes, form.counts, strict=True)
    return [read_raw(memoryview(raw), of, shape, count) for raw, of, shape, count in rows]


def _check_sizes(sizes: Sequence[int], form: BoundForm) -> None:
    if not sizes:
        return
    if len(sizes) != len(form.shapes):
        raise RequestError(f"{len(sizes)} raw contents were sent for {len(form.shapes)} inputs.")
    for place, (sent, size) in enumerate(zip(sizes, form.sizes, strict=True)):
        if size is not None and sent != size:
            raise RequestError(f"Input {place} has {sent} bytes, not {size}.")


class _Call:
    """A call: its message as bytes, split and parsed, and how many bytes count as held for it."""

    def __init__(self, repository: Repository, context: Context, threads: Executor) -> None:
        self.context = context
        self.request: Any = None
        self._repository = repository
        self._threads = threads
        self._held = 0
        self.take(b"")

    def take(self, raw: bytes) -> None:
        """Take the message when it has come."""
        self.raw = raw
        # Small messages are parsed whole.
        self.split = SplitMessage(raw, (), ())
        # A compressed one may become any size.
        self.is_large = len(raw) > SMALL or is_compressed(raw)

    def hold(self, size: int) -> None:
        """Count more bytes until the call is answered; ServerBusy if there are too many."""
        self._repository.hold(size)
        self._held += size

    def release(self) -> None:
        """Release the message, and the bytes held for the call."""
        self._repository.release(self._held)
        self._held = 0
        self.take(b"")
        self.request = None

    async def do(self, work: Callable[..., Answer], *given: Any) -> Answer:
        """Do something with the message, in a thread if that may take long."""
        if self.is_large:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *given)
        return work(*given)

    async def tensors(self, form: BoundForm) -> Sequence[bytes | memoryview]:
        """Return the binary tensors, which are inflated if they have the sizes that they should."""
        if whole := self.request.raw_input_contents:
            _check_sizes(list(map(len, whole)), form)
            return list(whole)
        _check_sizes(self.split.sizes, form)
        if self.split.raws is not None:
            return self.split.raws
        self.hold(sum(self.split.sizes))
        return await self.do(inflated_tensors, self.raw, self.split, self._repository.limits)


def _listed(item: Any, form: BoundForm, place: int) -> Array:
    of, shape, count = form.dtypes[place], form.shapes[place], form.counts[place]
    field = _CONTENTS.get(item.datatype)
    if field is None:
        raise RequestError(f"{item.datatype} tensors are sent as raw contents.")
    values = getattr(item.contents, field)
    if len(values) != count:
        raise RequestError(f"The data of {item.name} have {len(values)} elements, not {count}.")
    arrays = []
    for begin in range(0, max(count, 1), _STEP):
        part = list(values[begin : begin + _STEP])
        if item.datatype == "BYTES":
            part = _decoded(part, item.name)
        arrays.append(read_listed(part, of, (len(part),), len(part), item.name))
    return np.concatenate(arrays).reshape(shape)


def _decoded(raws: list[bytes], name: str) -> list[str]:
    try:
        return [raw.decode() for raw in raws]
    except UnicodeDecodeError:
        raise RequestError(f"The input {name} has an element that is not UTF-8.") from None


def _snake(name: str) -> str:
    return "".join(f"_{x.lower()}" if x.isupper() else x for x in name).lstrip("_")
