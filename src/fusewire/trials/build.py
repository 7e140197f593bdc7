"""Make the regions of a plan ready to run: load recorded artifacts, or compile and load.

An engine first meets a region in a child process. A crash there, a hang, or too much memory counts
as a refusal, and the fallback runs the region instead. A warm start uses this module too, so
modules that only compiling needs are imported where something is compiled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, final

from fusewire.contract.artifact_writer import ArtifactWriter
from fusewire.contract.backend import (
    Artifact,
    Backend,
    Config,
    Device,
    Exchange,
    Executable,
    Held,
    Refusal,
)
from fusewire.contract.extension import holds_added_ops
from fusewire.errors import (
    BackendHung,
    EngineError,
    EngineOutOfMemory,
    EngineRaised,
    GraphError,
    RefusedError,
    note,
    warn_outside,
)
from fusewire.events import EVENTS
from fusewire.ir.graph import Array, Graph, HostValue, is_current
from fusewire.ops.limits import Meter, RunLimits, returned_bytes
from fusewire.ops.limits import meter as current_meter
from fusewire.options import Fallback
from fusewire.plan.fitting import is_fitted
from fusewire.plan.plan import Plan, Region
from fusewire.plan.regions import Built, shape_of
from fusewire.plan.transfer import fetched
from fusewire.process.guard import guarded
from fusewire.process.limits import ChildLimits
from fusewire.records.entries import BuiltRegion, Records, StoredArtifact
from fusewire.records.keys import artifact_fields, backend_fields
from fusewire.records.quarantine import Fact, quarantine, quarantined, reconsider
from fusewire.show.contact import Contacted
from fusewire.store.ahead import Ahead
from fusewire.store.key import Key

if TYPE_CHECKING:
    from fusewire.contract.model_file import ModelFile
    from fusewire.ir.types import Type
    from fusewire.plan.recovery import Recovery
    from fusewire.planning.target import Target
    from fusewire.process.isolated import Services
    from fusewire.trials.kernel_check import KernelFault

Fields = tuple[tuple[str, str], ...]
_CORRECT = "Correct the kernel, or have it refuse such nodes."
# Larger artifacts are recorded after the first answer.
_LATE_BYTES = 1 << 20


@final
class BuildTarget:
    """A target as one plan uses it; its backend is loaded when a region is built on it.

    ``known_fields`` are what its artifacts depend on, and ``reference`` names its class, where a
    saved plan says so.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Target],
        config: Config,
        *,
        known_fields: Fields | None = None,
        reference: str | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.is_saved = known_fields is not None
        self._load = load
        self._known_fields = known_fields
        self._reference = reference

    @staticmethod
    def of(target: Target, config: Config) -> BuildTarget:
        """Wrap a target that is loaded already."""
        return BuildTarget(target.name, lambda: target, config)

    @cached_property
    def target(self) -> Target:
        return self._load()

    @property
    def backend(self) -> Backend:
        return self.target.backend

    def exact(self) -> BuildTarget:
        """Return the target with the settings under which it loses no NaN."""
        if not self.config.loses_nan:
            return self
        config = self.config.exact()
        return BuildTarget(self.name, lambda: self.target, config, reference=self._reference)

    @cached_property
    def fields(self) -> Fields:
        """What artifacts depend on besides region and sizes."""
        if self._known_fields is not None:
            return self._known_fields
        return backend_fields(self.backend, self.target.device, self.config)

    @property
    def reference(self) -> str:
        """The "module:Class" of its backend, with extensions, for a child to load."""
        kind = None if self._reference or self.target.reference else type(self.backend)
        named = "" if kind is None else f"{kind.__module__}:{kind.__qualname__}"
        return self._reference or self.target.reference or named

    @property
    def is_isolated(self) -> bool:
        """Whether regions are compiled and run in a child process first."""
        return self.target.reference is not None


