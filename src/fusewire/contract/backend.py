"""The contract between Fusewire and an engine. Versioned; must never name a backend.

A backend answers questions and builds artifacts; the core does the rest: partition, time, verify,
cache, fall back, explain. Arguments and results are plain data or bytes, so that they can cross a
process boundary, except for what lives on a device: ``Executable`` and ``Buffer``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import kind_of
from fusewire.dtypes import DType
from fusewire.errors import OptionsError, install_advice
from fusewire.host_memory import MemoryPool
from fusewire.ir.dims import Shape
from fusewire.ir.graph import Array, Graph, HostValue, Node
from fusewire.ir.types import TensorType

API = (3, 0)
# A backend that compiles for at least so long is left out of quick searches.
SLOW_SECONDS = 10.0

# Metrics of an executable: nodes of the engine's own graph that run on its device, and those that
# it leaves to the processor.
DEVICE_NODES, HOST_NODES = "device_nodes", "host_nodes"
# A figure of a trial: ``Executable.run_bytes``, where the engine says so.
RUN_BYTES = "run_bytes"
# The option by which a backend leaves nodes exact that others of its options compute in less: their
# places in the region, such as "3,7-9".
EXACT_NODES = "exact_nodes"

# The option that has ranges of layers, measured on samples, a line for each.
CALIBRATED = "calibrated"
# The option under which the core compiles a region for sizes that are called often, and once for
# all others, and the value that asks for it. The engine itself is not told.
SIZES, OPEN, FITTED = "sizes", "open", "fitted"
# The option under which an engine runs its own form of nodes of which the page of the op promises
# more: they may lose a NaN, an infinity or the sign of a zero.
NAN, EXACT_NAN, ENGINE_NAN = "nan", "exact", "engine"
# The option for what an engine computes in, and its value for products of integers of 8 bits. Those
# have no NaN.
PRECISION, INT8 = "precision", "int8"

Form = Literal["native", "expanded", "file"]
Shapes = Literal["static", "bounded", "dynamic"]
Role = Literal["input", "weight", "output"]
Fact: TypeAlias = "str | bool | int | float | tuple[str, ...] | tuple[int, ...]"


@dataclass(frozen=True)
class BackendInfo:
    """The identity of a backend. Plain data: creating it imports no engine.

    If nothing else decides, the higher ``priority`` comes first. A ``trusted`` backend runs in the
    caller's process from the start. ``environment`` names variables that its engine reads, and
    ``programs`` names programs, or folders of them, that ``compile`` starts; nothing else may. An
    engine that ``checks_indices`` raises for every index and length that an op does not allow, but
    for the ``unchecked_ops``; for any other, plans check those that are computed before the engine
    sees them. A backend that ``claims_by_table`` imports no engine to claim, so that it is asked in
    the caller's process. ``version`` is that of the engine, and "none" if it is not installed.
    ``compile_seconds`` is about how long compiling takes where that is long: a search with a small
    budget leaves such a backend out. One that ``plans_memory`` says how many bytes a run takes: see
    ``Executable.run_bytes``.
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
    checks_indices: bool = False
    programs: tuple[str, ...] = ()
    unchecked_ops: tuple[str, ...] = ()
    claims_by_table: bool = False
    compile_seconds: float = 0.0
    plans_memory: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether it compiles for so long that only a long search includes it."""
        return self.compile_seconds >= SLOW_SECONDS

    @property
    def is_installed(self) -> bool:
        """Whether the engine's packages are there; only a probe knows whether it works."""
        return self.version != "none"

    def checks(self, op: str) -> bool:
        """Tell whether the engine finds what an op does not allow."""
        return self.checks_indices and op not in self.unchecked_ops


@dataclass(frozen=True)
class Device:
    """A place where a backend can run: ``cpu``, ``cuda:0``, ``cpu:openvino``.

    ``fusewire.contract.devices`` has the names. ``facts`` are never hard-coded; ``pci_bus_id`` and
    ``uuid`` tell the core that devices of two backends are the same hardware.
    """

    id: str
    name: str
    is_software: bool = False
    facts: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return kind_of(self.id)


@dataclass(frozen=True)
class Unavailable:
    """Why a backend cannot run here, or not on one ``device``, and what would help."""

    code: str
    reason: str
    fix: str
    device: str = ""

    @staticmethod
    def not_installed(info: BackendInfo, package: str) -> Unavailable:
        """Say which package a backend lacks, and how to install it."""
        reason = f"{info.name} needs the package {package}, which is not installed."
        fix = f"Run: pip install {package}" if info.extra is None else install_advice(info.extra)
        return Unavailable("not-installed", reason, fix)

    @property
    def is_fault(self) -> bool:
        """Whether something is broken, rather than not installed or without a device."""
        return self.code not in ("not-installed", "no-device")


