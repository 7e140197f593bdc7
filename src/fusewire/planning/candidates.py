"""Candidates of a graph: targets with their forms and options, and why others do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fusewire.contract.backend import CALIBRATED, Config, Fact, Form
from fusewire.contract.model_file import FileReader, ModelFile
from fusewire.contract.tuning import TUNED
from fusewire.dtypes import bfloat16, float16
from fusewire.errors import EngineError, RefusedError
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.plan.plan import Region
from fusewire.planning.file_form import plan_file
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.target import Target
from fusewire.records.keys import code_of, extension_states, settings
from fusewire.records.plans import Choice, TargetPlace
from fusewire.rewrite.expand import replace_nodes

# Lists the options under which a candidate uses ranges that were measured.
Calibrated: TypeAlias = "Callable[[Candidate], Iterable[Mapping[str, Fact]]]"
# Options of many lines, which names do not show.
_LONG = (TUNED, CALIBRATED)
# Plans with more regions are hopeless, and take long to try.
_MOST_REGIONS = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to run a graph, planned: a target, a form and options.

    What the target refuses goes to the ``others``, in their order. The options are the target's;
    with ``is_reduced`` they have it compute in less than the model's own dtypes. Each engine has
    ``threads``, if that is not None, in place of those that the user asked for.
    """

    target: Target
    planned: Planned
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)
    others: tuple[Target, ...] = ()
    is_reduced: bool = False
    threads: int | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """All targets that the plan may use, in order; not the fallback."""
        return (self.target, *self.others)

    @property
    def engines(self) -> tuple[Target, ...]:
        """The targets that run regions of the plan; the first target if none does."""
        names = {region.backend for region in self.planned.plan.regions()}
        return tuple(x for x in self.targets if x.name in names) or (self.target,)

    @property
    def engine_names(self) -> str:
        """The names of the engines, as they are shown."""
        return " + ".join(engine.name for engine in self.engines)

    @property
    def name(self) -> str:
        """The name to show: the engines, and how the candidate differs from its default."""
        form = [] if self.form == "native" else [self.form]
        pairs = self.options.items()
        options = (key if key in _LONG else f"{key}={value}" for key, value in pairs)
        first, *others = self.engines
        about = [*form, *options] if first is self.target else []
        names = " + ".join([" ".join([_shown(first), *about]), *map(_shown, others)])
        threads = f", {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        return f"{names}{threads}"

    def choice(self) -> Choice:
        """Convert to plain data."""
        others = tuple(TargetPlace(x.name, x.device.id) for x in self.others)
        return Choice(
            self.target.name,
            self.target.device.id,
            self.form,
            self.options,
            others,
            self.is_reduced,
            self.threads,
        )

    def target_of(self, region: Region) -> Target | None:
        """Return the target of a region; None for one that the fallback or the host runs."""
        return next((x for x in self.targets if x.name == region.backend), None)

    def config(self, config: Config, target: Target | None = None) -> Config:
        """Add the options of this candidate to those that the user asked for.

        Other targets than the first have no options.
        """
        return self.choice().config(config, (target or self.target).name)

    def may_lose_nan(self, config: Config) -> bool:
        """Tell whether an engine of it runs nodes of its own that may lose NaN."""
        configs = (self.config(config, engine) for engine in self.engines)
        is_told = any(config.loses_nan for config in configs)
        return is_told or any(region.loses_nan for region in self.planned.plan.regions())

    def fields(self, config: Config) -> dict[str, str]:
        """Name what the times and verdicts of this candidate depend on."""
        named = {"candidate": self.name, "device": self.target.device.id}
        named["engine"] = _engine_fields(self.target, self.config(config))
        for number, other in enumerate(self.others, 1):
            named[f"device{number}"] = other.device.id
            named[f"engine{number}"] = _engine_fields(other, self.config(config, other))
        if self.form == "file":
            # Files that differ may have the same graph.
            named["region"] = self.planned.plan.steps[0].region.digest
        return named


def _engine_fields(target: Target, config: Config) -> str:
    backend = target.backend
    fields = {**settings(config), **backend.fingerprint(target.device), **code_of(backend)}
    fields |= {"extensions": more} if (more := extension_states(backend.info.name)) else {}
    named = {"name": target.name, **{key: str(value) for key, value in fields.items()}}
    return json.dumps(named, sort_keys=True)


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
    others: Sequence[Target] = (),
    may_reduce: bool = False,
    calibrated: Calibrated = lambda candidate: (),
) -> Iterator[Candidate | Unfit]:
    """Yield candidates: the graph on each target, with its options; the file; then expanded.

    The budget may run out, and starting the next engine may take longer than another compilation by
    one that runs: so an engine comes with its options, and with ``may_reduce`` in less than the
    model's own dtypes, right after it came as it is. Options that ``config`` sets are not varied. A
    file in narrow floats comes early: an engine rounds less often in it than our graph asks for.
    ``calibrated`` lists options in less precision for ranges that were measured. The ``others`` run
    what a target refuses, and with ``may_fall_back`` the fallback takes the rest, if it is little.
    """
    native: list[Candidate] = []
    early = file if _is_narrow(graph) else None
    for target in targets:
        candidate = split_candidate(graph, target, others, fallback, may_fall_back=may_fall_back)
        yield candidate
        if not isinstance(candidate, Candidate):
            continue
        native.append(candidate)
        yield from _file_candidates([candidate], early, config)
        yield from _with_options(candidate, config)
        if may_reduce:
            yield from _with_options(candidate, config, is_reduced=True)
            for options in calibrated(candidate):
                yield replace(candidate, options=options, is_reduced=True)
    own = list(_file_candidates(native, file, config)) if may_reduce or early is None else []
    for candidate in filter(_reduces_file, own) if may_reduce else ():
        yield from _with_options(candidate, config, is_reduced=True)
    yield from own if early is None else ()
    yield from _expanded_candidates(graph, native, fallback, may_fall_back)


