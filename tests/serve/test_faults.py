"""Engines that die, files that change, and the end of the server: no request is lost."""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import SignatureError
from fusewire.options import Options
from fusewire.serve.limits import ServeLimits
from fusewire.serve.model import ModelConfig, ServedModel
from fusewire.store.disk import Store
from fusewire.store.signing import AllowedSigner, Signer, allow
from tests.serve.conftest import campaigns


@pytest.mark.slow
def test_killed_replicas_and_poisoned_requests_cost_nobody_else_an_answer() -> None:
    given = argparse.Namespace(seconds=5.0, rate=30.0, every=2.0, poison=60)
    figures = campaigns.kills(given)
    assert figures["outcomes"] == {"right": 148, "poisoned, typed": 2}
    assert figures["killed"] == 2


def scaled(path: Path, factor: float) -> None:
    fw.save_onnx(lambda x: x * np.float32(factor), path, fw.Spec(("n", 4), "float32"))


def test_changed_file_is_served_without_a_dropped_request(tmp_path: Path) -> None:
    path, fresh = tmp_path / "model.onnx", tmp_path / "fresh.onnx"
    scaled(path, 2.0)
    scaled(fresh, 3.0)
    request = campaigns.client.rest_request("model", {"x": np.ones((1, 4), np.float32)})
    answers: list[float] = []

    async def use(port: int) -> None:
        connection = campaigns.Connection(port)
        replaced = False
        limit = time.monotonic() + 60
        while time.monotonic() < limit and answers[-5:] != [3.0] * 5:
            status, body = await connection.ask(request)
            assert status == 200
            answers.append(float(np.frombuffer(body[-16:], np.float32)[0]))
            if len(answers) == 20 and not replaced:
                shutil.move(fresh, path)
                replaced = True
            await asyncio.sleep(0.01)
        connection.close()

    command = campaigns.ours(path, "--backend", "onnxruntime", "--watch", "0.1")
    with campaigns.serving(command) as served:
        asyncio.run(use(served.port))
    assert set(answers) == {2.0, 3.0}
    assert answers == sorted(answers)


def test_broken_file_leaves_the_old_model_in_service(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    scaled(path, 2.0)
    request = campaigns.client.rest_request("model", {"x": np.ones((1, 4), np.float32)})

    async def ask(port: int) -> int:
        connection = campaigns.Connection(port)
        status, _ = await connection.ask(request)
        connection.close()
        return int(status)

    command = campaigns.ours(path, "--backend", "onnxruntime", "--watch", "0.1")
    with campaigns.serving(command) as served:
        path.write_bytes(b"not a model")
        time.sleep(1.0)
        assert asyncio.run(ask(served.port)) == 200


def test_requests_in_progress_are_answered_before_the_end(mlp: Path) -> None:
    request = campaigns.client.rest_request("mlp", campaigns.inputs_of("mlp"))

    async def use(served: Any) -> list[int]:
        connections = [campaigns.Connection(served.port) for _ in range(20)]
        asked = [asyncio.create_task(c.ask(request)) for c in connections]
        # They wait for the delay of their batch.
        await asyncio.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*asked)
        for connection in connections:
            connection.close()
        await asyncio.sleep(0.1)
        return [status for status, _ in answers]

    options = ["--backend", "onnxruntime", "--batch", "64", "--delay", "600"]
    with campaigns.serving(campaigns.ours(mlp, *options)) as served:
        assert asyncio.run(use(served)) == [200] * 20
        assert served.process.wait(20) == 0


