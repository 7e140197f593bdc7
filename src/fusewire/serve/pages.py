"""What REST has besides inference: health, metadata, metrics, and the repository of models."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fusewire.errors import FusewireError
from fusewire.serve.repository import Repository, status_of

EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration"]


def server_metadata() -> dict[str, Any]:
    """Describe this server."""
    return {"name": "fusewire", "version": version("fusewire"), "extensions": EXTENSIONS}


def pages(repository: Repository) -> Starlette:
    """Make the application of everything that is not inference."""
    return Starlette(routes=_routes(_Pages(repository)), exception_handlers=_HANDLERS)


class _Pages:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def server(self, request: Request) -> Response:
        return _said(server_metadata())

    async def live(self, request: Request) -> Response:
        return Response(status_code=200)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._repository.is_ready else 503)

    async def model(self, request: Request) -> Response:
        return _said(self._repository.metadata(self._found(request)))

    async def model_ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._found(request).is_ready else 503)

    async def config(self, request: Request) -> Response:
        return _said(self._repository.config(self._found(request)))

    async def metrics(self, request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(self._repository.metrics(), headers={"content-type": kind})

    async def index(self, request: Request) -> Response:
        return _said(self._repository.index())

    async def load(self, request: Request) -> Response:
        authorization = request.headers.get("authorization", "").encode("latin-1")
        self._repository.access.check_load(authorization)
        await self._found(request).load()
        return _said({})

    def _found(self, request: Request) -> Any:
        given = request.path_params
        return self._repository.find(given["name"], given.get("version"))


def _routes(pages: _Pages) -> list[Route]:
    gets: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/v2", pages.server),
        ("/v2/health/live", pages.live),
        ("/v2/health/ready", pages.ready),
        ("/metrics", pages.metrics),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        gets += [
            (model, pages.model),
            (f"{model}/ready", pages.model_ready),
            (f"{model}/config", pages.config),
        ]
    return [
        *(Route(path, endpoint) for path, endpoint in gets),
        Route("/v2/repository/index", pages.index, methods=["POST"]),
        Route("/v2/repository/models/{name}/load", pages.load, methods=["POST"]),
    ]


def _said(answer: Any, status: int = 200) -> Response:
    return Response(json.dumps(answer), status, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, FusewireError)
    return _said({"error": str(error), "code": type(error).__name__}, status_of(error))


async def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _said(
        {"error": f"{request.method} {request.url.path[:200]}: {error.detail}."}, error.status_code
    )


_HANDLERS: Any = {FusewireError: _failed, HTTPException: _no_such_page}
