"""Requests that are malformed, too large or slow get a 4xx or a closed connection."""

import asyncio
import socket
import struct
import time
import zlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop

import fusewire as fw
from fusewire.errors import RequestTooLarge, ServerBusy
from fusewire.planning.rows import RowProof
from fusewire.serve import connections
from fusewire.serve.binding import Binder, TensorForm
from fusewire.serve.body import RequestBody
from fusewire.serve.limits import ServeLimits
from fusewire.serve.repository import Repository
from tests.serve.conftest import campaigns

hostile: Any = import_module("serving_hostile")


def test_hostile_requests_are_refused_and_the_service_is_unharmed(served: Any) -> None:
    good = hostile.post(hostile.said([hostile.tensor()]))
    expected = hostile.ask(served.port, good)
    assert expected.startswith("200")
    failures = []
    for kind, request in hostile.hostile_requests(100, 1):
        outcome = hostile.ask(served.port, request, ends=kind in hostile.UNFINISHED)
        if outcome != "closed" and not outcome.startswith("4"):
            failures.append((kind, outcome[:200], request[:300]))
    assert not failures
    assert hostile.ask(served.port, good) == expected


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"name": "y"}, "400 ", "the model takes x: float32[n, 256]"),
        ({"datatype": "FP64"}, "400 ", "The input x is FP32, not FP64."),
        ({"shape": [2, 256]}, "400 ", "have 256 elements, not 512"),
        ({"shape": [1 << 35, 256]}, "413 ", "RequestTooLarge"),
        ({"data": [True] * 256}, "400 ", "are not all FP32"),
    ],
)
def test_refusal_says_what_was_found(
    served: Any, changes: dict[str, Any], code: str, words: str
) -> None:
    request = hostile.post(hostile.said([hostile.tensor(**changes)]))
    outcome = hostile.ask(served.port, request)
    assert outcome.startswith(code)
    assert words in outcome


LENGTH = "Inference-Header-Content-Length"
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HUGE = 10**4300 - 1
ASKED = {"binary_data_size": HUGE}


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"),
    [
        ({}, {"timeout": 10**400}, "is not a number of microseconds"),
        ({}, {"timeout": HUGE}, "is not a number of microseconds"),
        ({"parameters": ASKED}, {}, "has binary_data_size 999"),
        ({"shape": [HUGE, 256]}, {}, "is a list of sizes"),
        ({"data": [HUGE, *[0] * 255]}, {}, "does not hold"),
    ],
)
def test_number_of_any_length_is_refused_with_a_type(
    served: Any, inputs: dict[str, Any], parameters: dict[str, Any], words: str
) -> None:
    body = hostile.said([hostile.tensor(**inputs)], parameters=parameters)
    outcome = hostile.ask(served.port, hostile.post(body, f"{LENGTH}: {len(body)}"))
    assert outcome.startswith("400 ")
    assert words in outcome
    assert '"code": "RequestError"' in outcome


def test_sizes_of_texts_that_add_up_to_any_length_are_refused(texts: Any) -> None:
    """Nothing else says how many bytes a tensor of texts has."""
    items = [
        {"name": name, "datatype": "BYTES", "shape": [1], "parameters": ASKED}
        for name in ("x", "y")
    ]
    body = hostile.said(items)
    sent = hostile.post(body, f"{LENGTH}: {len(body)}", path="/v2/models/texts/infer")
    outcome = hostile.ask(texts.port, sent)
    assert outcome.startswith("400 ")
    assert '"code": "RequestError"' in outcome