def descendants(pid: int) -> set[int]:
    """List the processes that a process started, and those that they did."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found |= {int(folder.name), *descendants(int(folder.name))}
    return found


def test_server_that_still_compiles_ends_when_it_is_told_to(mlp: Path) -> None:
    port = campaigns.free_port()
    # Engines are compared for 60 s before the first request.
    options = ["--shape", "x=1,256", "--budget", "60", "--no-grpc", "--port", str(port)]
    process = subprocess.Popen(campaigns.ours(mlp, *options))
    try:
        while not (started := descendants(process.pid)):
            assert process.poll() is None
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=20) as live:
            assert live.status == 200
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
        limit = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in started):
            assert time.monotonic() < limit, "its processes are still there"
            time.sleep(0.05)
    finally:
        process.kill()


def test_nan_is_binary_data_and_never_json(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    scaled(path, float("nan"))

    def ask(port: int, data: str, **more: Any) -> tuple[int, bytes]:
        tensor = f'{{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [{data}]}}'
        body = f'{{"inputs": [{tensor}], "parameters": {json.dumps(more)}}}'
        url = f"http://127.0.0.1:{port}/v2/models/model/infer"
        try:
            asked = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    with campaigns.serving(campaigns.ours(path, "--backend", "onnxruntime")) as served:
        status, body = ask(served.port, "1, 2, 3, 4")
        assert (status, json.loads(body)["code"]) == (406, "NotJsonError")
        assert "as binary data" in json.loads(body)["error"]
        status, body = ask(served.port, "1, 2, 3, 4", binary_data_output=True)
        assert status == 200
        assert np.isnan(np.frombuffer(body[-16:], np.float32)).all()
        status, body = ask(served.port, "NaN, 2, 3, 4", binary_data_output=True)
        assert (status, json.loads(body)["code"]) == (400, "RequestError")


def test_answers_of_a_batch_are_right_for_each_request() -> None:
    if not campaigns.zoo.path("magika").exists():
        pytest.skip("magika is not fetched")
    (row,) = campaigns.batched(argparse.Namespace(models="magika", rows=2))
    assert row["verdicts"] == ["right", "right"]


def test_soak_counts_memory_after_many_requests() -> None:
    figures = campaigns.soak(argparse.Namespace(count=10_000))
    assert figures["errors"] == 0
    assert figures["growth_mb"] < 20


def test_bundle_is_served(mlp: Path, tmp_path: Path) -> None:
    inputs = campaigns.inputs_of("mlp")
    with fw.compile(str(mlp), backend="onnxruntime") as program:
        expected = program(inputs["x"])
        program.save(tmp_path / "mlp.fw", weights=True)

    async def ask(port: int) -> tuple[int, bytes]:
        connection = campaigns.Connection(port)
        answer: tuple[int, bytes] = await connection.ask(
            campaigns.client.rest_request("mlp", inputs)
        )
        connection.close()
        return answer

    with campaigns.serving(campaigns.ours(tmp_path / "mlp.fw")) as served:
        status, body = asyncio.run(ask(served.port))
    assert status == 200
    found = np.frombuffer(body[-64:], np.float32)
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_port_that_is_taken_is_an_error_that_says_so(option: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    scaled(path, 2.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"--port": "0", "--grpc-port": "0", option: str(taken.getsockname()[1])}
        command = [*campaigns.ours(path), *(word for pair in ports.items() for word in pair)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert f"Give another {option}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_load_compiles_nothing_for_a_file_that_did_not_change(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    scaled(path, 2.0)

    async def use() -> None:
        config = ModelConfig("model", path, Options(backend="reference", isolate="never"))
        model = ServedModel(config, ServeLimits())
        first = await model.load()
        assert await model.load() is first
        scaled(path, 3.0)
        assert await model.load() is not first
        assert model.version == 2
        await model.close()

    asyncio.run(use())


def test_older_release_does_not_take_the_place_of_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    signer = Signer.generate()
    signer.write(tmp_path / "key.pem")
    allow(AllowedSigner(signer.id, "me"))
    for number in (1, 2):
        file = tmp_path / f"{number}.onnx"
        scaled(file, float(number))
        with fw.compile(str(file), backend="reference") as program:
            program(np.ones((1, 4), np.float32))
            signed: Any = {"key": tmp_path / "key.pem", "release": "ranker", "generation": number}
            program.save(tmp_path / f"{number}.fw", weights=True, **signed)
    place = tmp_path / "ranker.fw"

    async def use() -> None:
        options = Options(backend="reference", isolate="never")
        model = ServedModel(ModelConfig("ranker", place, options, release="ranker"), ServeLimits())
        shutil.copy(tmp_path / "2.fw", place)
        newest = await model.load()
        shutil.copy(tmp_path / "1.fw", place)
        with pytest.raises(SignatureError, match="2 was seen"):
            await model.load()
        assert model.current is newest
        await model.close()

    asyncio.run(use())


def times(weights: np.ndarray) -> Any:
    return lambda x: np.tanh(x @ weights)


def test_bundle_that_is_written_to_in_place_ends_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    signer = Signer.generate()
    signer.write(tmp_path / "key.pem")
    allow(AllowedSigner(signer.id, "me"))
    for name, width in (("large", 4096), ("small", 16)):
        weights = np.random.default_rng(0).standard_normal((256, width)).astype(np.float32)
        file = tmp_path / f"{name}.onnx"
        fw.save_onnx(times(weights), file, fw.Spec(("n", 256), "float32"))
        with fw.compile(str(file), backend="onnxruntime", isolate="always") as program:
            program(np.ones((1, 256), np.float32))
            program.save(tmp_path / f"{name}.fw", weights=True, key=tmp_path / "key.pem")
    request = campaigns.client.rest_request("large", {"x": np.ones((1, 256), np.float32)})

    async def ask(port: int) -> int:
        connection = campaigns.Connection(port)
        status, _ = await connection.ask(request)
        connection.close()
        return int(status)

    path = tmp_path / "large.fw"
    command = campaigns.ours(path, "--backend", "onnxruntime", "--watch", "0")
    with campaigns.serving(command) as served:
        assert asyncio.run(ask(served.port)) == 200
        os.truncate(path, 100)
        # The next request starts its engine again, from what the server has of the bundle.
        for child in campaigns.children(served.process.pid):
            os.kill(child, signal.SIGKILL)
        assert asyncio.run(ask(served.port)) == 200
        assert served.process.poll() is None
