"""Run the conformance suite on a backend: what it declares against what it proves.

Nothing falls back: a case counts if every node of it, or of its expansion, runs on the backend.
Many cases are compiled as one graph, because engines take longer to compile than to run. A graph
that fails is halved until the failing case is alone. What is compiled also runs every case with
NaN, infinities and -0 in its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from fusewire.contract.backend import Backend, Config, Device, Fact, Gap
from fusewire.contract.region import weights_of
from fusewire.contract.tuning import Tuner
from fusewire.errors import FusewireError
from fusewire.ir.builder import inline
from fusewire.ir.graph import Graph, HostValue, Value
from fusewire.ir.text import constants_of
from fusewire.ops.declare import Op, Trait
from fusewire.ops.outside import holds_outside_ops
from fusewire.ops.table import get_op
from fusewire.plan.transfer import hand_over, to_host
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.process.guard import guarded
from fusewire.process.trial import filled
from fusewire.testing.conformance import Case, cases, gap_of, value_problems
from fusewire.testing.poison import Round, poison_problems, rounds_of

BATCH = 48
Status = Literal["native", "expanded", "helped", "refused", "gap", "failed"]


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    It passed natively, expanded or, with fallback, helped by another backend; it was refused; or it
    failed, in a known gap or not.
    """

    status: Status
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.status in ("native", "expanded", "helped")


class Makes(Protocol):
    """What makes a graph and its inputs, and is a key."""

    def make(self) -> tuple[Graph, list[HostValue]]: ...

    def __hash__(self) -> int: ...


Made = TypeVar("Made", bound=Makes)


@dataclass(frozen=True)
class Ready(Generic[Made]):
    """A case that can run; ``legal`` is its graph in ops that the backend takes."""

    case: Made
    graph: Graph
    legal: Graph
    inputs: list[HostValue]
    status: Status

    def rounds(self, *, few: bool = False) -> list[Round]:
        """Make the poisoned inputs of a sample, and what the reference makes of them."""
        if not isinstance(self.case, Case):
            return []
        return rounds_of(self.graph, self.inputs, self.case.dtype, few=few)


# Runs cases together, once for each list of inputs, and gives the outputs of each run.
Run: TypeAlias = Callable[
    [Sequence[Ready[Made]], Sequence[Sequence[HostValue]]], list[list[HostValue]]
]


def run_cases(
    backend: Backend,
    device: Device,
    found: Iterable[Made],
    config: Config = Config(),
    *,
    few: bool = False,
) -> dict[Made, CaseResult]:
    """Run cases without fallback; ``few`` of the poisoned rounds of each if the engine is slow."""
    results: dict[Made, CaseResult] = {}
    ready: list[Ready[Made]] = []
    for case in found:
        try:
            graph, inputs = case.make()
            claimed = ask(Target(backend, device), graph)
        except FusewireError as error:
            results[case] = CaseResult("failed", str(error))
            continue
        if claimed.refusals:
            reason = next(iter(claimed.refusals.values())).reason
            results[case] = CaseResult("refused", reason)
            continue
        if not claimed.graph.nodes:
            # The expansion returns an operand: no node is left for the engine to run.
            results[case] = CaseResult("expanded")
            continue
        status: Status = "expanded" if claimed.expanded else "native"
        ready.append(Ready(case, graph, claimed.graph, inputs, status))
    engine = _Engine(backend, device, config)
    judge(backend.info.name, ready, engine.answers, results, few=few)
    for options, chosen in engine.configurations(ready):
        found_here: dict[Made, CaseResult] = {}
        configured = _Engine(backend, device, Config(options=options))
        judge(backend.info.name, chosen, configured.answers, found_here, few=few)
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        for case, result in found_here.items():
            if not result.passed and results[case].passed:
                results[case] = CaseResult(result.status, f"with {said}: {result.reason}")
    return results


