"""Extensions: packages that add ops to somebody else's backend, found by entry point.

The ops are ours, or declared by a package (``ops.outside``).

The entry point ``BACKEND.NAME`` of the group ``fusewire.extensions`` names a class. Its lowerings
go into the table that the backend opens (``Backend.lowerings``); children find them through the
reference of the backend: "module:Class+module:Extension".
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.contract.backend import Backend
from fusewire.errors import RegistryError, UnknownOpError
from fusewire.ir.graph import Graph

GROUP = "fusewire.extensions"


class Extension(abc.ABC):
    """Adds ops to one backend: functions for its table, or kernels of ``kernel.outside``."""

    @property
    @abc.abstractmethod
    def lowerings(self) -> Mapping[str, Any]:
        """Map ops to what the backend's own table has for an op."""

    def start(self, backend: Backend) -> None:  # noqa: B027 - most hold nothing
        """Prepare before the first op is used; an error here is reported."""

    def stop(self) -> None:  # noqa: B027 - optional
        """Release its resources: the backend is closed."""


@dataclass(frozen=True)
class Extended:
    """The state of an extension: the ops it added, or why it did not start."""

    name: str
    reference: str
    ops: tuple[str, ...] = ()
    problem: str | None = None


def attach(backend: Backend, extension: object) -> Extension:
    """Start an extension and put its ops into the backend's table."""
    if not isinstance(extension, Extension):
        raise RegistryError(f"{type(extension).__name__} is not an Extension.")
    name, table = backend.info.name, backend.lowerings
    if table is None:
        raise RegistryError(f"{name} accepts no extensions: it has no open table of lowerings.")
    if taken := sorted(table.keys() & extension.lowerings.keys()):
        raise RegistryError(f"{name} already has {', '.join(taken)}. Leave them out.")
    for op in extension.lowerings:
        _check_known(op)
    extension.start(backend)
    table.update(extension.lowerings)
    author = f"{type(extension).__module__}:{type(extension).__qualname__}"
    backend.added_ops = {**backend.added_ops, **dict.fromkeys(extension.lowerings, author)}
    return extension


def holds_added_ops(graph: Graph, backend: Backend) -> bool:
    """Tell whether a graph has ops that an extension lowers for a backend, or ops of packages."""
    nodes = (node for part in graph.walk() for node in part.nodes)
    return any("." in node.op or node.op in backend.added_ops for node in nodes)


def _check_known(op: str) -> None:
    """Refuse an op that is neither ours nor of an installed package: it would never be reached."""
    from fusewire.ops.table import get_op

    try:
        get_op(op)
    except UnknownOpError as error:
        raise RegistryError(f"It lowers {op!r}, and no graph can hold that. {error}") from error


def detach(backend: Backend, extension: Extension) -> None:
    """Remove the ops of an extension and stop it."""
    for op in extension.lowerings:
        if backend.lowerings is not None:
            backend.lowerings.pop(op, None)
    left = {op: x for op, x in backend.added_ops.items() if op not in extension.lowerings}
    backend.added_ops = left
    extension.stop()
