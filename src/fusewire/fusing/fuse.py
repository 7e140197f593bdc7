"""The public fusion API: group nodes, compile a group and run it, and see what an engine fused.

A thin face on what is there: groups are those of ``fusion``, an operation's kernels those of
``kernel``, a compiled kernel is an artifact of a backend that ran in a child first, and tuning is
that of ``choosing``. What an engine fuses is never claimed here: the backend looks
(``contract.inspection``).
"""

from __future__ import annotations

import abc
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Config,
    Executable,
    Fact,
    Held,
    Refusal,
)
from fusewire.contract.devices import answers_to
from fusewire.contract.extension import holds_added_ops
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.region import CrossCompiler, weights_of
from fusewire.contract.tuning import TUNED, Piece, Tuner, written
from fusewire.dtypes import ALL, DType, float32
from fusewire.errors import (
    EngineError,
    OptionsError,
    RefusedError,
    RegistryError,
    ShapeMismatchError,
)
from fusewire.fusion.cost import Cost, KernelLimits, Work, bytes_and_launches
from fusewire.fusion.grouping import Fusion, Group, body_of
from fusewire.fusion.grouping import fuse as grouped
from fusewire.fusion.kinds import kind_of
from fusewire.fusion.patterns import PATTERNS, Pattern
from fusewire.fusion.samples import SAMPLES, sample
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.hash import exact_hash
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Lowered
from fusewire.kernel.lower.region import Stored, lower
from fusewire.kernel.lower.table import refusal
from fusewire.kernel.spec import KernelSpec, spec_of
from fusewire.ops.declare import Kind
from fusewire.ops.elementwise import add, exp
from fusewire.options import Options
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.process.guard import BY_CODE, described, guarded, guarded_run
from fusewire.registry import REGISTRY, Registry
from fusewire.session.context import CompileContext

if TYPE_CHECKING:
    from fusewire.contract.backend import Exchange
    from fusewire.records.tunings import TunedKernel

__all__ = [
    "CompiledKernel",
    "EngineKernel",
    "FusedOperation",
    "Fusion",
    "FusionBackend",
    "FusionBackends",
    "FusionCapabilities",
    "KernelLimits",
    "Pattern",
    "Work",
    "fuse",
    "fusion_backends",
]

NONE, AUTO = "none", "auto"
LEVELS = (0, 1, 2, 3)


