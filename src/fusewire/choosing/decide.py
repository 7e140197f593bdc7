"""Decide how a graph runs, once: what was found out before is recalled, what was not is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fusewire.choosing.ledger import Ledger
from fusewire.choosing.search import LEAST_SECONDS, Contest, Decision, Tell
from fusewire.choosing.tune import Tuning
from fusewire.choosing.verify import Jury
from fusewire.contract.backend import Config, Fact, Form
from fusewire.errors import RegistryError, StoreError
from fusewire.ir.graph import Graph
from fusewire.ops.sample import HostValue
from fusewire.planning.candidates import Candidate, Unfit, allowed, candidates, expanded
from fusewire.planning.claims import Home
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.select import Search
from fusewire.records.remember import Memory
from fusewire.runtime.why import Tried
from fusewire.store.key import Key
from fusewire.trials.stage import Stage

# Runs of the reference that show how far answers may be apart. As many as tolerances are made for:
# with four, the float32 reference itself is 1.17 of the tolerance on ppocr-rec, with eight 0.34.
_RUNS = 8
# The share of the budget after which no further set of inputs is judged on.
_JUDGING = 0.8
# The share of it that comparing ways as they are may take where kernels are tuned after it.
_WHOLE = 0.5


@dataclass(frozen=True)
class Choice:
    """A way to run a graph, as what can be written down."""

    backend: str
    device: str
    form: Form = "native"
    options: Mapping[str, Fact] = field(default_factory=dict)

    @staticmethod
    def of(found: Candidate) -> Choice:
        """Name a candidate."""
        return Choice(found.home.name, found.home.device.id, found.form, found.options)

    def to_data(self) -> dict[str, Any]:
        """Give it as what JSON has."""
        return {**asdict(self), "options": dict(self.options)}

    @staticmethod
    def from_data(held: Any) -> Choice:
        """Read it back; StoreError when it is none."""
        if not isinstance(held, Mapping) or set(held) != set(Choice.__dataclass_fields__):
            raise StoreError("A choice has other fields than those known.")
        texts = [held["backend"], held["device"]]
        is_good = all(isinstance(x, str) for x in texts) and isinstance(held["options"], dict)
        if not is_good or held["form"] not in ("native", "expanded"):
            raise StoreError("A choice holds what is not of its kind.")
        # JSON has no tuples.
        pairs = held["options"].items()
        options = {key: tuple(x) if isinstance(x, list) else x for key, x in pairs}
        return Choice(**{**held, "options": options})

    def config(self, given: Config) -> Config:
        """Give its options on top of those that were asked for."""
        return replace(given, options={**given.options, **self.options})

    def planned(self, graph: Graph, home: Home, spare: Home, fallback: bool) -> Planned:
        """Plan a graph as it was chosen."""
        graph = expanded(graph) if self.form == "expanded" else graph
        return make_plan(graph, allowed(home, spare, fallback), spare)


@dataclass(frozen=True)
class Decided:
    """The way that was chosen, all that was tried, and the noise of the comparison.

    Of one that is recalled the noise is not known any more. ``cut_at`` is the budget in seconds
    that ended the comparison early, None if none did.
    """

    candidate: Candidate
    tried: tuple[Tried, ...]
    notes: tuple[str, ...]
    noise: float | None = None
    cut_at: float | None = None


@dataclass(frozen=True)
class Question:
    """What is to be decided, and what it may cost.

    ``homes`` gives those among which to choose, and is asked only where nothing is remembered;
    ``fields`` name what the answer depends on beside the graph, None if it is not to be kept. Plans
    that hand over more tensors than ``max_crossings`` are none. ``tunes``: kernels too.
    """

    graph: Graph
    inputs: Sequence[HostValue]
    homes: Callable[[], Iterator[Home]]
    spare: Home
    config: Config
    fields: Mapping[str, object] | None
    fallback: bool = True
    budget: float = 20.0
    seed: int = 0
    tell: Tell = lambda what, share: None
    is_thorough: bool = False
    max_crossings: int | None = None
    tunes: bool = False


def decide(question: Question, memory: Memory, search: Search) -> Decided:
    """Recall what was decided for such a graph and such inputs, or compare and decide."""
    limits = search.limits
    ledger = Ledger(question.graph, question.inputs, memory, question.config, limits.seconds)
    if question.fields is None:
        return _decided(question, _contested(question, ledger, search))
    sizes = " ".join(str(getattr(x, "shape", "")) for x in question.inputs)
    key = Key.of("plan", graph=ledger.exact, sizes=sizes, **question.fields)
    if (found := _recalled(question, key, memory, search, ledger)) is not None:
        return found
    with memory.alone(key):
        # Another process may have decided it while this one waited.
        if (found := _recalled(question, key, memory, search, ledger)) is not None:
            return found
        decision = _contested(question, ledger, search)
        found = _decided(question, decision)
        memory.put(key, json.dumps({**_written(decision), "cut_at": found.cut_at}).encode())
        return found


def _decided(question: Question, decision: Decision) -> Decided:
    cut_at = question.budget if decision.is_cut else None
    return Decided(decision.chosen, decision.tried, decision.notes, decision.noise, cut_at)


def _contested(question: Question, ledger: Ledger, search: Search) -> Decision:
    stage = Stage(question.config, search.limits, search.reference_of, search.isolate)
    # The inputs given are judged on in any case, others as far as there is time.
    start, config = time.monotonic(), question.config
    deadline = start + _JUDGING * question.budget
    jury = Jury(question.graph, question.inputs, seed=question.seed, runs=_RUNS, deadline=deadline)
    budget = question.budget * (_WHOLE if question.tunes else 1.0)
    contest = Contest(
        question.inputs,
        stage,
        jury,
        ledger,
        budget,
        question.tell,
        is_thorough=question.is_thorough,
        least=min(LEAST_SECONDS, budget),
    )
    tuning = Tuning(
        stage,
        ledger.memory,
        config,
        question.inputs,
        start,
        question.budget,
        question.tell,
        question.seed,
        question.is_thorough,
    )
    found = candidates(
        question.graph, question.homes(), question.spare, config, fallback=question.fallback
    )
    try:
        decision = contest.run(_few_crossings(found, question.max_crossings))
        decision = tuning.improve(decision, contest) if question.tunes else decision
        ledger.keep_artifact(decision.staged[decision.chosen.name])
        return decision
    finally:
        stage.close()


def _few_crossings(
    found: Iterable[Candidate | Unfit], most: int | None
) -> Iterator[Candidate | Unfit]:
    """Leave out what hands over too much, and say so of a home that does as it is."""
    for candidate in found:
        crossings = candidate.planned.plan.crossings() if isinstance(candidate, Candidate) else 0
        if most is None or crossings <= most:
            yield candidate
        elif candidate.name == (home := Unfit(candidate.home, "")).name:
            said = f"{home.name} would hand over {crossings} tensors, and {most} are allowed."
            yield replace(home, reason=said)


def _written(decision: Decision) -> dict[str, Any]:
    return {
        "choice": Choice.of(decision.chosen).to_data(),
        "tried": [asdict(row) for row in decision.tried],
        "notes": list(decision.notes),
    }


def _recalled(
    question: Question, key: Key, memory: Memory, search: Search, ledger: Ledger
) -> Decided | None:
    held = memory.get(key)
    if held is None:
        return None
    try:
        row = json.loads(held)
        choice = Choice.from_data(row["choice"])
        tried = tuple(read_tried(x) for x in row["tried"])
        notes = tuple(map(str, row["notes"]))
        cut_at = None if row["cut_at"] is None else float(row["cut_at"])
    except (StoreError, ValueError, KeyError, TypeError):
        memory.drop(key)
        return None
    if cut_at is not None and question.budget > cut_at:
        return None
    try:
        homes = search.homes(choice.backend)
    except RegistryError:
        return None
    home = next((home for home in homes if home.device.id == choice.device), None)
    if home is None:
        return None
    planned = choice.planned(question.graph, home, question.spare, question.fallback)
    found = Candidate(home, planned, choice.form, choice.options)
    if ledger.fault(found) is not None:
        memory.drop(key)
        return None
    return Decided(found, tried, notes, cut_at=cut_at)


def read_tried(row: Any) -> Tried:
    """Read a row back: shown to people, and decides nothing."""
    found = Tried(**row)
    return replace(found, judged_on=tuple(found.judged_on), cache="hit")