@dataclass(frozen=True)
class _Engine:
    """A backend on a device, under one configuration, in this process."""

    backend: Backend
    device: Device
    config: Config = field(default_factory=Config)

    def answers(
        self, part: Sequence[Ready[Made]], calls: Sequence[Sequence[HostValue]]
    ) -> list[list[HostValue]]:
        """Run cases together, into memory that shows what is not written if it is a device's."""
        backend, device = self.backend, self.device
        graph = merge([item.legal for item in part])
        artifact = backend.compile(graph, device, self.config)
        executable = backend.load(artifact, device, weights_of(artifact, constants_of(graph)))
        answers = []
        for inputs in calls:
            given = [hand_over(x, backend.exchange_on(device)) for x in inputs]
            own = filled(backend, artifact, device)
            outputs = executable.run(given, own)
            # Copied: an engine may use its memory again in the next run.
            answers.append([_kept(to_host(x)) for x in outputs])
        executable.close()
        return answers

    def configurations(
        self, ready: Sequence[Ready[Made]]
    ) -> list[tuple[Mapping[str, Fact], list[Ready[Made]]]]:
        """List the other configurations of kernels that packages bring, with the cases of each."""
        found: dict[tuple[tuple[str, Fact], ...], list[Ready[Made]]] = {}
        if not isinstance(self.backend, Tuner):
            return []
        for item in ready:
            if not holds_outside_ops(item.legal):
                continue
            for piece in self.backend.pieces(item.legal, self.device, self.config):
                for name, values in piece.axes.items():
                    for value in values[1:]:
                        found.setdefault(((name, value),), []).append(item)
        return [(dict(options), items) for options, items in found.items()]


def judge(
    name: str,
    ready: Sequence[Ready[Made]],
    run: Run[Made],
    results: dict[Made, CaseResult],
    *,
    few: bool = False,
) -> None:
    """Run cases in batches, and compare each with the oracle."""
    stack = [ready[start : start + BATCH] for start in range(0, len(ready), BATCH)]
    while stack:
        part = stack.pop()
        rounds = [item.rounds(few=few) for item in part]
        try:
            found = _answers(name, run, part, rounds)
        except FusewireError as error:
            if len(part) == 1:
                results[part[0].case] = CaseResult("failed", str(error))
            else:
                middle = len(part) // 2
                stack += [part[middle:], part[:middle]]
            continue
        answers = [iter(outputs) for outputs in found]
        for item, poisoned in zip(part, rounds, strict=True):
            got, *more = [list(islice(outputs, len(item.graph.outputs))) for outputs in answers]
            problems = value_problems(item.graph, item.inputs, got)
            for one, answer in zip(poisoned, more, strict=False):
                problems += poison_problems(item.graph, one, answer)
            status: Status = "failed" if problems else item.status
            results[item.case] = CaseResult(status, "; ".join(problems))


def _answers(
    name: str,
    run: Run[Made],
    part: Sequence[Ready[Made]],
    rounds: Sequence[Sequence[Round]],
) -> list[list[HostValue]]:
    """Run cases with their inputs, and then as often as one of them has another round."""
    calls = [[x for item in part for x in item.inputs]]
    for each in zip_longest(*rounds):
        pairs = zip(part, each, strict=True)
        calls.append([x for item, one in pairs for x in (one.inputs if one else item.inputs)])
    try:
        return guarded(name, "run", f"{len(part)} cases", run, part, calls)
    except FusewireError:
        if len(part) > 1 or len(calls) == 1:
            raise
    # An engine that refuses poison loses nothing.
    return guarded(name, "run", "1 case", run, part, calls[:1])


def _kept(x: HostValue) -> HostValue:
    return np.array(x) if isinstance(x, np.ndarray) else x


