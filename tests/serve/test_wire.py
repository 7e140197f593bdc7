"""Messages of gRPC cost what their tensors have, and nothing before these are known to be right."""

import contextlib
import gzip
import json
import os
import random
import shutil
import sys
import threading
import time
import tracemalloc
import urllib.request
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages

from fusewire.errors import RequestError, RequestTooLarge
from fusewire.serve.limits import ServeLimits
from fusewire.serve.wire import inflated_tensors, is_compressed, split_message
from tests.serve.conftest import campaigns

calls: Any = import_module("serving_hostile_grpc")
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMITS = ServeLimits()
PACKINGS = (bytes, gzip.compress, zlib.compress)


def peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("pack", PACKINGS)
@pytest.mark.parametrize("rows", [1, 40, 1000])
def test_message_is_split_into_tensors_and_the_rest(
    pack: Callable[[bytes], bytes], rows: int
) -> None:
    request = calls.request(rows)
    request.raw_input_contents.append(bytes(range(256)) * 7)
    raw = pack(request.SerializeToString())
    split = split_message(raw, LIMITS)
    assert is_compressed(raw) == (pack is not bytes) == (split.raws is None)
    assert split.sizes == (rows * 1024, 1792)
    tensors = split.raws or inflated_tensors(raw, split, LIMITS)
    assert [bytes(x) for x in tensors] == list(request.raw_input_contents)
    del request.raw_input_contents[:]
    assert messages.ModelInferRequest.FromString(split.outline) == request


@pytest.mark.parametrize(
    "flood",
    [
        b"\x2a\x00" * 5000,
        b"\x22\x00" * 5000,
        b"\x2a\xa0\x9c\x01" + b"\x22\x00" * 10_000,
        b"\x2a\x84\xb5\x18\x2a\x80\xb5\x18" + b"\x42\x00" * 200_000,
        b"\x2a\x88\x80\x80\x02\x2a\x84\x80\x80\x02\x12\x80\x80\x80\x02" + bytes(4 << 20),
    ],
    ids=["inputs", "parameters", "parameters-of-an-input", "texts", "numbers"],
)
@pytest.mark.parametrize("pack", PACKINGS)
def test_flood_is_refused_before_it_is_parsed(pack: Callable[[bytes], bytes], flood: bytes) -> None:
    with pytest.raises(RequestTooLarge):
        split_message(pack(calls.good() + flood), LIMITS)


@pytest.mark.parametrize("name", sorted(calls.walked()))
@pytest.mark.parametrize("pack", PACKINGS)
def test_no_message_takes_long_to_walk(pack: Callable[[bytes], bytes], name: str) -> None:
    raw = pack(calls.walked()[name])
    # Of this thread alone: engines of other tests have threads, too.
    begun = time.thread_time()
    with contextlib.suppress(RequestTooLarge):
        split_message(raw, LIMITS)
    # Fields are counted as they come: some took ten seconds.
    assert time.thread_time() - begun < 2.5


@pytest.mark.parametrize("name", ["shape", "outputs", "choices"])
def test_what_takes_long_to_parse_is_refused_before(name: str) -> None:
    with pytest.raises(RequestTooLarge):
        split_message(calls.walked()[name], LIMITS)


def test_large_message_stops_nobody_else(mlp: Path, tmp_path: Path) -> None:
    gaps = tmp_path / "gaps"
    command = [sys.executable, "-c", campaigns.WATCHED, str(mlp), str(gaps)]
    with campaigns.serving(command) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = channel.unary_unary(INFER)
            for raw in calls.walked().values():
                for packing in (None, grpc.Compression.Gzip):
                    with contextlib.suppress(grpc.RpcError):
                        call(raw, compression=packing)
        # It is written once in a second.
        time.sleep(2)
        assert json.loads(gaps.read_text())["most"] < 0.2