@dataclass(frozen=True, eq=False)
class PlanBuilder:
    """Builds executables for the regions of one plan; ``fallback`` runs what an engine cannot.

    Regions that ``first`` does not run are those of the ``others``, or of the fallback. If an
    engine fails, another that comes after it and takes the region builds it, before the fallback
    does. ``contacts`` collects the outcome for each region. An artifact in ``records`` ran before
    and is loaded without a trial. ``plan_body`` plans a body of control flow once its sizes are
    known. ``limits`` are those of a call, for what the interpreter runs of it. With ``services``,
    everything is loaded in children, and stays there. With ``is_first``, what is built serves only
    until engines are compared: an engine whose artifacts this process can write does not compile
    ahead.
    """

    first: BuildTarget
    fallback: BuildTarget
    policy: Fallback
    deadline: float
    records: Records | None = None
    plan_body: Callable[[Graph], Plan] | None = None
    limits: RunLimits = field(default_factory=RunLimits)
    services: Services | None = None
    is_first: bool = False
    others: tuple[BuildTarget, ...] = ()
    contacts: list[BuiltRegion] = field(default_factory=list)
    recoveries: list[tuple[Region, Recovery]] = field(default_factory=list)
    ahead: dict[Key, Ahead[StoredArtifact | None]] = field(default_factory=dict)

    def build(self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]) -> Built:
        """Make a region ready to run; if its engine fails, on the fallback."""
        key = self._recorded_key(region, inputs)
        made_key = key and self._made_key(region, key)
        if key and made_key and self.records is not None and reconsider(self.records, key):
            self.records.drop(made_key)
        fact = self._quarantined(key)
        if fact is not None and fact.code == "wrong":
            # Nothing checks answers here. An engine that crashed gets another trial in a child.
            error = EngineError(f"{region.backend} is {fact.sentence()}")
            return self._on_next(region, graph(), inputs, error)
        if key is None or made_key is None or self.records is None or fact is not None:
            return self._compile_and_load(region, graph(), inputs, made_key)
        loaded = self._load_recorded(region, key, graph)
        if loaded is not None:
            return _ready(loaded)
        if made_key != key:
            loaded = self._load_recorded(region, made_key, graph)
            if loaded is not None:
                return _ready(loaded)
            return self._compile_and_load(region, graph(), inputs, made_key)
        with contextlib.ExitStack() as turn:
            turn.enter_context(self.records.alone(key))
            # Another process may have built it while this one waited.
            loaded = self._load_recorded(region, key, graph)
            if loaded is not None:
                return _ready(loaded)
            built = self._compile_and_load(region, graph(), inputs, key)
            if built.keep is None:
                return built
            # Others wait until it is recorded.
            return replace(built, keep=partial(_within, turn.pop_all(), built.keep))

    def build_or_raise(
        self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]
    ) -> Built:
        """Build a region that is served otherwise too: raises where another engine would run it."""
        strict = replace(self, policy="error", contacts=[])
        built = strict.build(region, graph, inputs)
        if built.backend:
            raise RefusedError(f"{region.backend} does not run it, and {built.backend} would.")
        self.contacts.extend(strict.contacts)
        return built

    def _on_next(
        self, region: Region, graph: Graph, inputs: Sequence[Held], error: EngineError
    ) -> Built:
        """Build a region on the next engine that takes it, or else on the fallback."""
        return self._on_other(region, graph, inputs, error) or _ready(
            self.rescue(region, graph, error)
        )

    def _on_other(
        self, region: Region, graph: Graph, inputs: Sequence[Held], error: EngineError
    ) -> Built | None:
        """Build a region on the next engine that takes it; None if none does."""
        engines = (self.first, *self.others)
        names = [engine.name for engine in engines]
        if region.backend not in names[:-1]:
            return None
        from fusewire.planning.planner import taken_whole

        failed = self._target(region).target
        for other in engines[names.index(region.backend) + 1 :]:
            shapes = taken_whole(other.target, graph, failed)
            if shapes is not None:
                self._tell_other(region, graph, error, other.name)
                moved = Region.of(graph, other.name, other.target.device, shapes)
                built = self.build(moved, lambda: graph, inputs)
                return replace(built, backend=built.backend or other.name)
        return None

    def rescue(
        self, region: Region, graph: Graph, error: EngineError
    ) -> tuple[Executable, Exchange]:
        """Build a region on the fallback, or raise if that is not allowed."""
        self._check_fallback(region, error)
        self._tell_fallback(region, graph, error)
        return self._on_fallback(graph)

    def _on_fallback(self, graph: Graph) -> tuple[Executable, Exchange]:
        from fusewire.contract.region import build
        from fusewire.plan.recovery import LimitedExecutable

        fallback = self.fallback.target
        backend, device = fallback.backend, fallback.device
        if self.services is None:
            executable = LimitedExecutable(build(backend, graph, device), self.limits)
            return executable, backend.exchange_on(device)
        artifact = backend.compile(graph, device, Config())
        weights = _weights(artifact, graph)
        return self._load(self.fallback, device, artifact, weights, lambda: graph)

    def _confine(
        self,
        region: Region,
        graph: Graph,
        inputs: Sequence[Held],
        error: EngineError,
        start: float,
    ) -> tuple[Executable, Exchange]:
        """Have the fallback run in a child what an engine was stopped for in one."""
        from fusewire.trials.confined import confined

        engine = self._target(region).target
        if engine.reference is None:
            return self.rescue(region, graph, error)
        self._check_fallback(region, error)
        _check_clock()
        fallback = self.fallback.target
        executable = confined(
            self.fallback.reference, graph, fallback.device, engine.limits, inputs, error, start
        )
        self._tell_fallback(region, graph, error)
        return executable, fallback.backend.exchange_on(fallback.device)

    def _check_outputs(self, region: Region, graph: Graph) -> None:
        """Raise if what a region returns is known to exceed the limit: no engine is asked."""
        where = f" for what a region on {region.backend} returns"
        Meter(self.limits).need(returned_bytes(graph), where=where)

    def _check_fallback(self, region: Region, error: EngineError) -> None:
        if self.policy == "error" or region.backend == self.fallback.name:
            self._note(region, error.code, "", error)
            raise RefusedError(f"{error} Fallback is not allowed, so the program stops.") from error

    def _tell_fallback(self, region: Region, graph: Graph, error: EngineError) -> None:
        self._tell_other(region, graph, error, self.fallback.name)

    def _tell_other(self, region: Region, graph: Graph, error: EngineError, name: str) -> None:
        self._note(region, error.code, name, error)
        message = f"{error} {len(graph.nodes)} nodes run on {name} instead."
        if self.policy == "warn":
            warn_outside(message)
        else:
            note(message)

    def _load(
        self,
        target: BuildTarget,
        device: Device,
        artifact: Artifact,
        weights: Mapping[str, Array],
        graph: Callable[[], Graph],
    ) -> tuple[Executable, Exchange]:
        """Load an artifact in this process, or in the child that serves the target."""
        span = EVENTS.span(
            "load",
            target.name,
            backend=target.name,
            device=device.id,
            bytes=len(artifact.payload),
        )
        if self.services is None:
            with span:
                return load(target.name, device, target.backend, artifact, weights)

        def types() -> list[Type]:
            return [value.type for value in graph().outputs]

        with span:
            executable = self.services.load(target.reference, artifact, device, weights, types)
        return executable, Exchange(needs_contiguous=False)

    def plans_memory(self, region: Region) -> bool:
        """Tell whether the engine of a region says how many bytes a run takes."""
        return self._target(region).backend.info.plans_memory

    def fits_sizes(self, region: Region) -> bool:
        """Tell whether a region is also compiled for sizes that are called often."""
        return is_fitted(region, self._target(region).config)

    def may_lose_nan(self, region: Region) -> bool:
        """Tell whether the engine of a region runs nodes of its own that may lose NaN."""
        return region.loses_nan or self._target(region).config.loses_nan

    def exact(self) -> PlanBuilder:
        """Return a builder whose engines keep each NaN; what it builds is not explained."""
        others = tuple(other.exact() for other in self.others)
        return replace(
            self, first=self.first.exact(), others=others, is_first=False, contacts=[], ahead={}
        )

    @property
    def is_served(self) -> bool:
        """Whether nothing of a plan runs in this process."""
        return self.services is not None

    def recovery(self, region: Region) -> Recovery:
        """Make what decides the calls that the engine of a region fails."""
        from fusewire.plan.recovery import Recovery

        recovery = Recovery(
            region.backend,
            self.fallback.name,
            *self._on_fallback(region.graph),
            may_answer=self.policy != "error",
            warns=self.policy == "warn",
        )
        self.recoveries.append((region, recovery))
        return recovery

    def note_fallback(self, region: Region, error: EngineError) -> None:
        """Note that a region could not be built, so that the fallback runs it for now."""
        self._note(region, error.code, self.fallback.name, error)

    def key(self, region: Region, shapes: Sequence[tuple[int, ...]]) -> Key:
        """Return the key of a region's artifact for inputs of these shapes."""
        return Key("artifact", artifact_fields(region, shapes, self._target(region).fields))

    def read_ahead(self, keys: Sequence[Key]) -> None:
        """Start to read the large artifacts among these keys, each in a thread."""
        for key in keys:
            if self.records is not None and self.records.is_large(key):
                self.ahead[key] = Ahead(partial(self.records.artifact, key))

    def _target(self, region: Region) -> BuildTarget:
        engines = (self.first, *self.others)
        return next((x for x in engines if x.name == region.backend), self.fallback)

    def _is_engine(self, target: BuildTarget) -> bool:
        return any(target is engine for engine in (self.first, *self.others))

    def _recorded_key(self, region: Region, inputs: Sequence[Held]) -> Key | None:
        """Return the key of a region's record; None if compiling is free or nothing is recorded."""
        target = self._target(region)
        is_new = self._is_engine(target) and not target.is_saved
        is_worth_it = is_new and not _is_trusted(target)
        if self.records is None or not (target.is_saved or is_worth_it):
            return None
        return self.key(region, [shape_of(x) for x in inputs])

    def _made_key(self, region: Region, key: Key) -> Key:
        """Return the key of what this builder makes; ``key`` is that of what lasts.

        What is quickly made is recorded apart, so that nobody takes it for what lasts.
        """
        if self._writer(region) is None:
            return key
        return Key(key.kind, (*key.fields, ("made", "first")))

    def _quarantined(self, key: Key | None) -> Fact | None:
        if key is None or self.records is None:
            return None
        return quarantined(self.records, key, self.deadline)

    def _load_recorded(
        self, region: Region, key: Key, graph: Callable[[], Graph]
    ) -> tuple[Executable, Exchange] | None:
        assert self.records is not None, "there is a key"
        ahead, start = self.ahead.pop(key, None), time.perf_counter()
        stored = self.records.artifact(key) if ahead is None else ahead.result()
        if stored is None:
            return None
        artifact, weights = stored
        if any(slot.digest not in weights for slot in artifact.slots if slot.digest is not None):
            weights = _weights(artifact, graph(), region.file)
        try:
            loaded = self._load(self._target(region), region.device, artifact, weights, graph)
        except EngineError:
            # It loaded before, so something has changed since: compile it again.
            self.records.drop(key)
            return None
        metrics = {**loaded[0].metrics, "load_seconds": time.perf_counter() - start}
        self._note(region, "ready", region.backend, metrics=metrics, key=key, cache="hit")
        return loaded

    def _compile_and_load(
        self, region: Region, graph: Graph, inputs: Sequence[Held], key: Key | None
    ) -> Built:
        """Judge the kernels of packages that a region holds, then compile and load it."""
        fault, seconds = self._kernel_fault(region, graph, inputs)
        if fault is None:
            return self._compiled(region, graph, inputs, key)
        if key is not None and self.records is not None:
            # What is the machine's, such as a child that did not start, is not kept.
            own = Fact(fault.code, fault.sentence, seconds=seconds, model=self.records.model)
            quarantine(self.records, key, own)
        return self._on_next(region, graph, inputs, EngineError(fault.sentence, _CORRECT))

    def _kernel_fault(
        self, region: Region, graph: Graph, inputs: Sequence[Held]
    ) -> tuple[KernelFault | None, float]:
        """Say which kernel of a package is wrong at these sizes, if one is, and its deadline."""
        target = self._target(region)
        # In a child that tries plans there are no records: the parent judges what it answers.
        if self.records is None or not self._is_engine(target):
            return None, 0.0
        if not holds_added_ops(graph, target.backend):
            return None, 0.0
        from fusewire.trials.kernel_check import KernelCheck

        compiling = target.backend.info.compile_seconds
        limits = _remaining(target.target.limits.with_compiling(compiling))
        check = KernelCheck(
            target.target, region.device, target.config, target.fields, limits, self.records
        )
        about = {"backend": region.backend, "device": region.device.id}
        with EVENTS.span("compile", graph.name, purpose="to judge kernels of packages", **about):
            return check.fault(graph, inputs), limits.seconds

    def _compiled(
        self, region: Region, graph: Graph, inputs: Sequence[Held], key: Key | None
    ) -> Built:
        start = time.monotonic()
        self._check_outputs(region, graph)
        about = {"backend": region.backend, "device": region.device.id}
        try:
            with EVENTS.span("compile", graph.name, nodes=len(graph.nodes), **about) as details:
                artifact, outputs, metrics = self._compile(region, graph, inputs)
                # If a child did it: how long each part took there.
                details |= metrics
        except EngineRaised:
            # The inputs may be at fault, so whoever has them decides.
            raise
        except (EngineOutOfMemory, BackendHung) as error:
            built = self._on_other(region, graph, inputs, error)
            return built or _ready(self._confine(region, graph, inputs, error, start))
        except EngineError as error:
            if not is_current(graph):
                raise GraphError(
                    f"The weights of {graph.name} were written to while it was compiled."
                ) from error
            return self._on_next(region, graph, inputs, error)
        self._note(region, "ready", region.backend, metrics=metrics, key=key)
        weights = _weights(artifact, graph, region.file)
        built = Built(partial(self._load_new, region, graph, artifact, weights), outputs)
        if key is None or self.records is None or not is_current(graph):
            return built
        kept = _not_held(weights, graph, region.file)
        keep = partial(self.records.keep_artifact, key, artifact, kept)
        if len(artifact.payload) + sum(x.nbytes for x in kept.values()) > _LATE_BYTES:
            return replace(built, keep=keep)
        keep()
        return built

    def _load_new(
        self, region: Region, graph: Graph, artifact: Artifact, weights: Mapping[str, Array]
    ) -> tuple[Executable, Exchange]:
        """Load what was just compiled; if that fails, on the fallback."""
        target = self._target(region)
        try:
            return self._load(target, region.device, artifact, weights, lambda: graph)
        except EngineRaised:
            raise
        except EngineError as error:
            return self.rescue(region, graph, error)

    def _compile(
        self, region: Region, graph: Graph, inputs: Sequence[Held]
    ) -> tuple[Artifact, list[HostValue] | None, Mapping[str, float]]:
        """Compile in this process, or with a first run in a child if the engine is not trusted."""
        from fusewire.process.guard import BY_CODE
        from fusewire.process.isolate import first_contact
        from fusewire.process.trial import compiled

        name, config = region.backend, self._target(region).config
        target = self._target(region).target
        if target.reference is None:
            given = target.backend, graph, region.file, region.device, config
            return guarded(name, "compile", graph.name, compiled, *given), None, {}
        arrays = [fetched(value) for value in inputs]
        compiling = target.backend.info.compile_seconds
        limits = _remaining(target.limits.with_compiling(compiling))
        writer, artifact = self._writer(region), None
        if writer is not None:
            write = writer.write_artifact
            artifact = guarded(name, "compile", graph.name, write, graph, region.device, config)
        contact = first_contact(
            target.reference,
            graph,
            region.device,
            config,
            arrays,
            limits,
            file=region.file,
            artifact=artifact,
        )
        if isinstance(contact, Refusal):
            raise BY_CODE[contact.code](contact.reason, contact.suggestion)
        return contact.artifact, contact.outputs, contact.metrics

    def _writer(self, region: Region) -> ArtifactWriter | None:
        """Return the backend of a region if this process writes its artifact, for a first plan."""
        if not self.is_first or region.file is not None:
            return None
        target = self._target(region).target
        if target.reference is None or "+" in target.reference:
            return None
        return target.backend if isinstance(target.backend, ArtifactWriter) else None

    def _note(
        self,
        region: Region,
        outcome: str,
        runs_on: str,
        error: EngineError | None = None,
        metrics: Mapping[str, float] = {},
        key: Key | None = None,
        cache: str = "",
    ) -> None:
        inputs = tuple(str(value.type) for value in region.inputs)
        target = self._target(region)
        # A region of a saved plan that is loaded needs no child, and no target to ask.
        is_loaded = target.is_saved and cache == "hit"
        is_tried = self._is_engine(target) and not is_loaded and target.is_isolated
        is_isolated = self.is_served or is_tried
        reason = ("", "") if error is None else (error.reason, error.advice)
        cache = cache or ("off" if key is None else "miss")
        contacted = Contacted(
            "", region.backend, inputs, outcome, runs_on, is_isolated, *reason, metrics, cache
        )
        self.contacts.append(BuiltRegion(region, contacted, key))