def fuse(
    graph: Graph,
    backend: str | FusionBackend | None = None,
    *,
    limits: KernelLimits = KernelLimits(),
    cost: Cost = bytes_and_launches,
    patterns: Sequence[Pattern | str] | None = None,
) -> Fusion:
    """Group the nodes of a graph that become one kernel, for a backend or our own kernels.

    ``limits`` bound what one kernel holds, and ``cost`` weighs one kernel against two. With
    ``patterns``, names of ours or ``Pattern`` objects, no others make groups.

    >>> import fusewire as fw
    >>> graph = fw.trace(lambda x: fw.ops.softmax(x), fw.Spec((4, 6), "float32"))
    >>> fusion = fw.fuse(graph)
    >>> fusion.before.launches, fusion.after.launches, dict(fusion.patterns)
    (5, 1, {'softmax': 1})
    """
    if backend is None:
        return grouped(
            graph, refusal, apart=_unkernelled, limits=limits, cost=cost, patterns=patterns
        )
    chosen = fusion_backends.get(backend) if isinstance(backend, str) else backend
    return chosen.fuse(graph, limits=limits, cost=cost, patterns=patterns)


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
    """A compiled operation: the backend's bytes, launch parameters, and the cost of compiling.

    ``metrics`` has ``compile_ms``, the ``bytes`` of the binary with its weights, and the ``level``
    that it was compiled at. ``config`` is what the backend was told, with what was tuned.
    """

    id: str
    operation: FusedOperation
    binary: bytes
    format: str
    metadata: Mapping[str, str]
    launch: Mapping[str, Fact]
    metrics: Mapping[str, float]
    config: Config = field(default_factory=Config)
    artifact: Artifact | None = field(default=None, repr=False)
    target: Target | None = field(default=None, repr=False)
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @cached_property
    def kernels(self) -> tuple[EngineKernel, ...]:
        """The kernels that the engine runs for it, with their launches as far as it tells."""
        if self.target is None:
            raise RefusedError(f"{self.id} does not tell its kernels.")
        return _looked(self.target, self.operation.graph, self.config)

    def run(self, *arrays: Any) -> Any:
        """Run it on arrays of the host; returns a tuple if the operation stores several."""
        region = self.operation.graph
        inputs = _fitting(region, arrays)
        executable, exchange = self._loaded
        from fusewire.plan.transfer import fetched, hand_over
        from fusewire.planning.guards import checked_inputs

        checked = checked_inputs(region, inputs)
        assert self.target is not None, "it was loaded"
        given = [hand_over(value, exchange) for value in checked]
        if executable.is_reentrant:
            outputs = guarded_run(self.target.name, executable.run, given, waits=True)
        else:
            with self._turn:
                outputs = guarded_run(self.target.name, executable.run, given, waits=True)
        found = [fetched(value) for value in outputs]
        return found[0] if len(found) == 1 else tuple(found)

    @cached_property
    def _loaded(self) -> tuple[Executable, Exchange]:
        from fusewire.trials.build import load

        artifact, target = self.artifact, self.target
        if artifact is None or target is None:
            raise RefusedError(f"{self.id} was compiled by a type that does not run kernels.")
        if target.device.facts.get("is_elsewhere"):
            raise RefusedError(
                f"{self.id} was compiled for {target.device.id}, which is not here. Compile it "
                "without target= to run it."
            )
        weights = weights_of(artifact, constants_of(self.operation.graph))
        return load(target.name, target.device, target.backend, artifact, weights)


def _fitting(region: Graph, arrays: Sequence[Any]) -> list[Held]:
    """Check arrays against the inputs of an operation; ShapeMismatchError names the first."""
    if len(arrays) != len(region.inputs):
        types = ", ".join(str(value.type) for value in region.inputs)
        raise ShapeMismatchError(
            f"The operation has {len(region.inputs)} inputs ({types}), and got {len(arrays)}."
        )
    found = [np.asarray(array) for array in arrays]
    for value, array in zip(region.inputs, found, strict=True):
        of = value.tensor
        if array.shape != of.shape or array.dtype != of.dtype.numpy:
            raise ShapeMismatchError(
                f"The input {value.name} is {of}, found {array.dtype}{list(array.shape)}. "
                "Convert or reshape it first."
            )
    return list(found)


