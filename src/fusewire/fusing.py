"""The public fusion API: can these nodes be fused, fuse them, compile the result.

A thin face on what is there: groups are those of ``rewrite.fusion``, an operation's kernels those
of ``kernel``, and a compiled kernel is an artifact of the backend. Nothing is decided here.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TypeAlias, final

from fusewire.contract.backend import Backend, Config, Device, Fact, Offer, Refusal
from fusewire.contract.region import first_device
from fusewire.contract.tuning import Tuner
from fusewire.dtypes import ALL, DType, float32
from fusewire.errors import RefusedError, RegistryError
from fusewire.fusion.cost import KernelLimits
from fusewire.fusion.grouping import Fusion, Group, body_of
from fusewire.fusion.grouping import fuse as grouped
from fusewire.fusion.patterns import PATTERNS, Pattern
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Lowered
from fusewire.kernel.lower.region import Stored, lower
from fusewire.kernel.lower.table import refusal
from fusewire.kernel.spec import KernelSpec, spec_of
from fusewire.ops.elementwise import add, exp
from fusewire.process.guard import described, guarded
from fusewire.registry import REGISTRY, Registry

NONE, AUTO = "none", "auto"


def fuse(graph: Graph, backend: str | FusionBackend | None = None) -> Fusion:
    """Group the nodes of a graph that become one kernel, for a backend or our own kernels.

    >>> import fusewire as fw
    >>> graph = fw.trace(lambda x: fw.ops.softmax(x), fw.Spec((4, 6), "float32"))
    >>> fusion = fw.fuse(graph)
    >>> fusion.before.launches, fusion.after.launches, dict(fusion.patterns)
    (5, 1, {'softmax': 1})
    """
    if backend is None:
        return grouped(graph, refusal, apart=_unkernelled)
    chosen = FusionBackends().create(backend) if isinstance(backend, str) else backend
    return chosen.fuse(graph)


def _unkernelled(graph: Graph) -> dict[Node, str]:
    """Name the nodes that our kernels cannot compute."""
    return {node: reason for node in graph.nodes if (reason := refusal(node)) is not None}


@dataclass(frozen=True)
class FusedOperation:
    """A group as an operation: its nodes, pattern, graph and kernels."""

    group: Group
    pattern: Pattern

    @property
    def parts(self) -> tuple[Node, ...]:
        """The fused nodes, as they are in the graph."""
        return self.group.origins

    @property
    def graph(self) -> Graph:
        """Its meaning: variables are values, each with shape and dtype."""
        return self.group.graph

    @cached_property
    def kernels(self) -> Lowered:
        """Its loops, buffers and layouts; RefusedError if our kernels cannot compute it."""
        body, kept = body_of(self.group)
        return lower(body, lambda _: [Stored(body.outputs, kept)])

    @property
    def specs(self) -> tuple[KernelSpec, ...]:
        """What its kernels need of a device."""
        return tuple(map(spec_of, self.kernels.kernels))


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled operation: the backend's bytes, launch parameters, and the cost of compiling."""

    id: str
    operation: FusedOperation
    binary: bytes
    format: str
    metadata: Mapping[str, str]
    launch: Mapping[str, Fact]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class FusionCapabilities:
    """What a fusion backend can do: patterns and dtypes it fuses, and four abilities."""

    patterns: tuple[str, ...]
    dtypes: tuple[DType, ...]
    autotunes: bool
    profiles: bool
    compiles_at_run: bool
    caches_binaries: bool


