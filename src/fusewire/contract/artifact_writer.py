"""Artifacts that need no engine to be written: an optional part of the contract."""

from __future__ import annotations

import abc

from fusewire.contract.backend import Artifact, Config, Device
from fusewire.ir.graph import Graph


class ArtifactWriter(abc.ABC):
    """A backend that writes what its engine loads without the engine.

    The caller's process writes it while the engine still starts in a child: that is the quickest
    way to a first answer. What ``compile`` makes may load sooner.
    """

    @abc.abstractmethod
    def write_artifact(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Write an artifact of a region; imports no engine."""