@dataclass(frozen=True)
class FusionCapabilities:
    """What a fusion backend was seen to do: patterns that became one kernel, dtypes, abilities.

    ``patterns`` are those whose samples the engine ran as one kernel.
    """

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
    def fuse(
        self,
        graph: Graph,
        *,
        limits: KernelLimits = KernelLimits(),
        cost: Cost = bytes_and_launches,
        patterns: Sequence[Pattern | str] | None = None,
    ) -> Fusion:
        """Group the nodes of a graph."""

    @abc.abstractmethod
    def compile(
        self,
        operation: FusedOperation,
        *,
        device: str | None = None,
        target: str | None = None,
        config: Config = Config(),
        level: int = 1,
    ) -> CompiledKernel:
        """Compile a fused operation for a device, or a ``target`` that need not be here.

        Level 0 leaves kernels untuned, 1 and 2 use what was tuned before, 3 tunes first.
        RefusedError if it cannot.
        """

    def tune(
        self,
        operation: FusedOperation,
        *,
        device: str | None = None,
        config: Config = Config(),
        budget_seconds: float = 20.0,
    ) -> tuple[TunedKernel, ...]:
        """Time configurations of the kernels of an operation, and record the fastest right ones."""
        raise RefusedError(f"Fusion of type {self.kind} has nothing to tune.")

    def fused(self, graph: Graph, *, config: Config = Config()) -> tuple[EngineKernel, ...]:
        """List the kernels that a graph becomes, each with places of its nodes in the graph.

        Unless a type looks at its engine, these are the groups of ``fuse``.
        """
        places = {node: place for place, node in enumerate(graph.nodes)}
        return tuple(
            EngineKernel(
                group.name, group.pattern, tuple(sorted(places[node] for node in group.origins))
            )
            for group in self.fuse(graph).groups
        )

    def refusal(self, graph: Graph) -> str | None:
        """Say why the nodes of a graph do not become one kernel; None if they do."""
        try:
            return not_one_kernel(self.kind, graph, self.fused(graph))
        except (RefusedError, EngineError) as error:
            return str(error)

    def operations(
        self,
        graph: Graph,
        *,
        limits: KernelLimits = KernelLimits(),
        cost: Cost = bytes_and_launches,
        patterns: Sequence[Pattern | str] | None = None,
    ) -> list[FusedOperation]:
        """Fuse a graph, and return its groups as operations."""
        fusion = self.fuse(graph, limits=limits, cost=cost, patterns=patterns)
        known = {**PATTERNS, **fusion.known}
        return [FusedOperation(group, known[group.pattern]) for group in fusion.groups]


def not_one_kernel(kind: str, graph: Graph, kernels: Sequence[EngineKernel]) -> str | None:
    """Say why kernels are not one kernel of a whole graph; None if they are."""
    computing = [kernel for kernel in kernels if kernel.nodes]
    if len(computing) != 1:
        names = ", ".join(kernel.name for kernel in computing)
        return f"{kind} makes {len(computing)} kernels of it: {names}."
    needed = [i for i, node in enumerate(graph.nodes) if kind_of(node) is not Kind.FREE]
    missing = [graph.nodes[i].op for i in needed if i not in computing[0].nodes]
    return f"{kind} runs {', '.join(missing)} in no kernel that it tells." if missing else None


