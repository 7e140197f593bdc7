"""Model files that an engine reads by itself: an optional part of the contract.

The engine gets what our reader checked, as bytes, and the weights as arrays: never a path, and
nothing of the file that the checked graph does not need.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Literal, final

from fusewire.contract.backend import Artifact, Config, Device
from fusewire.ir.graph import Constant, Graph

FileFormat = Literal["onnx"]


class ModelFile(abc.ABC):
    """A file that was read and checked; its inputs and outputs are those of the graph, in order."""

    @property
    @abc.abstractmethod
    def format(self) -> FileFormat:
        """The format of the payload."""

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """SHA-256 over the file and its external data, as hex."""

    @property
    @abc.abstractmethod
    def graph(self) -> Graph:
        """The graph as it was read, before any rewriting: what the engine will run."""

    @property
    @abc.abstractmethod
    def payload(self) -> bytes:
        """The model without its weights, which it names by digest."""

    @property
    @abc.abstractmethod
    def weights(self) -> Mapping[str, Constant]:
        """The weights by digest."""


@final
class SentFile(ModelFile):
    """A model file as a child gets it; the parent has checked its graph."""

    def __init__(
        self,
        format_: FileFormat,
        digest: str,
        graph: Graph,
        payload: bytes,
        weights: Mapping[str, Constant],
    ) -> None:
        self._parts = format_, digest, graph, payload, weights

    @property
    def format(self) -> FileFormat:
        return self._parts[0]

    @property
    def digest(self) -> str:
        return self._parts[1]

    @property
    def graph(self) -> Graph:
        """The graph of the region."""
        return self._parts[2]

    @property
    def payload(self) -> bytes:
        return self._parts[3]

    @property
    def weights(self) -> Mapping[str, Constant]:
        return self._parts[4]


class FileReader(abc.ABC):
    """A backend whose engine reads model files by itself."""

    @property
    @abc.abstractmethod
    def file_formats(self) -> tuple[FileFormat, ...]:
        """The formats that it reads."""

    @property
    def reduces_files(self) -> bool:
        """Whether the options of ``Backend.reduced`` also work for what it reads by itself."""
        return False

    @abc.abstractmethod
    def refuses_file(self, file: ModelFile, region: Graph, device: Device) -> str | None:
        """Say why the engine's own reading might not compute what the region does, or None.

        The backend has offered every node of the region.
        """

    @abc.abstractmethod
    def compile_file(
        self, file: ModelFile, region: Graph, device: Device, config: Config
    ) -> Artifact:
        """Compile a file; the region has the types of its inputs, and is what it computes."""


def known_constants(graph: Graph, file: ModelFile | None) -> dict[str, Constant]:
    """Return the constants that an artifact may name by digest."""
    from fusewire.ir.text import constants_of

    return constants_of(graph) if file is None else {**file.weights, **constants_of(graph)}