@dataclass(frozen=True)
class Offer:
    """Nodes, by index, that a backend would run together."""

    nodes: tuple[int, ...]
    shapes: Shapes = "static"


@dataclass(frozen=True)
class Refusal:
    """Nodes that a backend will not run, with the reason that users read."""

    nodes: tuple[int, ...]
    code: str
    reason: str
    suggestion: str = ""


@dataclass(frozen=True)
class Slot:
    """An input, weight or output of an executable. ``digest`` names the constant of a weight."""

    role: Role
    name: str
    dtype: DType
    dims: Shape
    digest: str | None = None


@dataclass(frozen=True)
class Artifact:
    """A compiled region: ``native`` bytes are the engine's own code.

    Loading ``rebuild`` bytes compiles again: the engine cannot reload, or gains nothing by it.
    ``weights`` are the region's weights as the engine arranged them: loading does not copy them.
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
    """The tensors a backend accepts and returns; ``memory`` is "host" or a device's id."""

    memory: str = "host"
    alignment: int = 1
    needs_writable: bool = False
    needs_contiguous: bool = True


Held: TypeAlias = "HostValue | Buffer"
# Where each output may go: to memory of the caller's, over the input at this place, or anywhere.
Into: TypeAlias = "Sequence[Array | Buffer | int | None]"


class Executable(abc.ABC):
    """A loaded artifact."""

    @property
    @abc.abstractmethod
    def is_reentrant(self) -> bool:
        """Whether several threads may run it at once; otherwise the core serializes calls."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run, and return the outputs, which the caller owns.

        An array has been written when this returns. A buffer of a device may be pending: its
        ``wait`` and ``read`` block until it is written, and raise the engine's error.

        ``into`` is empty, or has a wish for each output: memory of the caller's, which is no input;
        the place of the input that it may be written over; or None. Only the op that makes such an
        output reads that input, and it replaces elements of it. An engine may decline any wish, at
        any call. What was written there is that object itself; any other output is new.
        """

    # Whether it takes arrays of any strides: it copies them anyway.
    takes_any_strides: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        """Figures about the loaded code that are at hand: see ``HOST_NODES``."""
        return {}

    def run_bytes(self) -> int | None:
        """Return the bytes that a run takes at once besides inputs and weights, as planned.

        None if the engine does not say. Asked in trials and where memory is limited, and only of
        backends that say ``plans_memory``.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most hold nothing that outlives them
        """Release its resources."""


@dataclass(frozen=True)
class Gap:
    """A known error of a backend: an op, or one dtype of it, that it claims and gets wrong.

    ``todo`` is ours to fix, ``upstream`` the engine's, ``never`` stays as it is. A gap that passes
    fails the suite. With a ``device``, an id, other devices are right.
    """

    op: str
    kind: Literal["todo", "upstream", "never"]
    reason: str
    dtype: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class BackendOption:
    """An option that ``backend_config`` may set, with its default and its meaning.

    ``values`` lists all that it may be, unless the backend checks that itself.
    """

    name: str
    default: Fact
    meaning: str
    values: tuple[Fact, ...] = ()

    def check(self, backend: str, value: Fact) -> None:
        """Raise OptionsError for a value that is not listed."""
        # True is 1, and is not meant by it.
        if self.values and not any(x == value and type(x) is type(value) for x in self.values):
            *others, last = (f'"{x}"' if isinstance(x, str) else str(x) for x in self.values)
            listed = f"{', '.join(others)} and {last}" if others else last
            raise OptionsError(f"{backend} has no {self.name}={value!r}. It has {listed}.")


def fitted_sizes_option() -> BackendOption:
    """Return the option of an engine that is faster when it knows the sizes of its inputs."""
    return BackendOption(
        SIZES,
        OPEN,
        f'With "{FITTED}", a graph with open sizes is also compiled for those that are called '
        "often, which takes more memory; all others run what was compiled for any size.",
        (OPEN, FITTED),
    )


def nan_option() -> BackendOption:
    """Return the option of an engine whose own form of some nodes is faster, and may lose NaN."""
    return BackendOption(
        NAN,
        EXACT_NAN,
        f'With "{EXACT_NAN}", NaN and infinities come through as the ops define it; with '
        f'"{ENGINE_NAN}", as the engine\'s own nodes do, which is faster and may lose those that '
        "arise inside.",
        (EXACT_NAN, ENGINE_NAN),
    )


def _may_lose_nan(option: str, value: Fact) -> bool:
    is_int8 = (option == CALIBRATED and bool(value)) or (option, value) == (PRECISION, INT8)
    return is_int8 or (option, value) == (NAN, ENGINE_NAN)


def label(backend: str, options: Mapping[str, Fact]) -> str:
    """Name a backend together with options of its own."""
    return " ".join([backend, *(f"{key}={value}" for key, value in options.items())])


@dataclass(frozen=True)
class Config:
    """Settings of one compilation; ``options`` are the backend's own, validated by it."""

    threads: int | None = None
    memory_limit: int | None = None
    deterministic: bool = False
    options: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def loses_nan(self) -> bool:
        """Whether an engine is told to run what may lose NaN: nodes of its own, or int8."""
        return any(_may_lose_nan(name, value) for name, value in self.options.items())

    def exact(self) -> Config:
        """Return the settings under which an engine keeps each NaN and infinity."""
        if not self.loses_nan:
            return self
        kept = {name: x for name, x in self.options.items() if not _may_lose_nan(name, x)}
        return replace(self, options=kept)

    def checked(self, backend: str, declared: Sequence[BackendOption]) -> dict[str, Fact]:
        """Merge the options over a backend's defaults.

        Raises:
            OptionsError: one is unknown, or has a value that it may not have.
        """
        own = {option.name: option.default for option in declared}
        unknown = sorted(set(self.options) - set(own))
        if unknown:
            known = ", ".join(sorted(own)) or "none"
            raise OptionsError(f"{backend} has no option {', '.join(unknown)}. Options: {known}.")
        for option in declared:
            option.check(backend, self.options.get(option.name, option.default))
        return {**own, **self.options}


