"""The server as a process: it listens, loads models, reloads them, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from fusewire.errors import FusewireError, OptionsError
from fusewire.serve.access import Access
from fusewire.serve.connections import GuardedConnection
from fusewire.serve.grpc_service import GrpcService
from fusewire.serve.limits import ServeLimits
from fusewire.serve.logs import log_event, log_failure
from fusewire.serve.model import ModelConfig, ServedModel
from fusewire.serve.pages import pages
from fusewire.serve.repository import Repository
from fusewire.serve.rest import RestApp

_SWITCH_SECONDS = 0.0005
# Of mallopt: from which size on a buffer is mapped, and how many heaps threads have.
_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 256 << 10
_ARENA_MAX, _ARENAS = -8, 2


@dataclass(frozen=True)
class ServerConfig:
    """Where to listen and how to end; port 0 takes a free one, None serves no gRPC."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    drain_seconds: float = 30.0
    # How often files are looked at for a reload; 0 never does.
    watch_seconds: float = 1.0


class InferenceServer:
    """Serves models until it is told to stop."""

    def __init__(
        self,
        models: Sequence[ModelConfig],
        config: ServerConfig = ServerConfig(),
        limits: ServeLimits = ServeLimits(),
        access: Access = Access(),
    ) -> None:
        self.config = config
        access = replace(access, hosts=(*access.hosts, config.host))
        served = [ServedModel(model, limits) for model in models]
        self.repository = Repository(served, limits, access)
        self.app = RestApp(self.repository, pages(self.repository))
        self.ports: dict[str, int] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Answer what was asked, refuse what comes, and end."""
        self.repository.is_draining = True
        self._stopping.set()

    async def run(self, started: Callable[[InferenceServer], None] | None = None) -> None:
        """Serve until stopped; ``started`` is called once every model answers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        listener = self._listener()
        grpc_server = await self._start_grpc()
        rest = _Uvicorn(self._uvicorn_config())
        serving = loop.create_task(rest.serve([listener]))
        ends = [loop.create_task(self._stopping.wait()), serving]
        loading = loop.create_task(self._load_all())
        try:
            await asyncio.wait([loading, *ends], return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                # Told to stop before it served anything.
                loading.cancel()
                return
            loading.result()
            if started is not None:
                started(self)
            watching = loop.create_task(self._watch())
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            watching.cancel()
        finally:
            await self._drain(rest, serving, grpc_server)

    @property
    def is_loading(self) -> bool:
        """Whether a thread still compiles a model, although nobody waits for it."""
        return any(model.is_loading for model in self.repository.models.values())

    def _listener(self) -> socket.socket:
        host, port = self.config.host, self.config.port
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            raise _no_address("--port", host, port, error) from None
        self.ports["rest"] = listener.getsockname()[1]
        return listener

    def _uvicorn_config(self) -> uvicorn.Config:
        limits = self.repository.limits
        return uvicorn.Config(
            self.app,
            http=GuardedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(self.config.drain_seconds) or 1,
        )

    async def _start_grpc(self) -> Any:
        if self.config.grpc_port is None:
            return None
        server, host = GrpcService(self.repository).server(), self.config.host
        place = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{place}:{self.config.grpc_port}")
        except RuntimeError as error:
            raise _no_address("--grpc-port", host, self.config.grpc_port, error) from None
        self.ports["grpc"] = port
        await server.start()
        return server

    async def _load_all(self) -> None:
        for model in self.repository.models.values():
            loaded = await model.load()
            policy, proof = loaded.batcher.policy, loaded.proof
            fields = {"model": model.config.name, "replicas": model.config.replicas}
            if proof.is_proven:
                log_event("loaded", **fields, batch_rows=policy.rows, delay=policy.delay)
            else:
                log_event("loaded", **fields, not_batched=proof.refusal)

    async def _watch(self) -> None:
        """Load files again that have changed."""
        seconds = self.config.watch_seconds
        while seconds:
            await asyncio.sleep(seconds)
            for model in self.repository.models.values():
                if model.is_stale():
                    await self._reload(model)

    async def _reload(self, model: ServedModel) -> None:
        name = model.config.name
        try:
            await model.load()
        except (FusewireError, OSError, MemoryError) as error:
            # What was served goes on; the file may be half written, so it is tried again.
            log_failure(name, "reload", error)
        else:
            log_event("reloaded", model=name, version=model.version)

    async def _drain(self, rest: _Uvicorn, serving: asyncio.Task[None], grpc_server: Any) -> None:
        """Stop accepting, answer what is in progress, end the processes of engines."""
        self.repository.is_draining = True
        log_event("draining")
        rest.should_exit = True
        if grpc_server is not None:
            await grpc_server.stop(self.config.drain_seconds)
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        for model in self.repository.models.values():
            await model.close()
        await self.app.close()
        log_event("stopped")


class _Uvicorn(uvicorn.Server):  # type: ignore[misc] # uvicorn is not read by mypy
    """Uvicorn without its own handling of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def _no_address(option: str, host: str, port: int, error: Exception) -> OptionsError:
    return OptionsError(
        f"The server cannot listen on port {port} of {host}: {error}. Give another {option} (0 "
        "takes a free one), or another --host."
    )


def serve(
    models: Sequence[ModelConfig],
    config: ServerConfig = ServerConfig(),
    limits: ServeLimits = ServeLimits(),
    started: Callable[[InferenceServer], None] | None = None,
    access: Access = Access(),
) -> None:
    """Serve models in this process until SIGTERM or SIGINT."""

    # The threads of replicas need the interpreter for moments, several times for each batch. By
    # default each would wait 5 ms for it while the event loop is busy.
    sys.setswitchinterval(_SWITCH_SECONDS)
    _return_memory()

    async def main() -> bool:
        server = InferenceServer(models, config, limits, access)
        await server.run(started)
        return server.is_loading

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        if runner.run(main()):
            _leave()


def _return_memory() -> None:
    """Have glibc give large buffers back to the system when they are released.

    It maps each by itself, but not those that are smaller than the largest that was released so
    far, up to 32 MB: of messages, these would stay with the process. So would the small ones, in a
    heap for each thread that reads.
    """
    if sys.platform == "linux":
        # musl has none, and gives them back.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
            mallopt(_ARENA_MAX, _ARENAS)


def _leave() -> None:
    """End while a model is compiled: the thread cannot be stopped, and children end with us."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
