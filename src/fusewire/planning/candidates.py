"""Ways to run all of a graph: each backend with its devices, forms and options, and why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fusewire.contract.backend import Config, Fact, Form
from fusewire.contract.tuning import TUNED
from fusewire.errors import RefusedError
from fusewire.ir.graph import Graph, Node
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.target import Target
from fusewire.records.keys import code_of, settings
from fusewire.records.plans import Choice
from fusewire.rewrite.expand import replace_nodes

# Plans in more pieces than this are hopeless, and take long to try.
_MOST_REGIONS = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to run a graph, planned: on one target, as far as that takes it."""

    target: Target
    planned: Planned
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it: the backend, and how it differs from that as it is."""
        form = ["expanded"] if self.form == "expanded" else []
        told = self.options.items()
        options = (key if key == TUNED else f"{key}={value}" for key, value in told)
        return " ".join([_shown(self.target), *form, *options])

    def choice(self) -> Choice:
        """Give it as what can be written down."""
        return Choice(self.target.name, self.target.device.id, self.form, self.options)

    def config(self, given: Config) -> Config:
        """Give the options of this way on top of those that were asked for."""
        return replace(given, options={**given.options, **self.options})

    def fields(self, given: Config) -> dict[str, str]:
        """Name what timings and verdicts of this way depend on."""
        backend, device = self.target.backend, self.target.device
        found = {**settings(self.config(given)), **backend.fingerprint(device), **code_of(backend)}
        said = json.dumps({key: str(value) for key, value in found.items()}, sort_keys=True)
        return {"way": self.name, "device": device.id, "by": said}


@dataclass(frozen=True)
class Unfit:
    """A target that is no candidate, and why."""

    target: Target
    reason: str

    @property
    def name(self) -> str:
        return _shown(self.target)


def candidates(
    graph: Graph, targets: Iterable[Target], fallback: Target, given: Config, *, may_fall_back: bool
) -> Iterator[Candidate | Unfit]:
    """Yield ways to run a graph: as it is, on each target in turn with its options; then in parts.

    Options come early: a budget may not last, and an engine's own nodes gain more than parts do.
    Options that were ``given`` are not varied. With ``may_fall_back`` the fallback target runs
    what a target refuses, if that is not most of it.
    """
    native: list[Candidate] = []
    for target in targets:
        try:
            planned = make_plan(graph, allowed(target, fallback, may_fall_back), fallback)
        except RefusedError as error:
            yield Unfit(target, str(error))
            continue
        reason = _hopeless(planned, target)
        if reason is not None:
            yield Unfit(target, reason)
            continue
        native.append(Candidate(target, planned))
        yield native[-1]
        for options in target.backend.configs(planned.plan.graph, target.device):
            if not options.keys() & given.options.keys():
                yield replace(native[-1], options=options)
    for candidate in native:
        target, planned = candidate.target, candidate.planned
        if _taken_whole(planned, target) and target.name != fallback.name:
            with_parts = make_plan(
                expanded(graph), allowed(target, fallback, may_fall_back), fallback
            )
            if _hopeless(with_parts, target) is None:
                yield Candidate(target, with_parts, "expanded")


def allowed(target: Target, fallback: Target, may_fall_back: bool) -> list[Target]:
    """List the targets a plan may use: the fallback takes what the first refuses, if allowed."""
    return [target, fallback] if may_fall_back and target.name != fallback.name else [target]


def plan_choice(
    choice: Choice, graph: Graph, target: Target, fallback: Target, may_fall_back: bool
) -> Planned:
    """Plan a graph as it was chosen before."""
    graph = expanded(graph) if choice.form == "expanded" else graph
    return make_plan(graph, allowed(target, fallback, may_fall_back), fallback)


def _hopeless(planned: Planned, target: Target) -> str | None:
    plan, left = planned.plan, planned.left_over()
    data = sum(
        len(region.graph.nodes) for region in plan.regions() if region.backend == target.name
    )
    if not data and plan.graph.nodes:
        first = next(iter(planned.claims.values()))
        if first.fault is not None:
            return str(first.fault)
        return f"{target.name} takes none of it. {next(iter(left.values()), '')}".rstrip()
    regions = len(plan.regions())
    if left and regions > _MOST_REGIONS:
        node, reason = next(iter(left.items()))
        return (
            f"{len(left)} nodes would run elsewhere, in {regions} regions. The first is {node!r}: "
            f"{reason}"
        )
    return None


def _taken_whole(planned: Planned, target: Target) -> list[Node]:
    """List composites that a target runs whole and that could be given in parts."""
    nodes = [
        node
        for region in planned.plan.regions()
        if region.backend == target.name
        for node in region.graph.nodes
    ]
    return [node for node in nodes if _is_expandable(node)]


def _is_expandable(node: Node) -> bool:
    """Tell whether a composite has parts that all run without a loop."""
    op = get_op(node.op)
    if not op.is_composite:
        return False
    return not any(get_op(part.op).is_(Trait.CONTROL) for part in op.expansion(node).nodes)


def expanded(graph: Graph) -> Graph:
    """Give composites in parts, all the way down, but for those that run in a loop."""
    while composites := [node for node in graph.nodes if _is_expandable(node)]:
        graph = replace_nodes(graph, {node: get_op(node.op).expansion(node) for node in composites})
    return graph


def _shown(target: Target) -> str:
    return target.name if target.device.id == "cpu" else f"{target.name} ({target.device.id})"
