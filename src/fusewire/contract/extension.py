"""Ops that somebody adds to a backend of somebody else's: found by entry point, started with it.

The entry point ``BACKEND.NAME`` of the group ``fusewire.extensions`` names a class. Its lowerings
go into the table that the backend opens to others (``Backend.lowerings``); children find them
through the reference of the backend: "module:Class+module:Extension".
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Backend
from fusewire.errors import RegistryError

GROUP = "fusewire.extensions"


class Extension(abc.ABC):
    """Adds ops to one backend."""

    @property
    @abc.abstractmethod
    def lowerings(self) -> Mapping[str, Any]:
        """Map ops to what the backend's own table has for an op."""

    def start(self, backend: Backend) -> None:  # noqa: B027 - most hold nothing
        """Get ready, before the first op is asked for; what is raised here is reported."""

    def stop(self) -> None:  # noqa: B027 - optional
        """Let go of what it holds: the backend is closed."""


@dataclass(frozen=True)
class Extended:
    """What became of an extension: the ops it added, or why it did not start."""

    name: str
    reference: str
    ops: tuple[str, ...] = ()
    problem: str | None = None


def attach(backend: Backend, extension: object) -> Extension:
    """Start an extension and put its ops into the backend's table."""
    if not isinstance(extension, Extension):
        raise RegistryError(f"{type(extension).__name__} is no Extension.")
    name, table = backend.info.name, backend.lowerings
    if table is None:
        raise RegistryError(f"{name} takes no extensions: it opens no table of lowerings.")
    if taken := sorted(table.keys() & extension.lowerings.keys()):
        raise RegistryError(f"{name} has {', '.join(taken)} already. Leave them out.")
    extension.start(backend)
    table.update(extension.lowerings)
    return extension


def detach(backend: Backend, extension: Extension) -> None:
    """Take the ops of an extension away and stop it."""
    for op in extension.lowerings:
        if backend.lowerings is not None:
            backend.lowerings.pop(op, None)
    extension.stop()
