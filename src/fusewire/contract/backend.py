"""The contract between Fusewire and an engine. Versioned; must never name a backend.

A backend answers questions and builds artifacts; the core does the rest: partition, time, verify,
cache, fall back, explain. Everything given and given back is plain data or bytes, so that it can
cross a process boundary, but for what lives in a device: ``Executable``, ``Buffer``, ``Event``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from fusewire.dtypes import DType
from fusewire.errors import OptionsError
from fusewire.ir.dims import Shape
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType
from fusewire.ops.sample import HostValue

API = (2, 0)

Form = Literal["native", "expanded"]
Shapes = Literal["static", "bounded", "dynamic"]
Role = Literal["input", "weight", "output"]
Fact: TypeAlias = "str | bool | int | float | tuple[str, ...] | tuple[int, ...]"


@dataclass(frozen=True)
class BackendInfo:
    """Who a backend is. Plain data: making it imports no engine.

    Where nothing else decides, the higher ``priority`` comes first. One that is ``trusted`` runs in
    the caller's process from the start. ``environment`` names variables that its engine listens to.
    """

    name: str
    version: str
    description: str
    vendor: str
    api: tuple[int, int] = API
    extra: str | None = None
    trusted: bool = False
    priority: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """A place a backend can run: ``cpu``, ``webgpu:0``. ``facts`` are found out, never typed in."""

    id: str
    name: str
    is_software: bool = False
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.id.partition(":")[0]


@dataclass(frozen=True)
class Unavailable:
    """Why a backend cannot run here, and what would help."""

    code: str
    reason: str
    fix: str

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong: not with one that is missing, or that finds no device."""
        return self.code not in ("not-installed", "no-device")


@dataclass(frozen=True)
class Offer:
    """Nodes, by their place in the graph, that a backend would run together."""

    nodes: tuple[int, ...]
    shapes: Shapes = "static"


@dataclass(frozen=True)
class Refusal:
    """Nodes that a backend will not run, and why: the sentence is what people read."""

    nodes: tuple[int, ...]
    code: str
    reason: str
    suggestion: str = ""


@dataclass(frozen=True)
class Slot:
    """One thing an executable reads or writes. ``digest`` names the constant a weight holds."""

    role: Role
    name: str
    dtype: DType
    dims: Shape
    digest: str | None = None


@dataclass(frozen=True)
class Artifact:
    """A compiled region: ``native`` bytes are code of the engine's own.

    From ``rebuild`` bytes, loading compiles again: the engine cannot reload or gains nothing by it.
    ``weights`` are what an engine made of the region's: loading reads them where they lie.
    """

    kind: Literal["native", "rebuild"]
    payload: bytes
    slots: tuple[Slot, ...]
    workspace: int = 0
    launch: Mapping[str, Fact] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    key: Mapping[str, str] = field(default_factory=dict)
    weights: memoryview | None = None


@dataclass(frozen=True)
class Exchange:
    """What a backend takes and gives at its edge; ``memory`` is "host" or a device's id."""

    memory: str = "host"
    alignment: int = 1
    needs_writable: bool = False
    needs_contiguous: bool = True


class Buffer(abc.ABC):
    """A tensor in a device's memory. Whoever holds it keeps it alive."""

    @property
    @abc.abstractmethod
    def device(self) -> str:
        """The id of the device."""

    @property
    @abc.abstractmethod
    def type(self) -> TensorType:
        """Dtype and shape; every dim is an int."""

    @abc.abstractmethod
    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host: all of it, or ``count`` elements from ``offset`` on, flat."""

    @abc.abstractmethod
    def write(self, array: Array, offset: int = 0) -> None:
        """Copy from the host, to the elements from ``offset`` on."""


Held: TypeAlias = "HostValue | Buffer"


class Event(abc.ABC):
    """A run that was started."""

    @property
    @abc.abstractmethod
    def outputs(self) -> list[Held]:
        """What it gives: buffers may be used at once, arrays once it was waited for."""

    @abc.abstractmethod
    def wait(self) -> list[Held]:
        """Block until it is done and give the outputs; raises what the engine met."""


@final
class Done(Event):
    """A run that ended before it was asked about: what host engines give."""

    __slots__ = ("outputs",)
    outputs: list[Held]

    def __init__(self, outputs: list[Held]) -> None:
        self.outputs = outputs

    def wait(self) -> list[Held]:
        """Give the outputs."""
        return self.outputs


class Executable(abc.ABC):
    """A loaded artifact."""

    @property
    @abc.abstractmethod
    def is_reentrant(self) -> bool:
        """Whether several threads may run it at once; otherwise the core takes turns."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Held]) -> Event:
        """Start a run; outputs are fresh and the caller's."""

    def close(self) -> None:  # noqa: B027 - most hold nothing that outlives them
        """Let go of what it holds."""


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


@dataclass(frozen=True)
class Config:
    """Settings of one compilation; ``options`` are the backend's own, validated by it."""

    threads: int | None = None
    memory_limit: int | None = None
    deterministic: bool = False
    options: Mapping[str, Fact] = field(default_factory=dict)

    def checked(self, backend: str, defaults: Mapping[str, Fact]) -> dict[str, Fact]:
        """Merge the options over a backend's defaults; an unknown one is an error."""
        unknown = sorted(set(self.options) - set(defaults))
        if unknown:
            known = ", ".join(sorted(defaults)) or "none"
            raise OptionsError(f"{backend} has no option {', '.join(unknown)}. It has {known}.")
        return {**defaults, **self.options}


class Backend(abc.ABC):
    """An engine behind the contract: one small class and one entry point.

    Composites that it refuses come back expanded; what it then still refuses runs elsewhere.
    """

    @property
    @abc.abstractmethod
    def info(self) -> BackendInfo:
        """Who this is."""

    @property
    @abc.abstractmethod
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""

    @property
    @abc.abstractmethod
    def exchange(self) -> Exchange:
        """How tensors come in and go out."""

    @abc.abstractmethod
    def probe(self) -> list[Device | Unavailable]:
        """Find devices, proved by running something tiny on each."""

    @abc.abstractmethod
    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Say what of a graph it would run; ``region.claim_by_table`` does it from a table."""

    @abc.abstractmethod
    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Make an artifact of a region; every node of it was offered."""

    @abc.abstractmethod
    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Make an artifact ready to run; ``weights`` has every digest that its slots name."""

    @property
    def lowerings(self) -> MutableMapping[str, Any] | None:
        """The table, by op, that extensions may add to; None when it takes none."""
        return None

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Name what an artifact depends on beyond the contract: versions, flags, drivers."""
        return {"engine": self.info.version}

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """List other options under which a region may be faster and is as right: they are timed."""
        return ()

    def close(self) -> None:  # noqa: B027 - optional
        """Let go of devices; safe to repeat."""