def _is_narrow(graph: Graph) -> bool:
    """Tell whether a graph computes in floats of 16 bits."""
    types = (of for part in graph.walk() for node in part.nodes for of in node.types)
    return any(isinstance(of, TensorType) and of.dtype in (float16, bfloat16) for of in types)


def _expanded_candidates(
    graph: Graph, native: Iterable[Candidate], fallback: Target, may_fall_back: bool
) -> Iterator[Candidate]:
    """Yield candidates with composites expanded, where an engine took some whole."""
    for candidate in native:
        target = candidate.target
        if _composites(candidate) and target.name != fallback.name:
            order = allowed(candidate.targets, fallback, may_fall_back)
            in_parts = make_plan(expanded(graph), order, fallback)
            if _hopeless(in_parts, candidate.targets) is None:
                yield Candidate(target, in_parts, "expanded", others=candidate.others)


def split_candidate(
    graph: Graph,
    target: Target,
    others: Sequence[Target],
    fallback: Target,
    *,
    may_fall_back: bool,
) -> Candidate | Unfit:
    """Plan a graph on a target, with others for what it refuses, or say why that is hopeless."""
    targets = (target, *others)
    try:
        planned = make_plan(graph, allowed(targets, fallback, may_fall_back), fallback)
    except RefusedError as error:
        return Unfit(target, str(error))
    reason = _hopeless(planned, targets)
    if reason is not None:
        return Unfit(target, reason, planned.claims[target.name].fault)
    return Candidate(target, planned, others=tuple(others))


def _with_options(
    candidate: Candidate, config: Config, *, is_reduced: bool = False
) -> Iterator[Candidate]:
    """Yield a candidate with the options that its backend varies, or with less precision."""
    target, plan = candidate.target, candidate.planned.plan
    if target not in candidate.engines:
        return
    listed = target.backend.reduced if is_reduced else target.backend.configs
    for options in listed(plan.graph, target.device):
        if not options.keys() & config.options.keys():
            yield replace(candidate, options=options, is_reduced=is_reduced)


def _reduces_file(candidate: Candidate) -> bool:
    backend = candidate.target.backend
    return isinstance(backend, FileReader) and backend.reduces_files


def allowed(targets: Sequence[Target], fallback: Target, may_fall_back: bool) -> list[Target]:
    """List the targets a plan may use: the fallback takes what all refuse, if allowed."""
    is_last = any(target.name == fallback.name for target in targets)
    return [*targets, fallback] if may_fall_back and not is_last else [*targets]


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
    targets: Sequence[Target],
    fallback: Target,
    may_fall_back: bool,
    file: ModelFile | None = None,
) -> Planned:
    """Plan a graph according to an earlier choice; RefusedError if it no longer fits."""
    graph = expanded(graph) if choice.form == "expanded" else graph
    planned = make_plan(graph, allowed(targets, fallback, may_fall_back), fallback)
    if choice.form != "file":
        return planned
    first = targets[0]
    own = "There is no file." if file is None else plan_file(file, first, planned)
    if isinstance(own, str):
        raise RefusedError(f"{first.name} cannot read the file as before: {own} Compile it again.")
    return own


def _hopeless(planned: Planned, targets: Sequence[Target]) -> str | None:
    plan, refused = planned.plan, planned.refused_nodes()
    names = [target.name for target in targets]
    regions = plan.regions()
    is_used = any(region.graph.nodes for region in regions if region.backend in names)
    if not is_used and plan.graph.nodes:
        first = planned.claims[names[0]]
        if first.fault is not None:
            return str(first.fault)
        takes = f"{names[0]} takes" if len(names) == 1 else f"{' and '.join(names)} take"
        return f"{takes} none of it. {next(iter(refused.values()), '')}".rstrip()
    if refused and len(regions) > _MOST_REGIONS:
        node, reason = next(iter(refused.items()))
        return (
            f"{len(refused)} nodes would not run on {names[0]}, in {len(regions)} regions. "
            f"The first is {node!r}: {reason}"
        )
    return None


def _composites(candidate: Candidate) -> list[Node]:
    """List the composites that a target runs whole and that could be expanded.

    A compiler that takes long takes them apart by itself.
    """
    target, plan = candidate.target, candidate.planned.plan
    if target.backend.info.is_slow:
        return []
    nodes = [
        node
        for region in plan.regions()
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