def merge(graphs: Sequence[Graph]) -> Graph:
    """Merge graphs into one, with inputs and outputs in order."""
    inputs: list[Value] = []
    outputs: list[Value] = []
    for number, graph in enumerate(graphs):
        own = [Value(v.type, f"case{number}_{v.name}") for v in graph.inputs]
        inputs += own
        outputs += inline(graph, own)
    names = [f"output{i}" for i in range(len(outputs))]
    return Graph(inputs, outputs, name="cases", output_names=names)


@dataclass(frozen=True)
class OpReport:
    """One op on one backend. A dtype is declared if any sample of it is taken.

    If samples name several dtypes, such as the target of a cast, that holds for each combination.
    """

    op: Op[Any]
    results: Mapping[Case, CaseResult] = field(repr=False)

    def dtypes(self, *, proven: bool) -> list[str]:
        """List the dtypes that are declared, or those of which every sample passes."""
        grouped: dict[str, list[CaseResult]] = {}
        for case, result in self.results.items():
            grouped.setdefault(case.dtypes, []).append(result)
        if proven:
            return [name for name, all_ in grouped.items() if all(o.passed for o in all_)]
        return [name for name, all_ in grouped.items() if any(o.status != "refused" for o in all_)]

    @property
    def counts(self) -> Counter[str]:
        """Count the cases by result."""
        return Counter(result.status for result in self.results.values())

    @property
    def status(self) -> str:
        """The status: proven, partial (some samples refused), refused, gap, or failed."""
        counts = self.counts
        for bad in ("failed", "gap"):
            if counts[bad]:
                return bad
        declared = self.dtypes(proven=False)
        if not declared:
            return "refused"
        return "proven" if declared == self.dtypes(proven=True) else "partial"

    @property
    def form(self) -> str:
        """How it runs: helped by fallback, expanded, or natively throughout."""
        return next((x for x in ("helped", "expanded", "native") if self.counts[x]), "")

    @property
    def reason(self) -> str:
        """The first reason why the op, or a sample of it, is not proven."""
        order = ("failed", "gap", "refused")
        found = [x for kind in order for x in self.results.values() if x.status == kind]
        return found[0].reason if found else ""


def reports(
    backend: Backend, device: Device, found: Sequence[Case], *, few: bool = False
) -> tuple[list[OpReport], list[str]]:
    """Run cases, op by op; also return problems: failures that are not gaps, stale gaps."""
    return reported(backend, device, found, run_cases(backend, device, found, few=few))


def reported(
    backend: Backend, device: Device, found: Sequence[Case], results: Mapping[Case, CaseResult]
) -> tuple[list[OpReport], list[str]]:
    """Group results by op; also return problems: failures that are not gaps."""
    name, problems = backend.info.name, []
    gaps = [gap for gap in backend.gaps if gap.device in (None, device.id)]
    grouped: dict[str, dict[Case, CaseResult]] = {}
    for case in found:
        result = results[case]
        if result.status == "failed":
            gap = gap_of(gaps, case)
            if gap is None:
                problems.append(f"{name} on {case.id}: {result.reason}")
            else:
                result = CaseResult("gap", f"{gap.reason} ({gap.kind}) {result.reason}")
        grouped.setdefault(case.op.name, {})[case] = result
    for gap in gaps:
        covered = [case for case in found if _is_about(gap, case)]
        passes = all(results[case].status != "failed" for case in covered)
        # A share of the cases may not include the one that fails.
        if passes and covered and len(covered) == _extent(gap):
            problems.append(f"{name} has a gap for {gap.op} that passes: delete it")
    rows = [OpReport(next(iter(cases_)).op, cases_) for cases_ in grouped.values()]
    return rows, problems


def _extent(gap: Gap) -> int:
    """Count the cases that a gap covers."""
    return sum(_is_about(gap, case) for case in cases([get_op(gap.op)]))


def _is_about(gap: Gap, case: Case) -> bool:
    return case.is_numeric and gap_of([gap], case) is not None


def is_tensor_op(op: Op[Any]) -> bool:
    """Return whether engines can run an op: sequences and strings are for the reference."""
    return not op.is_(Trait.HOST)
