"""A warm start: make the entry of a plan that an earlier process saved for the same file.

Nothing is read or planned, unless a call or a user needs what the record lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fusewire.contract.backend import Backend, Config
from fusewire.contract.frontend import Reading, Structure
from fusewire.errors import FormatError, NotRecalledError, warn_outside
from fusewire.ir.dims import Symbol, bind_alone
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.options import FALLBACK
from fusewire.plan.execute import PlanRunner
from fusewire.plan.plan import Plan
from fusewire.program.entry import Entry, LearnedSizes
from fusewire.records.keys import file_key
from fusewire.records.plans import SavedPlan, SavedTarget
from fusewire.records.recall import Recalled, recall
from fusewire.session.context import CompileContext, reference_target
from fusewire.session.model_source import ModelSource
from fusewire.store.key import Key
from fusewire.store.stamps import file_digest
from fusewire.trials.build import BuildTarget, PlanBuilder

if TYPE_CHECKING:
    from fusewire.planning.planner import Planned
    from fusewire.planning.target import Target
    from fusewire.show.why import Why


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Recalls what earlier processes saved for model files."""

    context: CompileContext

    def entry(self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool) -> Entry | None:
        """Make the entry of a saved plan; None if there is none, or it no longer fits."""
        # An open model is read at a call, which may be long after compiling.
        digest = self._file_digest(model, is_fresh=is_open and bool(example))
        if digest is None:
            return None
        key = file_key(digest, example, is_open, self.context.options)
        planner = partial(_Replanner, self, model, example, is_open, digest)
        recalled = recall(self.context.records, key, self.context.options, planner)
        if recalled is None:
            return None
        return self.entry_of(recalled, model.name, self._known_sizes(model, recalled.saved))

    def entry_of(self, recalled: Recalled, name: str, learned: LearnedSizes | None = None) -> Entry:
        """Make the entry of a saved plan."""
        saved = recalled.saved
        builder = self._builder(recalled)
        builder.read_ahead(recalled.artifact_keys)
        for sentence in saved.warnings:
            warn_outside(sentence)
        self.context.say_if_cut_short(name, saved.cut_at, saved.notes)
        names = tuple(name for name, _ in saved.inputs)
        leaves = (Structure.LEAF,) * len(saved.outputs)
        inputs = tuple(Value(type_, name) for name, type_ in saved.inputs)
        return Entry(
            inputs,
            PlanRunner(saved.plan, builder),
            Structure((Structure.LEAF,) * len(names), names),
            Structure(Structure.LEAF if saved.is_alone else leaves, saved.outputs),
            saved.engine_names,
            saved.nodes,
            RecalledDetails(recalled, builder),
            learned=learned,
        )

    def _known_sizes(self, model: ModelSource, saved: SavedPlan) -> LearnedSizes | None:
        """Keep a plan to sizes near those it was chosen at, if nothing may be measured."""
        if self.context.options.level != "recall":
            return None
        sizes: dict[Symbol, int] = {}
        for (_, type_), shape in zip(saved.inputs, saved.shapes, strict=False):
            if isinstance(type_, TensorType) and shape is not None:
                bind_alone(type_.shape, shape, sizes)
        far = partial(self._far_entry, model, sizes)
        return LearnedSizes.recalled(sizes, far) if sizes else None

    def _far_entry(
        self, model: ModelSource, sizes: Mapping[Symbol, int], arguments: tuple[Any, ...]
    ) -> Entry:
        """Recall the plan that was chosen with arrays of these sizes as example."""
        entry = self.entry(model, arguments, is_open=False)
        if entry is None:
            known = ", ".join(f"{symbol.name} = {size}" for symbol, size in sizes.items())
            raise NotRecalledError(
                f"The plan recorded for {model.name} was chosen at {known}, and serves sizes "
                "within a factor of four of these. Record one for the sizes of this call: compile "
                'the model once with these arrays as example, and start="measured".'
            )
        return entry

    def key(self, digest: str | None, example: Sequence[Any], is_open: bool) -> Key | None:
        """Return the key of a file's plan; None without a file, or if nothing is recorded."""
        from fusewire.registry import REGISTRY

        if digest is None or self.context.records.store is None or REGISTRY.extensions.names():
            return None
        if self.context.own_registry is not None:
            # The key of a file does not name the backends to choose from.
            return None
        return file_key(digest, example, is_open, self.context.options)

    def _builder(self, recalled: Recalled) -> PlanBuilder:
        saved, options = recalled.saved, self.context.options
        names = [x.backend for x in saved.choice.places]
        configs = {FALLBACK: Config()}
        configs |= {name: saved.choice.config(options.config, name) for name in names}
        targets = {
            name: BuildTarget(
                name,
                partial(self.load_target, saved.targets[name]),
                config,
                known_fields=saved.targets[name].fields,
                reference=saved.targets[name].reference,
            )
            for name, config in configs.items()
        }
        first, *others = (targets[name] for name in names)
        return self.context.builder(first, targets[FALLBACK], recalled.plan_body, others=others)

    def load_targets(self, saved: SavedPlan) -> list[Target]:
        """Load the targets of a saved plan, in order."""
        return [self.load_target(saved.targets[x.backend]) for x in saved.choice.places]

    def load_target(self, saved: SavedTarget) -> Target:
        """Load a target of saved plans once; the store has authenticated the name of its class."""
        from fusewire.planning.target import Target

        place = saved.reference, saved.device.id
        if place not in self._loaded_targets:
            module, _, name = saved.reference.partition(":")
            backend: Backend = getattr(import_module(module), name)()
            is_isolated = self.context.options.has_children and not backend.info.trusted
            reference = saved.reference if is_isolated else None
            target = Target(backend, saved.device, reference, self.context.options.limits)
            self._loaded_targets[place] = target
        return self._loaded_targets[place]

    @cached_property
    def _loaded_targets(self) -> dict[tuple[str, str], Target]:
        return {}

    def _file_digest(self, model: ModelSource, *, is_fresh: bool = False) -> str | None:
        """Return the digest of a model file; None if nothing is recorded for this source."""
        store = self.context.records.store
        if not model.is_file or store is None:
            return None
        if is_fresh or model.digest is None:
            model.digest = file_digest(model.source, store)
        return model.digest

    def _sizes_key(self, model: ModelSource) -> Key | None:
        digest = self._file_digest(model)
        return None if digest is None else file_key(digest, (), True, self.context.options)

    def is_known_to_need_sizes(self, model: ModelSource) -> bool:
        """Tell whether an earlier process needed the sizes of a call to read the model."""
        key = self._sizes_key(model)
        return key is not None and self.context.records.get(key) is not None

    def record_need_for_sizes(self, model: ModelSource) -> None:
        """Record that reading the model needs the sizes of a call."""
        if (key := self._sizes_key(model)) is not None:
            self.context.records.put(key, b"{}")