class Backend(abc.ABC):
    """An engine behind the contract: one small class and one entry point.

    Composites that it refuses are offered again, expanded; the fallback runs what it still refuses.
    """

    # The ops that extensions brought, and the class that brought each; ``attach`` writes it.
    added_ops: Mapping[str, str] = MappingProxyType({})

    @property
    @abc.abstractmethod
    def info(self) -> BackendInfo:
        """The identity of this backend."""

    @property
    @abc.abstractmethod
    def gaps(self) -> Sequence[Gap]:
        """Its known errors."""

    @property
    @abc.abstractmethod
    def exchange(self) -> Exchange:
        """How it exchanges tensors, unless a device of it does so in another way."""

    @abc.abstractmethod
    def probe(self) -> list[Device | Unavailable]:
        """List devices, each proven by running something tiny on it."""

    @abc.abstractmethod
    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Say which nodes it would run; ``region.claim_by_table`` does it from a table."""

    @abc.abstractmethod
    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Compile a region to an artifact; the backend offered every node of it."""

    @abc.abstractmethod
    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Load an artifact; ``weights`` has every digest that its slots name."""

    def allocate(self, type_: TensorType, device: Device) -> Buffer | None:
        """Make a buffer in the memory of a device; None where that memory is the host's."""
        return None

    def pools(self) -> Sequence[MemoryPool]:
        """List its pools of memory in this process; asking does not import the engine."""
        return ()

    @property
    def options(self) -> Sequence[BackendOption]:
        """The options that ``backend_config`` may set; asking does not import the engine."""
        return ()

    def exchange_on(self, device: Device) -> Exchange:
        """Return how it exchanges tensors on a device: each may have a memory of its own."""
        return self.exchange

    @property
    def lowerings(self) -> MutableMapping[str, Any] | None:
        """The table of ops that extensions may add to; None if it accepts none."""
        return None

    @property
    def is_extensible(self) -> bool:
        """Whether it has a table of ops; asking does not import the engine, as the table may."""
        return type(self).lowerings is not Backend.lowerings

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Name what else an artifact depends on: versions, flags, drivers."""
        return {"engine": self.info.version}

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """List other options that may be faster and as right; the core times them."""
        return ()

    def loses_nan(self, node: Node, device: Device) -> bool:
        """Tell whether the engine's own form of a node may lose what the page of its op promises.

        That is a NaN, an infinity or the sign of a zero. The own form is what runs with the option
        ``NAN`` as ``ENGINE_NAN``, and what is in a file that the engine reads by itself. Not asked
        about nodes that it refuses; bodies of control flow are asked about node by node.
        """
        return False

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """List options under which it computes in less than the model's dtypes, and may be faster.

        The core tries them only where the user accepts an error, times them, and measures that
        error; without them, a backend computes in the dtypes of the region.
        """
        return ()

    def calibrates(self, device: Device) -> bool:
        """Tell whether it takes ranges that were measured on samples, as the option ``calibrated``.

        The core measures them if a user gives samples, and treats such a candidate as one of those
        that ``reduced`` lists; ``fusewire.rewrite.static_int8`` makes a graph of them.
        """
        return False

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        """List the places of nodes that options of ``reduced`` compute in less.

        Only if it can leave any of them exact: the core names those by the option ``EXACT_NODES``,
        where all of them in less err too much.
        """
        return ()

    def prepare(self, config: Config) -> None:  # noqa: B027 - optional
        """Start processes of its own that runs need: in a child, before that child is closed."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release devices; safe to repeat."""
