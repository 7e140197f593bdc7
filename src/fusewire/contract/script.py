"""How a region is run without us: what a backend may offer beside the contract.

For reports to the makers of an engine, who have NumPy and their engine, and nothing of ours.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

from fusewire.contract.backend import Config, Device
from fusewire.ir.graph import Graph


class Script(NamedTuple):
    """Python that runs a region with NumPy and an engine alone.

    ``source`` defines ``load()``, which gives a function from a list of arrays to a list of arrays,
    and reads ``files`` from the folder ``HERE``.
    """

    source: str
    files: Mapping[str, bytes]


class Scripted(abc.ABC):
    """What a backend may be beside: one whose faults can be shown to its makers."""

    @abc.abstractmethod
    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Write down how to run a region without us; None where that cannot be."""