def test_texts_stop_nobody_else_while_they_are_read(texts: Any) -> None:
    count = 4 << 20
    sizes = {"x": 4 * count, "y": 5}
    items = [
        {"name": name, "datatype": "BYTES", "shape": [size // 4]}
        | {"parameters": {"binary_data_size": size}}
        for name, size in sizes.items()
    ]
    head = hostile.said(items)
    # The last of them is longer than the tensor.
    body = head + bytes(sum(sizes.values()) - 1) + b"\x01"
    sent = hostile.post(body, f"{LENGTH}: {len(head)}", path="/v2/models/texts/infer")
    with ThreadPoolExecutor(1) as client:
        refused = client.submit(hostile.ask, texts.port, sent, 60.0)
        longest = 0.0
        while not refused.done():
            begun = time.monotonic()
            assert hostile.ask(texts.port, HEALTH, 60.0).startswith("200")
            longest = max(longest, time.monotonic() - begun)
    assert refused.result().startswith("400 ")
    assert "after its last element" in refused.result()
    # Reading them takes some three seconds.
    assert longest < 1


def test_body_beyond_the_limit_is_refused_before_it_is_read(served: Any) -> None:
    request = hostile.post(b"", length=2 << 20)
    assert hostile.ask(served.port, request).startswith("413")


def test_many_idle_connections_leave_room_for_requests(served: Any) -> None:
    opened = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(100)]
    try:
        for connection in opened:
            connection.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nX-Slow: ")
        start = time.monotonic()
        good = hostile.post(hostile.said([hostile.tensor()]))
        assert hostile.ask(served.port, good).startswith("200")
        assert time.monotonic() - start < 5
    finally:
        for connection in opened:
            connection.close()


def test_hostile_calls_are_refused_and_the_service_is_unharmed(mlp: Path) -> None:
    with campaigns.serving(campaigns.ours(mlp, "--backend", "onnxruntime")) as server:
        failures: list[str] = []
        start = time.monotonic()
        outcomes = campaigns.hostile_calls(server.grpc_port, 300, 1, failures)
        assert not failures
        assert {"INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED"} <= set(outcomes)
        # Lists of numbers and of inputs by the million are not read.
        assert time.monotonic() - start < 30
        good = hostile.post(hostile.said([hostile.tensor()]))
        assert hostile.ask(server.port, good).startswith("200")


def test_tensor_without_elements_may_not_have_a_large_size() -> None:
    with fw.compile(lambda x: x.sum(0), fw.Spec(("n", "m"), "float32")) as program:
        binder = Binder(program.inputs, RowProof(refusal="no"), ServeLimits())
    assert binder.bind((TensorForm("x", "FP32", (0, 1 << 10)),)).counts == (0,)
    with pytest.raises(RequestTooLarge, match=r"is \[0, 2147483648\]"):
        binder.bind((TensorForm("x", "FP32", (0, 1 << 31)),))


def test_requests_hold_a_bounded_number_of_bytes() -> None:
    repository = Repository([], ServeLimits(held_bytes=1000))
    # One alone may have more: otherwise nobody would ever answer it.
    repository.hold(2000)
    with pytest.raises(ServerBusy, match="2000 bytes"):
        repository.hold(1)
    repository.release(2000)
    repository.hold(600)
    repository.hold(400)
    assert repository.held == 1000


def test_bytes_of_a_body_are_held_as_they_are_inflated() -> None:
    repository = Repository([], ServeLimits(held_bytes=1 << 20))
    packed = zlib.compress(bytes(3 << 20))
    scope = {
        "headers": [(b"content-encoding", b"deflate"), (b"content-length", b"%d" % len(packed))]
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": packed}

    async def read() -> None:
        body = RequestBody(repository, receive)
        body.note_headers(scope)
        assert await body.first() is None
        await body.fill(600_000)
        assert 600_000 <= len(body.buffer) == repository.held < 1 << 20
        other = RequestBody(repository, receive)
        other.note_headers(scope)
        await other.first()
        with pytest.raises(ServerBusy):
            await other.fill(1 << 20)
        other.release()
        body.release()
        assert repository.held == 0

    asyncio.run(read())


def test_bytes_of_requests_are_released_with_their_answers(served: Any) -> None:
    for kind, request in hostile.hostile_requests(40, 2):
        hostile.ask(served.port, request, ends=kind in hostile.UNFINISHED)
    good = hostile.post(hostile.said([hostile.tensor()]))
    assert hostile.ask(served.port, good).startswith("200")
    page = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert "fusewire_held_bytes 0.0" in hostile.ask(served.port, page)


def test_body_that_is_cut_off_in_its_compression_is_refused(served: Any) -> None:
    whole = zlib.compress(hostile.said([hostile.tensor()]))
    packed = hostile.post(whole, "Content-Encoding: deflate")
    assert hostile.ask(served.port, packed).startswith("200")
    cut = hostile.post(whole[:-2], "Content-Encoding: deflate")
    assert "cut off" in hostile.ask(served.port, cut)


async def _large_answer(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(64 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": body})


async def _late_answer(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await asyncio.sleep(0.01)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


def with_guarded_server(
    use: Callable[[int], Coroutine[Any, Any, None]],
    app: Any = _large_answer,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a server of guarded connections in this process."""

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=connections.GuardedConnection, ws="none", lifespan="off",
            log_config=None,
        )  # fmt: skip
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        await use(listener.getsockname()[1])
        server.should_exit = True
        await serving

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("lingers", [0, 1])
def test_client_that_leaves_is_no_error(lingers: int, caplog: pytest.LogCaptureFixture) -> None:
    pipelined = hostile.post(b"x" * 100).replace(b"Connection: close\r\n", b"") * 300

    def leave(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(pipelined)
            option = struct.pack("ii", lingers, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)

    async def use(port: int) -> None:
        for _ in range(5):
            await asyncio.to_thread(leave, port)
            await asyncio.sleep(0.2)

    with_guarded_server(use, _late_answer, uvloop.new_event_loop)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("sent", [b"", b"x"])
def test_connection_is_closed_if_a_body_does_not_come(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)

    async def use(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(hostile.post(sent, length=500))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()

    with_guarded_server(use)


def test_connection_is_closed_if_nobody_reads_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)

    async def use(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(hostile.post(b"x"))
        await asyncio.sleep(1.5)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly((64 << 20) + 100)
        writer.close()

    with_guarded_server(use)
