"""The same application under Ray Serve, for many hosts.

``serve run fusewire.serve.ray:app models=model.onnx,name=other.onnx num_replicas=2``
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusewire.errors import OptionsError
from fusewire.options import Options
from fusewire.serve.access import LOAD_TOKEN, TOKEN, Access, read_token
from fusewire.serve.body import Receive, Scope
from fusewire.serve.limits import ServeLimits
from fusewire.serve.model import ModelConfig, ServedModel
from fusewire.serve.pages import pages
from fusewire.serve.repository import Repository
from fusewire.serve.rest import RestApp, Send

_KNOWN = ("models", "num_replicas", "backend", "threads", "batch", "delay", "hosts")


class LoadedApp:
    """The REST application with a lifespan: it loads its models before the first request."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        limits: ServeLimits = ServeLimits(),
        hosts: tuple[str, ...] = (),
    ) -> None:
        self._models = models
        self._limits = limits
        self._hosts = hosts
        self._repository: Repository | None = None
        self._rest: RestApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or follow the lifespan of the application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self._rest is not None, "requests come after the startup"
        await self._rest(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._start()
                await send({"type": "lifespan.startup.complete"})
            else:
                assert self._repository is not None
                await asyncio.gather(*(m.close() for m in self._repository.models.values()))
                if self._rest is not None:
                    await self._rest.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _start(self) -> None:
        models = [ServedModel(config, self._limits) for config in self._models]
        access = Access(self._hosts, read_token(None, TOKEN), read_token(None, LOAD_TOKEN))
        self._repository = Repository(models, self._limits, access)
        self._rest = RestApp(self._repository, pages(self._repository))
        for model in models:
            await model.load()


def configs_of(args: Mapping[str, str]) -> list[ModelConfig]:
    """Read the arguments that ``serve run`` passes on."""
    if (unknown := sorted(set(args) - set(_KNOWN))) or "models" not in args:
        found = f"found {unknown[0]!r}" if unknown else "models is missing"
        raise OptionsError(f"Arguments are {', '.join(_KNOWN)}; {found}.")
    threads = int(args["threads"]) if "threads" in args else None
    options = Options(
        args.get("backend", "auto"), threads=threads, isolate="always", fallback="allow"
    )
    rows = int(args.get("batch", 32))
    delay = float(args.get("delay", 2.0)) / 1000
    configs = []
    for text in args["models"].split(","):
        name, equals, path = text.partition("=")
        file = Path(path if equals else text)
        name = name if equals else file.stem
        configs.append(ModelConfig(name, file.absolute(), options, 1, rows, rows, delay))
    return configs


def app(args: Mapping[str, str]) -> Any:
    """Build the application that ``serve run`` deploys."""
    from ray import serve

    configs = configs_of(args)
    hosts = tuple(filter(None, args.get("hosts", "").split(",")))
    # A builder runs in each replica, so that nothing of a program has to travel.
    deployment = serve.deployment(serve.ingress(lambda: LoadedApp(configs, hosts=hosts))())
    replicas = int(args.get("num_replicas", 1))
    return deployment.options(name="fusewire", num_replicas=replicas).bind()