def _ready(loaded: tuple[Executable, Exchange]) -> Built:
    return Built(lambda: loaded)


def _within(turn: contextlib.ExitStack, work: Callable[[], object]) -> None:
    """Do the work, then give up the turn."""
    with turn:
        work()


def _check_clock() -> Meter | None:
    """Raise if the time of the loop around is over; returns its meter, None outside of loops."""
    meter = current_meter()
    if meter is None or not meter.bodies:
        return None
    meter.tick()
    return meter


def _remaining(limits: ChildLimits) -> ChildLimits:
    """Return the limits of a child; inside of a loop, its seconds are those that are left."""
    meter = _check_clock()
    if meter is None:
        return limits
    return replace(limits, seconds=min(limits.seconds, meter.deadline - time.monotonic() + 0.1))


def _is_trusted(target: BuildTarget) -> bool:
    return target.backend.info.trusted


def _not_held(
    weights: Mapping[str, Array], graph: Graph, file: ModelFile | None
) -> dict[str, Array]:
    """Leave out the weights that whoever compiles the graph again has in memory."""
    from fusewire.contract.model_file import known_constants

    known = known_constants(graph, file)
    return {digest: array for digest, array in weights.items() if not known[digest].is_held}


def _weights(artifact: Artifact, graph: Graph, file: ModelFile | None = None) -> dict[str, Array]:
    from fusewire.contract.model_file import known_constants
    from fusewire.contract.region import weights_of

    return weights_of(artifact, known_constants(graph, file))


def load(
    name: str, device: Device, backend: Backend, artifact: Artifact, weights: Mapping[str, Array]
) -> tuple[Executable, Exchange]:
    """Have a backend load an artifact, and check that the result follows the contract."""
    executable = guarded(name, "load", name, backend.load, artifact, device, weights)
    return executable, guarded(name, "load", name, _exchange, backend, device, executable)


def _exchange(backend: Backend, device: Device, executable: object) -> Exchange:
    """Return how tensors enter an executable, and check both types."""
    exchange: object = backend.exchange_on(device)
    if not (isinstance(executable, Executable) and isinstance(exchange, Exchange)):
        kinds = f"{type(executable).__name__} and {type(exchange).__name__}"
        raise TypeError(f"expected Executable and Exchange, found {kinds}")
    bool(executable.is_reentrant)
    return exchange
