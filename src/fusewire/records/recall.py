"""A warm start: find the plan that an earlier process saved for a model file.

Nothing is parsed, planned or compiled, and no module that would do so is imported, until it is
needed. The plan was tried in a child when it was made, on this machine, with these packages. If
anything differs, it is a miss, and the model is compiled as if new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from fusewire.contract.backend import Backend, Config, Device
from fusewire.errors import StoreError, note
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.types import TensorType, type_symbols
from fusewire.options import FALLBACK, Options
from fusewire.plan.fitting import as_compiled
from fusewire.plan.plan import HOST, Plan, Region
from fusewire.records.entries import Records
from fusewire.records.keys import artifact_fields, body_key
from fusewire.records.plans import SavedPlan
from fusewire.records.quarantine import quarantined
from fusewire.store.key import Key


class Planner(Protocol):
    """Plans what a saved plan does not contain: graphs, and bodies of new sizes."""

    def planned(self, saved: SavedPlan) -> Any: ...

    def plan_body(self, saved: SavedPlan, body: Graph) -> Plan: ...


@dataclass(frozen=True, eq=False)
class Recalled:
    """A saved plan of these records; ``planner`` makes what it does not contain."""

    key: Key
    records: Records
    planner: Planner

    @cached_property
    def saved(self) -> SavedPlan:
        saved = self.records.saved_plan(self.key, self)
        if saved is None:
            raise StoreError("The saved plan can no longer be read. Compile the model again.")
        return saved

    @cached_property
    def artifact_keys(self) -> list[Key]:
        """List the keys of artifacts that are known before a call."""
        saved = self.saved
        regions = [step.region for step in saved.plan.steps]
        shapes = [shape for shape in saved.shapes if shape is not None]
        if saved.plan.is_whole and len(shapes) == len(regions[0].inputs):
            region = as_compiled(regions[0], Config(options=saved.choice.options))
            if region is not regions[0]:
                # Most calls have the sizes at which it was chosen.
                return [self._artifact_key(region, shapes)]
        pairs = [(region, _known_shapes(region)) for region in regions]
        return [
            self._artifact_key(region, shapes) for region, shapes in pairs if shapes is not None
        ]

    def is_quarantined(self, deadline: float) -> bool:
        """Tell whether an artifact of the plan is in quarantine, as far as known before a call."""
        facts = (quarantined(self.records, key, deadline) for key in self.artifact_keys)
        return any(fact is not None for fact in facts)

    @cached_property
    def planned(self) -> Any:
        """The plan made again, with its graphs and the claims of backends."""
        return self.planner.planned(self.saved)

    def plan(self) -> Plan:
        """Make the plan again, with its graphs."""
        plan: Plan = self.planned.plan
        return plan

    def stored_graph(self, region: Region) -> Graph | None:
        """Read the graph of a region that the host drives; its weights are loaded when needed."""
        if region.backend != HOST:
            return None
        stored = self.records.artifact(self._artifact_key(region, ()))
        if stored is None:
            return None
        from fusewire.ir.text import parse_graph

        artifact, _ = stored
        weights = {
            slot.digest: Constant(
                TensorType(slot.dtype, slot.dims), partial(self._weight, slot.digest), slot.digest
            )
            for slot in artifact.slots
            if slot.digest is not None
        }
        return parse_graph(artifact.payload.decode(), weights)

    def plan_body(self, body: Graph) -> Plan:
        """Recall the plan of a body of control flow whose sizes are known, or make it."""
        source = _BodySource(self, body)
        return self.records.plan(body_key(self.key, body), source) or source.plan()

    def _artifact_key(self, region: Region, shapes: Sequence[tuple[int, ...]]) -> Key:
        name = FALLBACK if region.backend == HOST else region.backend
        return Key("artifact", artifact_fields(region, shapes, self.saved.targets[name].fields))

    def _weight(self, digest: str) -> Array:
        from fusewire.ir.text import constants_of

        return constants_of(self.saved.plan.graph)[digest].array


@dataclass(frozen=True, eq=False)
class _BodySource:
    """Loads the graphs of a body's saved plan."""

    recalled: Recalled
    body: Graph

    def stored_graph(self, region: Region) -> Graph | None:
        return self.recalled.stored_graph(region)

    @cached_property
    def _plan(self) -> Plan:
        return self.recalled.planner.plan_body(self.recalled.saved, self.body)

    def plan(self) -> Plan:
        return self._plan


def recall(
    records: Records, key: Key | None, options: Options, planner: Callable[[Key], Planner]
) -> Recalled | None:
    """Recall the plan saved under a key; None if there is none, or it no longer fits."""
    if key is None or (records.store is None and records.bundle is None):
        return None
    recalled = Recalled(key, records, planner(key))
    try:
        saved = recalled.saved
    except StoreError:
        return None
    if saved.superseded:
        note(f"A recorded plan is not used. {saved.superseded} It is chosen again.")
        records.drop(key)
        return None
    # Whoever wants what is recorded takes it also if a small budget had cut the comparison short.
    is_short = saved.cut_at is not None and options.budget_seconds > saved.cut_at
    if is_short and options.level != "recall":
        return None
    if not all(target.is_same_environment for target in saved.targets.values()):
        return None
    if recalled.is_quarantined(options.deadline):
        records.drop(key)
        return None
    return recalled


def keep_host_graphs(
    records: Records, plan: Plan, fallback: Backend, device: Device, config: Config
) -> None:
    """Record the graphs that the host runs: the fallback compiles a graph to its text."""
    from fusewire.contract.region import weights_of
    from fusewire.ir.text import constants_of
    from fusewire.records.keys import backend_fields

    fields = backend_fields(fallback, device, config)
    for region in plan.regions():
        if region.backend not in (HOST, fallback.info.name):
            continue
        artifact = fallback.compile(region.graph, device, config)
        # The bodies of control flow are regions of their own, with their own weights.
        is_whole = region.backend != HOST
        weights = weights_of(artifact, constants_of(region.graph)) if is_whole else {}
        records.keep_artifact(
            Key("artifact", artifact_fields(region, (), fields)), artifact, weights
        )


def _known_shapes(region: Region) -> list[tuple[int, ...]] | None:
    """Return the shapes that a region's artifact depends on; None if a call decides them."""
    types = [value.type for value in region.inputs]
    is_sized = not any(True for type_ in types for _ in type_symbols(type_))
    if region.backend == HOST or (region.shapes != "dynamic" and not is_sized):
        return None
    shapes = [type_.shape if isinstance(type_, TensorType) else () for type_ in types]
    return [tuple(dim for dim in shape if isinstance(dim, int)) for shape in shapes]