def test_nothing_is_kept_of_messages_that_are_refused(mlp: Path) -> None:
    with (
        campaigns.serving(campaigns.ours(mlp, "--backend", "onnxruntime")) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.unary_unary(INFER)

        def refused(name: str) -> None:
            with pytest.raises(grpc.RpcError):
                call(calls.walked()[name])

        for name in ("outputs", "integers"):
            refused(name)
        memory = peak(server.process.pid)
        for name in ("outputs", "integers") * 20:
            refused(name)
        # They have 116 MB together.
        assert peak(server.process.pid) - memory < 32 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators")
def test_memory_of_large_messages_goes_back_to_the_system(mlp: Path) -> None:
    flood = calls.good() + b"\x22\x00" * (3 << 20)
    with (
        campaigns.serving(campaigns.ours(mlp, "--backend", "onnxruntime")) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.unary_unary(INFER)
        call(calls.good())
        before = campaigns.resident(server.process.pid)
        for _ in range(4):
            waiting = [call.future(flood) for _ in range(8)]
            codes = {one.code() for one in waiting}
            assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        # Those of 8 messages are 48 MB and more at a time, and some of it stays in pieces.
        assert campaigns.resident(server.process.pid) - before < 64


def test_model_may_be_replaced_while_a_message_is_read(mlp: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(mlp, tmp_path))
    command = campaigns.ours(path, "--backend", "onnxruntime", "--batch", "8")
    with (
        campaigns.serving(command) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        ThreadPoolExecutor(2) as clients,
    ):
        call = channel.unary_unary(INFER)
        is_over = threading.Event()

        def ask() -> int:
            count = 0
            while not is_over.is_set():
                call(calls.walked()["floats"])
                count += 1
            return count

        asking = [clients.submit(ask) for _ in range(2)]
        url = f"http://127.0.0.1:{server.port}/v2/repository/models/mlp/load"
        load = urllib.request.Request(url, b"", {"Content-Type": "application/json"})
        try:
            for _ in range(3):
                os.utime(path)
                urllib.request.urlopen(load, timeout=60).close()
        finally:
            is_over.set()
        assert sum(one.result() for one in asking) > 2


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_nothing_is_kept_of_what_inflates(pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(b"\x3a\x80\x80\x80\x18" + bytes(48 << 20))
    larger = pack(b"\x3a\x80\x80\x80\x40" + bytes(128 << 20))
    field = pack(b"\x2a\x80\x80\x80\x10" + bytes(32 << 20))
    tracemalloc.start()
    try:
        assert split_message(bomb, LIMITS).sizes == (48 << 20,)
        for raw in (larger, field):
            with pytest.raises(RequestTooLarge):
                split_message(raw, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", PACKINGS)
def test_any_bytes_are_split_or_refused(pack: Callable[[bytes], bytes]) -> None:
    rng = random.Random(1)
    for _ in range(1000):
        whole = bytearray(pack(calls.good()))
        for _ in range(rng.randrange(1, 8)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
        raw = bytes(whole[: rng.randrange(len(whole) + 1)])
        try:
            split = split_message(raw, LIMITS)
            if split.raws is None:
                assert tuple(map(len, inflated_tensors(raw, split, LIMITS))) == split.sizes
        except RequestError:
            pass


@pytest.mark.parametrize("packing", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_calls_are_answered_and_bombs_cost_no_memory(served: Any, packing: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        call = channel.unary_unary(INFER)
        right = messages.ModelInferResponse.FromString(call(calls.good()))
        packed = messages.ModelInferResponse.FromString(call(calls.good(), compression=packing))
        np.testing.assert_allclose(
            np.frombuffer(packed.raw_output_contents[0], np.float32),
            np.frombuffer(right.raw_output_contents[0], np.float32),
            rtol=1e-5,
        )
        ready = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
        assert ready(b"", compression=packing) == b"\x08\x01"
        memory = peak(served.process.pid)
        bomb = b"\x3a\x80\x80\x80\x18" + bytes(48 << 20)
        waiting = [call.future(bomb, compression=packing) for _ in range(4)]
        for one in waiting:
            assert one.code() in (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        assert peak(served.process.pid) - memory < 16 << 20
