"""Connect to a Ray cluster, and leave it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from fusewire.errors import JobError, install_advice


def need(package: str, what: str) -> None:
    """Raise JobError if a package of this extra is missing; imports nothing."""
    if find_spec(package) is None:
        raise JobError(
            f"{what} needs the package {package}, which is not installed. {install_advice('ray')}"
        )


@contextlib.contextmanager
def connected(address: str, resources: Mapping[str, float] | None = None) -> Iterator[Any]:
    """Connect to a cluster, and disconnect at the end; a connection that exists is used as it is.

    ``address`` is "auto" for a cluster that runs, "local" for one of this process's own, or what
    ``ray.init`` takes. A cluster of its own has ``resources``. JobError if there is none.
    """
    need("ray", "--ray")
    import ray

    # What Ray prints about its workers is no part of what a command prints.
    with contextlib.redirect_stdout(sys.stderr):
        if ray.is_initialized():
            yield ray
            return
        _start(ray, address, resources)
        try:
            yield ray
        finally:
            ray.shutdown()


def _start(ray: Any, address: str, resources: Mapping[str, float] | None) -> None:
    own: dict[str, Any] = {}
    if address == "local":
        own = {"include_dashboard": False, "resources": dict(resources or {})}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning", **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise JobError(
            f"There is no Ray cluster at {address!r}: {error} Start one with `ray start --head`, "
            "or give --ray local."
        ) from None


def processors(ray: Any) -> int:
    """Count the processors of a cluster."""
    return int(ray.cluster_resources().get("CPU", 0)) or os.cpu_count() or 1