@final
class EngineFusion(FusionBackend):
    """Fusion for the devices of a backend; nodes that it refuses are in no kernel."""

    def __init__(
        self, targets: Sequence[Target], context: CompileContext, jit: bool = True
    ) -> None:
        self._targets = targets
        self._context = context
        self._jit = jit
        # Regions that ran in a child, by place: they may be compiled here.
        self._met: set[tuple[str, str]] = set()

    @property
    def _first(self) -> Target:
        return self._targets[0]

    @property
    def kind(self) -> str:
        return self._first.name

    @cached_property
    def capabilities(self) -> FusionCapabilities:
        x = Value(TensorType(float32, (8,)), "x")
        artifact, _ = self._contact(self._first, Graph([x], [exp(x)]), Config())
        facts = self._first.device.facts
        return FusionCapabilities(
            tuple(name for name in SAMPLES if self.refusal(sample(name)) is None),
            self._dtypes(),
            isinstance(self._first.backend, Tuner),
            bool(facts.get("has_timestamps", False)),
            self._jit,
            artifact.kind == "native",
        )

    def _dtypes(self) -> tuple[DType, ...]:
        """List the dtypes in which the backend takes an addition."""
        values = [Value(TensorType(of, (8,)), of.name) for of in add.dtypes]
        sums = Graph(values, [add(v, v) for v in values])
        refused = self._refused(sums)
        pairs = zip(add.dtypes, sums.outputs, strict=True)
        return tuple(of for of, v in pairs if v.node not in refused)

    def _refused(self, graph: Graph, target: Target | None = None) -> dict[Node, str]:
        return {
            graph.nodes[place]: answer.reason
            for answer in (target or self._first).claim(graph)
            if isinstance(answer, Refusal)
            for place in answer.nodes
        }

    def fuse(
        self,
        graph: Graph,
        *,
        limits: KernelLimits = KernelLimits(),
        cost: Cost = bytes_and_launches,
        patterns: Sequence[Pattern | str] | None = None,
    ) -> Fusion:
        return grouped(graph, apart=self._refused, limits=limits, cost=cost, patterns=patterns)

    def fused(self, graph: Graph, *, config: Config = Config()) -> tuple[EngineKernel, ...]:
        """Compile a graph, in a child and then here, and look at what the engine made of it."""
        target = self._first
        _inspector(target)
        _require_static(graph)
        claimed = ask(target, graph)
        if claimed.refusals:
            node, first = next(iter(claimed.refusals.items()))
            raise RefusedError(f"{self.kind} cannot run {node.op}: {first.reason}")
        self._contact(target, claimed.graph, config, is_kept=True)
        places = {node: place for place, node in enumerate(graph.nodes)}
        own = [places[claimed.origin(node)] for node in claimed.graph.nodes]
        return tuple(
            replace(kernel, nodes=tuple(sorted({own[place] for place in kernel.nodes})))
            for kernel in _looked(target, claimed.graph, config)
        )

    def compile(
        self,
        operation: FusedOperation,
        *,
        device: str | None = None,
        target: str | None = None,
        config: Config = Config(),
        level: int = 1,
    ) -> CompiledKernel:
        if level not in LEVELS:
            raise OptionsError(f"level={level!r}: levels are 0, 1, 2 and 3.")
        place, region = self._place(device, target), operation.graph
        _require_static(region)
        refused = self._refused(region, place)
        if refused:
            raise RefusedError(f"{self.kind} cannot compile this: {next(iter(refused.values()))}")
        config = self._configured(operation, place, config, level)
        self._check_kernels(place, region, config)
        artifact, seconds = self._contact(place, region, config)
        name = hashlib.sha256(artifact.payload).hexdigest()[:16]
        size = len(artifact.payload) + (artifact.weights.nbytes if artifact.weights else 0)
        metrics = {"compile_ms": 1e3 * seconds, "bytes": float(size), "level": float(level)}
        return CompiledKernel(
            f"{self.kind}-{name}",
            operation,
            artifact.payload,
            f"{self.kind}/{artifact.kind}",
            {**place.backend.fingerprint(place.device), "device": place.device.id},
            artifact.launch,
            {**artifact.metrics, **metrics},
            config,
            artifact,
            place,
        )

    def _check_kernels(self, target: Target, region: Graph, config: Config) -> None:
        """Refuse a kernel of a package that is wrong at the sizes of a region."""
        if not holds_added_ops(region, target.backend) or target.device.facts.get("is_elsewhere"):
            return
        from fusewire.records.keys import backend_fields
        from fusewire.trials.kernel_check import KernelCheck

        fields = backend_fields(target.backend, target.device, config)
        limits = target.limits.with_compiling(target.backend.info.compile_seconds)
        given = target, target.device, config, fields, limits, self._context.records
        if (fault := KernelCheck(*given).fault(region, _generated(region))) is not None:
            raise RefusedError(fault.sentence)

    def _place(self, device: str | None, target: str | None) -> Target:
        """Find a device that is here, or describe a target that need not be."""
        if target is None:
            return self._target(device)
        if device is not None:
            raise OptionsError(f"device={device!r} and target={target!r}: give one of them.")
        backend = self._first.backend
        absent = backend.device_for(target) if isinstance(backend, CrossCompiler) else None
        if absent is None:
            raise OptionsError(f"target={target!r}: {self.kind} compiles for no such device.")
        return Target(backend, absent)

    def _target(self, device: str | None) -> Target:
        fitting = [x for x in self._targets if device is None or answers_to(x.device, device)]
        exact = (x for x in fitting if x.device.id == device)
        if (found := next(exact, fitting[0] if fitting else None)) is not None:
            return found
        have = ", ".join(x.device.id for x in self._targets)
        raise RegistryError(f"{self.kind} was asked for {device} and has {have}.")

    def _contact(
        self, target: Target, region: Graph, config: Config, *, is_kept: bool = False
    ) -> tuple[Artifact, float]:
        """Compile a region, in a child first unless the engine is trusted; give the seconds too.

        With ``is_kept``, one that was met before is not compiled again: nobody wants the artifact.
        """
        from fusewire.process.isolate import first_contact

        known = target.device.id, exact_hash(region)
        if is_kept and known in self._met:
            return Artifact("rebuild", b"", ()), 0.0
        if target.reference is None:
            start = time.perf_counter()
            given = region, target.device, config
            artifact = guarded(
                self.kind, "compile", described(region), target.backend.compile, *given
            )
            return artifact, time.perf_counter() - start
        inputs: Any = _generated(region)
        compiling = target.backend.info.compile_seconds
        limits = target.limits.with_compiling(compiling)
        contact = first_contact(target.reference, region, target.device, config, inputs, limits)
        if isinstance(contact, Refusal):
            raise BY_CODE[contact.code](contact.reason, contact.suggestion)
        self._met.add(known)
        return contact.artifact, contact.metrics["compile_seconds"]

    def _configured(
        self, operation: FusedOperation, target: Target, config: Config, level: int
    ) -> Config:
        """Add what was tuned to the options of a compilation."""
        if level == 0 or TUNED in config.options or target.device.facts.get("is_elsewhere"):
            return config
        known = self._recalled(operation.graph, target, config)
        if level == 3 and any(kernel is None for kernel in known.values()):
            tuned = self.tune(operation, device=target.device.id, config=config)
            known = {kernel.key: kernel for kernel in tuned}
        chosen = {k.key: k.chosen for k in known.values() if k is not None and k.is_other}
        options = {**config.options, TUNED: written(chosen)}
        return replace(config, options=options) if chosen else config

    def _recalled(
        self, region: Graph, target: Target, config: Config
    ) -> dict[str, TunedKernel | None]:
        """Recall what is known of each kernel that can be tuned, by key."""
        from fusewire.records.tunings import recall

        records, backend, device = self._context.records, target.backend, target.device
        pieces = _pieces(target, region, config)
        return {piece.key: recall(records, backend, device, piece) for piece in pieces}

    def tune(
        self,
        operation: FusedOperation,
        *,
        device: str | None = None,
        config: Config = Config(),
        budget_seconds: float = 20.0,
    ) -> tuple[TunedKernel, ...]:
        from fusewire.choosing.tune import Tuning
        from fusewire.planning.candidates import Candidate
        from fusewire.planning.planner import make_plan
        from fusewire.trials.trial import TrialRunner

        target, region = self._target(device), operation.graph
        if not _pieces(target, region, config):
            raise RefusedError(
                f"{self.kind} on {target.device.id} has no kernel of this that can be configured "
                "and timed."
            )
        finder = self._context.finder
        isolate = target.reference is not None
        runner = TrialRunner(config, target.limits, finder.reference_of, isolate)
        inputs, start = _generated(region), time.monotonic()
        tuning = Tuning(runner, self._context.records, config, inputs, start, budget_seconds)
        try:
            return tuple(tuning.tune_kernels(Candidate(target, make_plan(region, [target]))))
        finally:
            runner.close()


