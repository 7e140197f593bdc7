"""Requests in JSON cost the server little, however large they are and however much they inflate."""

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.dtypes import dtype
from fusewire.errors import RequestError, RequestTooLarge
from fusewire.runtime.program import ProgramPort
from fusewire.serve.json_child import taken_apart
from fusewire.serve.json_reader import JsonReader
from fusewire.serve.limits import ServeLimits
from fusewire.serve.structure import JsonStructure
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


def ports(*shapes: tuple[Any, ...], name: str = "float32") -> list[ProgramPort]:
    specs = [fw.Spec(shape, name) for shape in shapes]
    with fw.compile(lambda *given: [x + x for x in given], *specs) as program:
        return list(program.inputs)


@pytest.mark.parametrize("shape", [("n",), ("n", 1), ("n", 3, 4), ("n", "m", 1), (5000, 1, 1)])
def test_every_honest_request_is_plain(shape: tuple[Any, ...]) -> None:
    structure = JsonStructure(ports(shape), 1)
    sizes = [5000 if dim == "n" else 2 if dim == "m" else dim for dim in shape]
    array = np.zeros(sizes, dtype("float32").numpy)
    for data in (array.tolist(), array.ravel().tolist()):
        assert structure.is_plain(hostile.said([hostile.tensor(shape=sizes, data=data)]))


@pytest.mark.parametrize("sign", [b"[],", b"{},", b'"",', b"[[],[]],"])
def test_more_structure_than_the_inputs_need_is_refused(sign: bytes) -> None:
    structure = JsonStructure(ports(("n", 4), (3, 3)), 2)
    with pytest.raises(RequestError, match="times at most"):
        structure.is_plain(sign * 10_000)


def test_more_elements_than_fixed_inputs_have_are_refused() -> None:
    with pytest.raises(RequestError, match="times at most"):
        JsonStructure(ports((3, 3)), 1).is_plain(b"1," * 10_000)


def test_inputs_of_text_leave_structure_to_the_child() -> None:
    text = ProgramPort("x", "string", ("n",))
    structure = JsonStructure([text], 1)
    assert structure.is_plain(json.dumps({"data": ["a"] * 10_000}).encode())
    assert not structure.is_plain(json.dumps({"data": ['{"a": [1]}' * 10_000]}).encode())
