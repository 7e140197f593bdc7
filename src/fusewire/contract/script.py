"""Scripts that run a region without Fusewire: an optional part of the contract.

For reports to the developers of an engine, who have NumPy and their engine, and nothing of ours.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

from fusewire.contract.backend import Config, Device
from fusewire.ir.graph import Graph


class Script(NamedTuple):
    """Python code that runs a region with NumPy and an engine only.

    ``source`` defines ``load()``, which returns a function from a list of arrays to a list of
    arrays, and reads ``files`` from the folder ``HERE``.
    """

    source: str
    files: Mapping[str, bytes]


class Scripted(abc.ABC):
    """A backend that can write scripts, so that its developers can run a report."""

    @abc.abstractmethod
    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Write a script that runs a region without Fusewire; None if that is impossible."""
