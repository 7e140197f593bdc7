"""The contract between Fusewire and an engine. Versioned; must never name a backend.

A backend answers questions and builds executables; the core does the rest. This is its first
form, ``API = (0, 1)``: what the reference needs. Devices, offers, artifacts, buffers and events
join it with the first engines that have them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fusewire.ir.graph import Graph, Node
from fusewire.ops.sample import HostValue

API = (0, 1)


@dataclass(frozen=True)
class BackendInfo:
    """Who a backend is. Plain data: reading it imports no engine."""

    name: str
    version: str
    description: str
    vendor: str
    api: tuple[int, int] = API


@dataclass(frozen=True)
class Gap:
    """A known failing of a backend: an op, or one dtype of it, that it claims and gets wrong.

    ``todo`` is ours to mend, ``upstream`` the engine's, ``never`` is as it should be. A gap that
    passes fails the suite.
    """

    op: str
    kind: Literal["todo", "upstream", "never"]
    reason: str
    dtype: str | None = None


class Executable(abc.ABC):
    """A graph ready to run."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[HostValue]) -> list[HostValue]:
        """Run once; outputs are fresh and belong to the caller."""


class Backend(abc.ABC):
    """An engine behind the contract."""

    @property
    @abc.abstractmethod
    def info(self) -> BackendInfo:
        """Who this is."""

    @property
    @abc.abstractmethod
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""

    @abc.abstractmethod
    def refuses(self, node: Node) -> str | None:
        """Say why a node cannot run here, in a sentence; None when it can."""

    @abc.abstractmethod
    def compile(self, graph: Graph) -> Executable:
        """Make a graph ready to run; every node of it is one that is not refused."""
