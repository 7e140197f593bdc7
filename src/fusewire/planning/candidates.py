"""Candidates of a graph: each target with its forms and options, and why others do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fusewire.contract.backend import Config, Fact, Form
from fusewire.contract.model_file import ModelFile
from fusewire.contract.tuning import TUNED
from fusewire.errors import EngineError, RefusedError
from fusewire.ir.graph import Graph, Node
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.planning.file_form import plan_file
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.target import Target
from fusewire.records.keys import code_of, settings
from fusewire.records.plans import Choice
from fusewire.rewrite.expand import replace_nodes

# Plans with more regions are hopeless, and take long to try.
_MOST_REGIONS = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to run a graph, planned: a target, a form and options."""

    target: Target
    planned: Planned
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name to show: the target, and how the candidate differs from its default."""
        form = [] if self.form == "native" else [self.form]
        pairs = self.options.items()
        options = (key if key == TUNED else f"{key}={value}" for key, value in pairs)
        return " ".join([_shown(self.target), *form, *options])

    def choice(self) -> Choice:
        """Convert to plain data."""
        return Choice(self.target.name, self.target.device.id, self.form, self.options)

    def config(self, config: Config) -> Config:
        """Add the options of this candidate to those that the user asked for."""
        return replace(config, options={**config.options, **self.options})

    def fields(self, config: Config) -> dict[str, str]:
        """Name what the times and verdicts of this candidate depend on."""
        backend, device = self.target.backend, self.target.device
        fields = {
            **settings(self.config(config)),
            **backend.fingerprint(device),
            **code_of(backend),
        }
        engine = json.dumps({key: str(value) for key, value in fields.items()}, sort_keys=True)
        named = {"candidate": self.name, "device": device.id, "engine": engine}
        if self.form == "file":
            # Files that differ may have the same graph.
            named["region"] = self.planned.plan.steps[0].region.digest
        return named


@dataclass(frozen=True)
class Unfit:
    """A target that cannot run the graph, and why; ``fault`` is what happened when it was asked."""

    target: Target
    reason: str
    fault: EngineError | None = None

    @property
    def name(self) -> str:
        return _shown(self.target)


def candidates(
    graph: Graph,
    targets: Iterable[Target],
    fallback: Target,
    config: Config,
    *,
    may_fall_back: bool,
    file: ModelFile | None = None,
) -> Iterator[Candidate | Unfit]:
    """Yield candidates: the graph on each target; the file; with options; then expanded.

    The budget may run out: every engine comes once before any comes twice, and an engine's own
    nodes gain more from options than from expansion. Options that ``config`` sets are not varied.
    With ``may_fall_back`` the fallback runs what a target refuses, if that is not most of the
    graph.
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
            yield Unfit(target, reason, next(iter(planned.claims.values())).fault)
            continue
        native.append(Candidate(target, planned))
        yield native[-1]
    yield from _file_candidates(native, file, config)
    for candidate in native:
        yield from _with_options(candidate, config)
    for candidate in native:
        target, planned = candidate.target, candidate.planned
        if _composites(planned, target) and target.name != fallback.name:
            in_parts = make_plan(
                expanded(graph), allowed(target, fallback, may_fall_back), fallback
            )
            if _hopeless(in_parts, target) is None:
                yield Candidate(target, in_parts, "expanded")


def _with_options(candidate: Candidate, config: Config) -> Iterator[Candidate]:
    """Yield a candidate with the options that its backend varies."""
    target, plan = candidate.target, candidate.planned.plan
    for options in target.backend.configs(plan.graph, target.device):
        if not options.keys() & config.options.keys():
            yield replace(candidate, options=options)


def allowed(target: Target, fallback: Target, may_fall_back: bool) -> list[Target]:
    """List the targets a plan may use: the fallback takes what the first refuses, if allowed."""
    return [target, fallback] if may_fall_back and target.name != fallback.name else [target]


def _file_candidates(
    native: Iterable[Candidate], file: ModelFile | None, config: Config
) -> Iterator[Candidate]:
    """Yield the file itself on each target that may read it."""
    # The options that a user sets are about the way in which we write a graph for an engine.
    if file is None or config.options:
        return
    for candidate in native:
        planned = plan_file(file, candidate.target, candidate.planned)
        if not isinstance(planned, str):
            yield Candidate(candidate.target, planned, "file")


def plan_choice(
    choice: Choice,
    graph: Graph,
    target: Target,
    fallback: Target,
    may_fall_back: bool,
    file: ModelFile | None = None,
) -> Planned:
    """Plan a graph according to an earlier choice; RefusedError if it no longer fits."""
    graph = expanded(graph) if choice.form == "expanded" else graph
    planned = make_plan(graph, allowed(target, fallback, may_fall_back), fallback)
    if choice.form != "file":
        return planned
    own = "There is no file." if file is None else plan_file(file, target, planned)
    if isinstance(own, str):
        raise RefusedError(f"{target.name} cannot read the file as before: {own} Compile it again.")
    return own


def _hopeless(planned: Planned, target: Target) -> str | None:
    plan, refused = planned.plan, planned.fallback_nodes()
    data = sum(
        len(region.graph.nodes) for region in plan.regions() if region.backend == target.name
    )
    if not data and plan.graph.nodes:
        first = next(iter(planned.claims.values()))
        if first.fault is not None:
            return str(first.fault)
        return f"{target.name} takes none of it. {next(iter(refused.values()), '')}".rstrip()
    regions = len(plan.regions())
    if refused and regions > _MOST_REGIONS:
        node, reason = next(iter(refused.items()))
        return (
            f"{len(refused)} nodes would run on the fallback, in {regions} regions. The first is "
            f"{node!r}: "
            f"{reason}"
        )
    return None


def _composites(planned: Planned, target: Target) -> list[Node]:
    """List the composites that a target runs whole and that could be expanded.

    A compiler that takes long takes them apart by itself.
    """
    if target.backend.info.is_slow:
        return []
    nodes = [
        node
        for region in planned.plan.regions()
        if region.backend == target.name
        for node in region.graph.nodes
    ]
    return [node for node in nodes if _is_expandable(node)]


def _is_expandable(node: Node) -> bool:
    """Tell whether a composite has an expansion without control flow, and requires nothing."""
    op = get_op(node.op)
    if not op.is_composite or op.requires or op.kept_whole is not None:
        return False
    return not any(get_op(part.op).is_(Trait.CONTROL) for part in op.expansion(node).nodes)


def expanded(graph: Graph) -> Graph:
    """Expand composites all the way down, except those whose expansion has control flow."""
    while composites := [node for node in graph.nodes if _is_expandable(node)]:
        graph = replace_nodes(graph, {node: get_op(node.op).expansion(node) for node in composites})
    return graph


def _shown(target: Target) -> str:
    return target.name if target.device.id == "cpu" else f"{target.name} ({target.device.id})"