def _inspector(target: Target) -> Inspector:
    if not isinstance(target.backend, Inspector):
        raise RefusedError(f"{target.name} does not tell what it fuses: nobody can look.")
    return target.backend


def _looked(target: Target, region: Graph, config: Config) -> tuple[EngineKernel, ...]:
    """Have a backend look at what its engine makes of a region."""
    look = _inspector(target).kernels
    kernels = guarded(
        target.name, "compile", described(region), look, region, target.device, config
    )
    return tuple(kernels)


def _pieces(target: Target, region: Graph, config: Config) -> Sequence[Piece]:
    backend = target.backend
    if not isinstance(backend, Tuner):
        return ()
    asked = region, target.device, config
    return guarded(target.name, "claim", described(region), backend.pieces, *asked)


def _generated(region: Graph) -> list[Any]:
    from fusewire.choosing.tune import generated_inputs

    return generated_inputs(region, 0)


def _require_static(graph: Graph) -> None:
    for value in graph.inputs:
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            raise RefusedError(
                f"The input {value.name} is {value.type}, and kernels are compiled for known "
                "sizes. Trace it with numbers in place of names."
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

    def fuse(
        self,
        graph: Graph,
        *,
        limits: KernelLimits = KernelLimits(),
        cost: Cost = bytes_and_launches,
        patterns: Sequence[Pattern | str] | None = None,
    ) -> Fusion:
        return grouped(graph, limits=replace(limits, nodes=1), patterns=())

    def compile(
        self,
        operation: FusedOperation,
        *,
        device: str | None = None,
        target: str | None = None,
        config: Config = Config(),
        level: int = 1,
    ) -> CompiledKernel:
        raise RefusedError("Fusion of type none compiles nothing. Choose a backend.")


# Makes an initialised fusion backend.
Make: TypeAlias = Callable[[], FusionBackend]


@final
class FusionBackends:
    """Fusion backends by name, over a registry of backends: any of those is one by its name.

    Thread-safe. ``fw.fusion_backends`` is the one that ``fw.fuse`` and the command line use.
    """

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._makes: dict[str, Make] = {NONE: NoFusion}
        self._made: dict[str, FusionBackend] = {}

    def register(self, name: str, make: Make) -> None:
        """Add a type; a name that is taken is an error."""
        with self._lock:
            if name in self.names() or name == AUTO:
                raise RegistryError(
                    f"There is a fusion backend {name!r} already. Take another name."
                )
            self._makes[name] = make

    def unregister(self, name: str) -> None:
        """Remove a type that was added."""
        with self._lock:
            if name == NONE or name not in self._makes:
                raise RegistryError(f"No fusion backend {name!r} was registered here.")
            del self._makes[name]
            self._made.pop(name, None)

    def names(self) -> list[str]:
        """List all types."""
        with self._lock:
            return [*self._makes, *self._registry.backends.names()]

    def create(self, name: str) -> FusionBackend:
        """Make an initialised fusion backend of a type."""
        name = self._chosen(name)
        with self._lock:
            make = self._makes.get(name)
        if make is not None:
            made: object = make()
            if not isinstance(made, FusionBackend):
                raise RegistryError(f"{name!r} made a {type(made).__name__}, not a FusionBackend.")
            return made
        if name not in self.names():
            raise RegistryError(
                f"There is no fusion backend {name!r}. There are {', '.join(self.names())}."
            )
        context = CompileContext(Options(), own_registry=self._registry)
        jit = self._registry.capabilities(name)["JIT"].is_held
        return EngineFusion(context.finder.targets(name), context, jit)

    def get(self, name: str | None = None) -> FusionBackend:
        """Give the fusion backend of a name, shared; the default without one."""
        chosen = self._chosen(name or AUTO)
        with self._lock:
            if chosen not in self._made:
                self._made[chosen] = self.create(chosen)
            return self._made[chosen]

    def forget(self) -> None:
        """Let go of all that were made; types that were added stay."""
        with self._lock:
            self._made.clear()

    def _chosen(self, name: str) -> str:
        """Say what "auto" stands for: what was set, or the most preferred that has a device."""
        chosen = self._registry.default if name == AUTO else name
        return next(self._present()) if chosen == AUTO else chosen

    def _present(self) -> Iterator[str]:
        names = self._registry.ranked()
        return (name for name in names if self._registry.meet(name).devices)

    def find(self, graph: Graph) -> FusionBackend | None:
        """Find one that runs a graph as one kernel, the most preferred first.

        Each is asked to compile it, and looked at; one that cannot be looked at is never found.
        """
        with self._lock:
            own = [name for name in self._makes if name != NONE]
        names = chain(own, self._present())
        return next((x for x in map(self.get, names) if x.refusal(graph) is None), None)


fusion_backends = FusionBackends()