class FusionBackend(abc.ABC):
    """Says what it can fuse, fuses it, and compiles the result."""

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """Its type: ``triton``, ``xla``, ``webgpu``, another backend's name, or ``none``."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> FusionCapabilities:
        """What it can do."""

    @abc.abstractmethod
    def fuse(self, graph: Graph) -> Fusion:
        """Group the nodes of a graph."""

    @abc.abstractmethod
    def compile(self, operation: FusedOperation) -> CompiledKernel:
        """Compile a fused operation; RefusedError if it cannot."""

    def refusal(self, graph: Graph) -> str | None:
        """Say why the nodes of a graph do not become one operation; None if they do."""
        fusion = self.fuse(graph)
        if len(fusion.groups) == 1:
            return None
        reasons = [f"{found.node.op}: {found.reason}" for found in fusion.refused]
        return reasons[0] if reasons else f"The nodes become {len(fusion.groups)} operations."

    def operations(self, graph: Graph) -> list[FusedOperation]:
        """Fuse a graph, and return its groups as operations."""
        groups = self.fuse(graph).groups
        return [FusedOperation(group, PATTERNS[group.pattern]) for group in groups]


@final
class EngineFusion(FusionBackend):
    """Fusion for one device of a backend; nodes that it refuses are in no kernel."""

    def __init__(self, backend: Backend, device: Device, jit: bool = True) -> None:
        self._backend = backend
        self._device = device
        self._jit = jit

    @property
    def kind(self) -> str:
        return self._backend.info.name

    @cached_property
    def capabilities(self) -> FusionCapabilities:
        x = Value(TensorType(float32, (8,)), "x")
        sample = Graph([x], [exp(x)])
        artifact = self._backend.compile(sample, self._device, Config())
        return FusionCapabilities(
            tuple(PATTERNS),
            self._dtypes(),
            isinstance(self._backend, Tuner),
            bool(self._device.facts.get("has_timestamps", False)),
            self._jit,
            artifact.kind == "native",
        )

    def _dtypes(self) -> tuple[DType, ...]:
        """List the dtypes in which the backend takes an addition."""
        values = [Value(TensorType(of, (8,)), of.name) for of in add.dtypes]
        sums = Graph(values, [add(v, v) for v in values])
        refused = self._refused(sums)
        return tuple(
            of for of, v in zip(add.dtypes, sums.outputs, strict=True) if v.node not in refused
        )

    def _refused(self, graph: Graph) -> dict[Node, str]:
        def ask() -> list[Offer | Refusal]:
            return self._backend.claim(graph, self._device)

        answers = guarded(self.kind, "claim", described(graph), ask)
        return {
            graph.nodes[place]: answer.reason
            for answer in answers
            if isinstance(answer, Refusal)
            for place in answer.nodes
        }

    def fuse(self, graph: Graph) -> Fusion:
        return grouped(graph, apart=self._refused)

    def compile(self, operation: FusedOperation) -> CompiledKernel:
        region = operation.graph
        refused = self._refused(region)
        if refused:
            raise RefusedError(f"{self.kind} cannot compile this: {next(iter(refused.values()))}")
        artifact = self._backend.compile(region, self._device, Config())
        name = hashlib.sha256(artifact.payload).hexdigest()[:16]
        key = {**self._backend.fingerprint(self._device), "device": self._device.id}
        return CompiledKernel(
            f"{self.kind}-{name}",
            operation,
            artifact.payload,
            f"{self.kind}/{artifact.kind}",
            key,
            artifact.launch,
            artifact.metrics,
        )


@final
class NoFusion(FusionBackend):
    """Leaves every node by itself."""

    @property
    def kind(self) -> str:
        return NONE

    @property
    def capabilities(self) -> FusionCapabilities:
        return FusionCapabilities((), ALL, False, False, False, False)

    def fuse(self, graph: Graph) -> Fusion:
        return grouped(graph, limits=KernelLimits(nodes=1))

    def compile(self, operation: FusedOperation) -> CompiledKernel:
        raise RefusedError("Fusion of type none compiles nothing. Choose a backend.")


# Makes an initialised fusion backend.
Make: TypeAlias = Callable[[], FusionBackend]


@final
class FusionBackends:
    """Fusion backends by name, over a registry of backends: any of those is one by its name."""

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._makes: dict[str, Make] = {NONE: NoFusion}
        self._made: dict[str, FusionBackend] = {}

    def register(self, name: str, make: Make) -> None:
        """Add a type; a name that is taken is an error."""
        if name in self.names():
            raise RegistryError(f"There is a fusion backend {name!r} already. Take another name.")
        self._makes[name] = make

    def unregister(self, name: str) -> None:
        """Remove a type that was added."""
        if name == NONE or name not in self._makes:
            raise RegistryError(f"No fusion backend {name!r} was registered here.")
        del self._makes[name]
        self._made.pop(name, None)

    def names(self) -> list[str]:
        """List all types."""
        return [*self._makes, *self._registry.backends.names()]

    def create(self, name: str) -> FusionBackend:
        """Make an initialised fusion backend of a type."""
        name = self._chosen(name)
        if name in self._makes:
            return self._makes[name]()
        backend = self._registry.get(name)
        jit = self._registry.capabilities(name)["JIT"].is_held
        return EngineFusion(backend, first_device(backend), jit)

    def get(self, name: str | None = None) -> FusionBackend:
        """Give the fusion backend of a name, shared; the default without one."""
        chosen = self._chosen(name or AUTO)
        if chosen not in self._made:
            self._made[chosen] = self.create(chosen)
        return self._made[chosen]

    def _chosen(self, name: str) -> str:
        """Say what "auto" stands for: what was set, or the most preferred that has a device."""
        chosen = self._registry.default if name == AUTO else name
        return next(self._present()) if chosen == AUTO else chosen

    def _present(self) -> Iterator[str]:
        names = self._registry.ranked()
        return (name for name in names if self._registry.meet(name).devices)

    def find(self, graph: Graph) -> FusionBackend | None:
        """Find one that fuses a graph into one operation, the most preferred first."""
        names = chain([name for name in self._makes if name != NONE], self._present())
        return next((x for x in map(self.get, names) if x.refusal(graph) is None), None)
