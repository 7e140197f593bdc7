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
from fusewire.planning.claims import Home
from fusewire.planning.planner import Planned, make_plan
from fusewire.records.keys import code_of, settings
from fusewire.rewrite.expand import replace_nodes

# Plans in more pieces than this are hopeless, and take long to try.
_MOST_REGIONS = 32


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to run a graph, planned: on one home, as far as that takes it."""

    home: Home
    planned: Planned
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it: the backend, and how it differs from that as it is."""
        form = ["expanded"] if self.form == "expanded" else []
        told = self.options.items()
        options = (key if key == TUNED else f"{key}={value}" for key, value in told)
        return " ".join([_shown(self.home), *form, *options])

    def config(self, given: Config) -> Config:
        """Give the options of this way on top of those that were asked for."""
        return replace(given, options={**given.options, **self.options})

    def fields(self, given: Config) -> dict[str, str]:
        """Name what timings and verdicts of this way depend on."""
        backend, device = self.home.backend, self.home.device
        found = {**settings(self.config(given)), **backend.fingerprint(device), **code_of(backend)}
        said = json.dumps({key: str(value) for key, value in found.items()}, sort_keys=True)
        return {"way": self.name, "device": device.id, "by": said}


@dataclass(frozen=True)
class Unfit:
    """A home that is no candidate, and why."""

    home: Home
    reason: str

    @property
    def name(self) -> str:
        return _shown(self.home)


def candidates(
    graph: Graph, homes: Iterable[Home], spare: Home, given: Config, *, fallback: bool
) -> Iterator[Candidate | Unfit]:
    """Yield ways to run a graph: as it is, on each home in turn with its options; then in parts.

    Options come early: a budget may not last, and an engine's own nodes gain more than parts do.
    Options that were ``given`` are not tried otherwise. With ``fallback`` the spare home runs what
    a home refuses, if that is not most of it.
    """
    native: list[Candidate] = []
    for home in homes:
        try:
            planned = make_plan(graph, allowed(home, spare, fallback), spare)
        except RefusedError as error:
            yield Unfit(home, str(error))
            continue
        reason = _hopeless(planned, home)
        if reason is not None:
            yield Unfit(home, reason)
            continue
        native.append(Candidate(home, planned))
        yield native[-1]
        for options in home.backend.configs(planned.plan.graph, home.device):
            if not options.keys() & given.options.keys():
                yield replace(native[-1], options=options)
    for candidate in native:
        home, planned = candidate.home, candidate.planned
        if _taken_whole(planned, home) and home.name != spare.name:
            with_parts = make_plan(expanded(graph), allowed(home, spare, fallback), spare)
            if _hopeless(with_parts, home) is None:
                yield Candidate(home, with_parts, "expanded")


def allowed(home: Home, spare: Home, fallback: bool) -> list[Home]:
    """List who may run the nodes of a plan: the spare home what the other refuses, if it may."""
    return [home, spare] if fallback and home.name != spare.name else [home]


def _hopeless(planned: Planned, home: Home) -> str | None:
    plan, left = planned.plan, planned.left_over()
    data = sum(len(region.graph.nodes) for region in plan.regions() if region.backend == home.name)
    if not data and plan.graph.nodes:
        first = next(iter(planned.claims.values()))
        if first.fault is not None:
            return str(first.fault)
        return f"{home.name} takes none of it. {next(iter(left.values()), '')}".rstrip()
    regions = len(plan.regions())
    if left and regions > _MOST_REGIONS:
        node, reason = next(iter(left.items()))
        return (
            f"{len(left)} nodes would run elsewhere, in {regions} regions. The first is {node!r}: "
            f"{reason}"
        )
    return None


def _taken_whole(planned: Planned, home: Home) -> list[Node]:
    """List composites that a home runs whole and that could be given in parts."""
    nodes = [
        node
        for region in planned.plan.regions()
        if region.backend == home.name
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


def _shown(home: Home) -> str:
    return home.name if home.device.id == "cpu" else f"{home.name} ({home.device.id})"
