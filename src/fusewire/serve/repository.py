"""The models of a server, by name; what all protocols share."""

from __future__ import annotations

import asyncio
from typing import Any

from fusewire.errors import (
    BudgetError,
    CheckError,
    DimError,
    FusewireError,
    RequestError,
    RequestTimeout,
    ServerBusy,
    ShapeMismatchError,
    TypeRuleError,
    UnknownModelError,
)
from fusewire.process.service import deaths
from fusewire.serve.access import Access
from fusewire.serve.datatypes import datatype_of
from fusewire.serve.limits import ServeLimits
from fusewire.serve.metrics import exposition
from fusewire.serve.model import LoadedModel, ServedModel

# The values of a request are to blame for these.
_CALLERS = (CheckError, ShapeMismatchError, DimError, TypeRuleError, BudgetError)
PLATFORM = "fusewire"


def status_of(error: FusewireError) -> int:
    """Give the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, _CALLERS) else 500


class Repository:
    """The models that are served."""

    def __init__(
        self, models: list[ServedModel], limits: ServeLimits, access: Access = Access()
    ) -> None:
        self.limits = limits
        self.access = access
        self.models = {model.config.name: model for model in models}
        self.is_draining = False
        # Bytes of the bodies of all requests that are read, wait or run.
        self.held = 0

    def hold(self, size: int) -> None:
        """Count bytes of a body until they are released; ServerBusy if there are too many."""
        if self.held and self.held + size > self.limits.held_bytes:
            raise ServerBusy(
                f"The requests that wait have {self.held} bytes, and this one {size}; the limit is "
                f"{self.limits.held_bytes}."
            )
        self.held += size

    def release(self, size: int) -> None:
        """Count bytes no more: their request is answered."""
        self.held -= size

    @property
    def is_ready(self) -> bool:
        """Whether every model answers."""
        return not self.is_draining and all(model.is_ready for model in self.models.values())

    def find(self, name: str, version: str | None = None) -> ServedModel:
        """Find a model; UnknownModelError lists those that there are."""
        model = self.models.get(name)
        if model is None:
            names = ", ".join(self.models)
            raise UnknownModelError(f"There is no model {name[:80]!r}. The models are {names}.")
        if version and version != str(model.version):
            raise UnknownModelError(
                f"{name} has no version {version[:40]!r}. Its version is {model.version}."
            )
        return model

    def ready(self, model: ServedModel) -> LoadedModel:
        """Return the version that answers; ServerBusy while there is none."""
        loaded = model.current
        if loaded is None:
            raise ServerBusy(f"{model.config.name} is not ready.", 1)
        return loaded

    def expire(self, future: asyncio.Future[Any], seconds: float) -> None:
        """Have a request fail that is not answered in time."""
        timer = asyncio.get_running_loop().call_later(seconds, _expired, future, seconds)
        future.add_done_callback(lambda _: timer.cancel())

    def metadata(self, model: ServedModel) -> dict[str, Any]:
        """Describe the inputs and outputs of a model."""
        loaded = self.ready(model)
        return {
            "name": model.config.name,
            "versions": [str(model.version)],
            "platform": PLATFORM,
            "inputs": [_tensor(port) for port in loaded.inputs],
            "outputs": [_tensor(port) for port in loaded.outputs],
        }

    def config(self, model: ServedModel) -> dict[str, Any]:
        """Describe how a model is batched, and why not if it is not."""
        loaded = self.ready(model)
        policy = loaded.batcher.policy
        return {
            **self.metadata(model),
            "max_batch_size": policy.rows if loaded.proof.is_proven else 0,
            "not_batched": loaded.proof.refusal,
            "delay_seconds": policy.delay,
            "replicas": len(loaded.replicas.all),
        }

    def index(self) -> list[dict[str, Any]]:
        """List the models with their states."""
        return [
            {
                "name": name,
                "version": str(model.version),
                "state": "READY" if model.is_ready else "UNAVAILABLE",
                "reason": model.error or "",
            }
            for name, model in self.models.items()
        ]

    def metrics(self) -> bytes:
        """Write all counts as Prometheus reads them."""
        counts = {name: model.counts for name, model in self.models.items()}
        current = {name: model.current for name, model in self.models.items()}
        live = {name: found for name, found in current.items() if found is not None}
        waiting = {name: found.batcher.waiting for name, found in live.items()}
        return exposition(counts, waiting, self.held, deaths())


def _expired(future: asyncio.Future[Any], seconds: float) -> None:
    if not future.done():
        future.set_exception(RequestTimeout(f"There was no answer within {seconds:g} seconds."))


def _tensor(port: Any) -> dict[str, Any]:
    shape = [dim if isinstance(dim, int) else -1 for dim in port.shape]
    return {"name": port.name, "datatype": datatype_of(port.dtype), "shape": shape}
