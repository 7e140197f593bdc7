"""The application of Ray Serve: its arguments, and its life under any ASGI server."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.errors import OptionsError
from fusewire.serve.ray import LoadedApp, configs_of
from tests.serve.conftest import campaigns


def test_arguments_name_models_and_options(mlp: Path) -> None:
    first, second = configs_of({"models": f"{mlp},other={mlp}", "batch": "4", "threads": "1"})
    assert (first.name, second.name, first.rows) == ("mlp", "other", 4)
    assert first.options.isolate == "always"
    with pytest.raises(OptionsError, match="found 'model'"):
        configs_of({"model": str(mlp)})


def test_application_loads_its_models_when_it_starts(mlp: Path) -> None:
    request = campaigns.client.rest_request("mlp", campaigns.inputs_of("mlp"))
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line.split(b": ") for line in head.split(b"\r\n")[1:]]
    headers = [(name.lower(), value) for name, value in lines]
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def use() -> None:
        app = LoadedApp(configs_of({"models": str(mlp), "backend": "onnxruntime"}))
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        life = asyncio.create_task(app({"type": "lifespan"}, events.get, send))
        await events.put({"type": "lifespan.startup"})
        while not sent:
            await asyncio.sleep(0.05)
        asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        await asked.put({"type": "http.request", "body": body, "more_body": False})
        scope = {"type": "http", "path": "/v2/models/mlp/infer", "method": "POST"}
        await app({**scope, "headers": headers}, asked.get, send)
        await events.put({"type": "lifespan.shutdown"})
        await life

    asyncio.run(use())
    kinds = [message["type"] for message in sent]
    assert kinds[0] == "lifespan.startup.complete"
    assert kinds[-1] == "lifespan.shutdown.complete"
    assert sent[1]["status"] == 200
    assert np.isfinite(np.frombuffer(sent[2]["body"][-64:], np.float32)).all()