@dataclass(frozen=True, eq=False)
class _Replanner:
    """Plans a recalled model again, if a call or a user needs what its record lacks."""

    warm: WarmStart
    model: ModelSource
    example: tuple[Any, ...]
    is_open: bool
    digest: str
    key: Key

    def planned(self, saved: SavedPlan) -> Planned:
        """Plan the model on the target, and in the form, that was chosen."""
        from fusewire.planning.candidates import plan_choice
        from fusewire.rewrite.pipeline import run_pipeline

        reading = self._read()
        graph = run_pipeline(reading.graph).graph
        targets = self.warm.load_targets(saved)
        may_fall_back = self.warm.context.options.fallback != "error"
        fallback = reference_target()
        return plan_choice(saved.choice, graph, targets, fallback, may_fall_back, reading.file)

    def plan_body(self, saved: SavedPlan, body: Graph) -> Plan:
        """Plan a body of control flow, and record its plan."""
        from fusewire.session.candidate_entries import BodyPlanner, CandidateEntries

        entries = CandidateEntries(self.warm.context)
        return BodyPlanner(entries, self.warm.load_targets(saved), self.key).plan(body)

    def _read(self) -> Reading:
        model = self.model
        reading = model.read(self.example, is_open=self.is_open, digest=self.digest)
        model.release()
        if reading.digest != self.digest:
            # Its plan and artifacts would be recorded, and used, under the digest of the old file.
            raise FormatError(
                f"{model.source} has changed since it was compiled, and this needs the graph of "
                "the old file. Compile it again."
            )
        return reading


@dataclass(frozen=True, eq=False)
class RecalledDetails:
    """The recalled plan; ``why`` makes it again, to collect what backends say about nodes."""

    recalled: Recalled
    builder: PlanBuilder

    @property
    def plan(self) -> Plan:
        return self.recalled.saved.plan

    def saved(self) -> SavedPlan:
        """Return the plan with all that a warm start needs."""
        return self.recalled.saved

    def why(self) -> Why:
        from fusewire.choosing.decide import read_tried
        from fusewire.choosing.explain import Explanation

        recalled = self.recalled
        tried = tuple(map(read_tried, recalled.saved.tried))
        return Explanation(recalled.planned, self.builder, recalled.saved.notes, tried).why()
