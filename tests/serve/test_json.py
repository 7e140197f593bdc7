"""Requests in JSON cost the server little, however large they are and however much they inflate."""

import asyncio
import contextlib
import gzip
import json
import os
import signal
import socket
import tracemalloc
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.errors import RequestError, RequestTooLarge
from fusewire.serve.header import parse_json
from fusewire.serve.json_child import taken_apart
from fusewire.serve.json_reader import JsonReader
from fusewire.serve.limits import ServeLimits
from fusewire.system.processes import descendants, processor_seconds

hostile: Any = import_module("serving_hostile")
JSON = "Content-Type: application/json"


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def rows_of(count: int, value: float = 0.5) -> bytes:
    data = [value] * (256 * count)
    return bytes(hostile.said([hostile.tensor(shape=[count, 256], data=data)]))


def test_large_request_is_answered_like_small_ones(served: Any) -> None:
    small = hostile.ask(served.port, hostile.post(rows_of(1, 0.1234567), JSON))
    expected = json.loads(small[4:])["outputs"][0]["data"]
    body = rows_of(300, 0.1234567)
    assert ServeLimits().json_at_once < len(body) < 1 << 20
    for sent in (
        hostile.post(body, JSON),
        hostile.post(gzip.compress(body), JSON, "Content-Encoding: gzip"),
    ):
        answer = hostile.ask(served.port, sent, 60.0)
        assert answer.startswith("200")
        output = json.loads(answer[4:])["outputs"][0]
        assert output["shape"] == [300, 16]
        np.testing.assert_allclose(output["data"], expected * 300, rtol=1e-4, atol=1e-5)


@pytest.mark.timing
@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[' + b"[]," * 300_000 + b"0]}",
        b'{"inputs":[' + b"{}," * 300_000 + b"0]}",
        b'{"inputs":[' + b'"",' * 300_000 + b"0]}",
        hostile.said([hostile.tensor(data=[1] * 300_000)]),
        hostile.said([hostile.tensor(data=["x" * 100_000, *[""] * 2500])]),
    ],
    ids=["lists", "objects", "texts", "numbers", "long-text"],
)
def test_structure_costs_the_server_no_time_and_no_memory(served: Any, body: bytes) -> None:
    # The child is started by the first.
    assert hostile.ask(served.port, hostile.post(rows_of(300), JSON), 60.0).startswith("200")
    memory, seconds = peak(served.process.pid), processor_seconds(served.process.pid)
    packed = gzip.compress(body)
    for _ in range(10):
        sent = hostile.post(packed, JSON, "Content-Encoding: gzip")
        assert hostile.ask(served.port, sent, 60.0).startswith("4")
    # Each took a fifth of a second here before, and up to a gigabyte.
    assert processor_seconds(served.process.pid) - seconds < 0.5
    assert peak(served.process.pid) - memory < 16 << 20


def test_slow_clients_keep_nobody_from_sending_large_requests(served: Any) -> None:
    sent = hostile.post(rows_of(300), JSON)
    # The child is started by the first.
    expected = hostile.ask(served.port, sent, 60.0)
    assert expected.startswith("200")
    with contextlib.ExitStack() as stack:
        for _ in range(32):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            slow.sendall(sent[:-1])
        assert hostile.ask(served.port, sent, 10.0) == expected


@pytest.mark.parametrize(
    "unit", [b"[],", b"{},", b'"",', b'{"":0},', b"1,", b"[" * 900 + b"]" * 900 + b","]
)
def test_what_the_server_parses_itself_takes_little_memory(unit: bytes) -> None:
    body = b'{"inputs":[' + unit * (ServeLimits().json_at_once // len(unit)) + b"0]}"
    tracemalloc.start()
    try:
        parse_json(body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_body_is_inflated_no_further_than_it_may_be(served: Any) -> None:
    memory = peak(served.process.pid)
    zeros = gzip.compress(bytes(1 << 27))
    header = hostile.said([
        {"name": "x", "datatype": "FP32", "shape": [1, 256],
         "parameters": {"binary_data_size": 1024}}
    ])  # fmt: skip
    length = f"Inference-Header-Content-Length: {len(header)}"
    long = gzip.compress(header + bytes(1 << 27))
    for sent in (
        hostile.post(zeros, JSON, "Content-Encoding: gzip"),
        hostile.post(long, length, "Content-Encoding: gzip"),
        hostile.post(gzip.compress(header + bytes(1023)), length, "Content-Encoding: gzip"),
        hostile.post(gzip.compress(header + bytes(1024))[:-1], length, "Content-Encoding: gzip"),
    ):
        assert hostile.ask(served.port, sent, 30.0).startswith("4")
    whole = hostile.post(gzip.compress(header + bytes(1024)), length, "Content-Encoding: gzip")
    assert hostile.ask(served.port, whole, 30.0).startswith("200")
    assert peak(served.process.pid) - memory < 16 << 20


def test_child_that_dies_fails_its_request_alone(served: Any) -> None:
    sent = hostile.post(rows_of(300), JSON)
    assert hostile.ask(served.port, sent, 60.0).startswith("200")
    (parser,) = [
        pid
        for pid in descendants(served.process.pid)
        if "json_child" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(parser, signal.SIGKILL)
    assert hostile.ask(served.port, sent, 60.0).startswith("200")


def with_reader(
    limits: ServeLimits, use: Callable[[JsonReader], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        reader = JsonReader(limits)
        try:
            await use(reader)
        finally:
            reader.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("limits", "body"),
    [
        (ServeLimits(parse_seconds=0.2), b"[" + b"[]," * 4_000_000 + b"0]"),
        (ServeLimits(parse_bytes=100 << 20), b"[" + b"[]," * 4_000_000 + b"0]"),
    ],
    ids=["time", "memory"],
)
def test_child_is_limited(limits: ServeLimits, body: bytes) -> None:
    async def use(reader: JsonReader) -> None:
        with pytest.raises(RequestTooLarge, match="takes too much to parse"):
            await reader.read(body)
        rest, tensors = await reader.read(rows_of(1))
        assert json.loads(rest)["inputs"][0]["shape"] == [1, 256]
        assert tensors[0].view(np.float32).tolist() == [0.5] * 256

    with_reader(limits, use)


def test_what_a_child_leaves_of_a_request_is_small() -> None:
    rest, tensors = taken_apart(rows_of(2), 16)
    assert len(rest) < 200
    assert {place: len(raw) for place, raw in tensors.items()} == {0: 2048}
    with pytest.raises(RequestTooLarge, match="besides tensors"):
        taken_apart(hostile.said([hostile.tensor()], parameters={"x": [0] * 50_000}), 16)
    with pytest.raises(RequestError, match="elements, not 512"):
        taken_apart(hostile.said([hostile.tensor(shape=[2, 256])]), 16)
