"""The table of a program and its choice agree, whatever the times: staged clocks, no luck."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.background.first_plan import FirstPlan
from fusewire.background.search import BackgroundSearch, Proposal
from fusewire.choosing.decide import Decision
from fusewire.choosing.measure import Contender, compare
from fusewire.program.program import Program
from fusewire.show.why import Tried
from fusewire.system.processes import Scheduled
from tests.background.test_settling import GivenChoices, Plans, X, served
from tests.staged import Clock

FUNCTION, USABLE = "your function", ("right", "cannot say", "not judged")
NAMES = ("onnxruntime", "onnxruntime expanded", "reference")
# Seconds of a call: engines that tie, and engines that are several times as slow.
TIMES = st.sampled_from([1.0, 1.01, 1.05, 1.3, 2.0, 5.0]).map(lambda x: x * 1e-2)


def clock_of() -> Iterator[Clock]:
    """Stage the clock of one example."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        for module in ("duel", "measure"):
            patch.setattr(f"fusewire.choosing.{module}.time", clock)
        patch.setattr("fusewire.choosing.measure.scheduled", lambda *given: Scheduled(0.0, 0.0))
        yield clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield from clock_of()


@dataclass(eq=False)
class StagedCalls:
    """Takes so many seconds on the staged clock, with some noise."""

    clock: Clock
    seconds: float
    noise: float
    luck: random.Random

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        self.clock.sleep(self.seconds * (1 + self.noise * self.luck.random()))
        return [X]

    def close(self) -> None:
        """Nothing to close."""


def beaten(rows: Sequence[Tried]) -> list[str]:
    """Name the rows that may be right and are faster than the marked one, in times of one kind."""
    (marked,) = (row for row in rows if row.is_chosen)
    names = []
    for low, high in (("low", "high"), ("here_low", "here_high")):
        least = getattr(marked, low, None)
        for row in rows:
            most = getattr(row, high, None)
            if least is not None and most is not None and most < least and row.status in USABLE:
                names.append(row.name)
    return names


@dataclass
class Staged:
    """Three candidates with times of a race, and what serves first."""

    race: list[float]
    here: list[float]
    noise: float
    luck: random.Random
    clock: Clock

    def rows(self) -> list[Tried]:
        """Return the table of the race: its two best were judged."""
        *judged, last = self.order
        statuses = dict.fromkeys(judged, "right") | {last: "not judged"}
        rows = []
        for n, (name, time) in enumerate(zip(NAMES, self.race, strict=True)):
            row = Tried(name, name.split()[0], "cpu", "native", statuses[n])
            row = replace(row, low=time * 0.99, high=time * (1.01 + self.noise))
            rows.append(replace(row, is_chosen=n == self.order[0], seconds=time))
        return rows

    @property
    def order(self) -> list[int]:
        return sorted(range(3), key=self.race.__getitem__)

    def calls(self, n: int) -> StagedCalls:
        return StagedCalls(self.clock, self.here[n], self.noise, self.luck)

    def proposal(self, plans: Plans, n: int, *rivals: Proposal) -> Proposal:
        candidate, entry = plans.entry(NAMES[n].split()[0])
        if "expanded" in NAMES[n]:
            candidate = replace(candidate, form="expanded")
        decision = Decision(candidate, tuple(self.rows()), ())
        return Proposal(replace(entry, runner=self.calls(n)), decision, rivals)

    def settled(self, is_function: bool) -> tuple[Program, Decision]:
        """Settle on one of them behind the function, or behind the reference."""
        plans, (best, second, _) = Plans(), self.order
        first: FirstPlan = plans.first("reference")
        if is_function:
            first = replace(first, name=FUNCTION, is_function=True)
        first = replace(
            first, entry=replace(first.entry, runner=self.calls(3 if is_function else 2))
        )
        may_be_best = self.race[second] * 0.99 <= self.race[best] * (1.01 + self.noise)
        rivals = [self.proposal(plans, second)] if may_be_best else []
        choices = GivenChoices(self.proposal(plans, best, *rivals))
        program, serving = served(first, None)
        BackgroundSearch("waves", choices, first).run(serving, [X])
        (decision,) = choices.kept
        return program, decision


@settings(deadline=None, max_examples=60)
@given(
    race=st.lists(TIMES, min_size=3, max_size=3),
    here=st.lists(TIMES, min_size=4, max_size=4),
    noise=st.sampled_from([0.0, 0.02, 0.3]),
    is_function=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_marked_row_is_never_beaten_in_its_table_unless_that_is_said(
    race: list[float], here: list[float], noise: float, is_function: bool, seed: int
) -> None:
    for clock in clock_of():
        program, decision = Staged(race, here, noise, random.Random(seed), clock).settled(
            is_function
        )
        said = str(program.why()).splitlines()[0]
        if beaten(decision.tried):
            assert said.startswith("Not settled:")
            assert program.state == "serving-first"
            assert not program.wait()
        else:
            assert said.startswith("Runs on")
            assert program.state == "settled"
            assert program.wait()


def test_rows_keep_the_times_of_the_race(clock: Clock) -> None:
    race = [1e-2, 3e-2, 3e-2]
    staged = Staged(race, [5e-2, 1e-3, 1e-3, 2e-2], 0.0, random.Random(0), clock)
    _, decision = staged.settled(is_function=True)
    rows = {row.name: row for row in decision.tried}
    assert [rows[name].seconds for name in NAMES] == race
    assert rows[FUNCTION].seconds is None
    assert rows[FUNCTION].is_chosen
    assert rows[FUNCTION].here == pytest.approx(2e-2)
    assert rows["onnxruntime"].here == pytest.approx(5e-2)
    assert rows["reference"].here is None


def test_next_of_the_table_meets_the_function_if_the_winner_loses(clock: Clock) -> None:
    """The race allows both to be best, and the winner is slow in this process."""
    staged = Staged([1e-2, 1.01e-2, 9e-2], [5e-2, 1e-2, 9e-2, 3e-2], 0.0, random.Random(0), clock)
    program, decision = staged.settled(is_function=True)
    assert [row.name for row in decision.tried if row.is_chosen] == ["onnxruntime expanded"]
    assert decision.candidate.name == "onnxruntime expanded"
    assert not decision.is_function
    assert program.state == "settled"
    here = {row.name: row.here for row in decision.tried if row.here is not None}
    assert here == pytest.approx({NAMES[0]: 5e-2, NAMES[1]: 1e-2, FUNCTION: 3e-2})


def test_plan_that_the_race_shows_beaten_stays_and_is_open(clock: Clock) -> None:
    """In a child the engine is three times as fast, in this process half as fast."""
    staged = Staged([1e-2, 9e-2, 3e-2], [6e-2, 9e-2, 3e-2, 1.0], 0.0, random.Random(0), clock)
    program, decision = staged.settled(is_function=False)
    assert [row.name for row in decision.tried if row.is_chosen] == ["reference"]
    assert decision.is_open
    first = str(program.why()).splitlines()[0]
    assert first.startswith(
        "Not settled: reference is used, and onnxruntime was faster in a comparison. Runs on"
    )
    assert program.state == "serving-first"
    assert not program.wait()
    program(X)
    assert program.state == "serving-first"


def test_plan_that_ties_here_gives_way_to_what_the_race_shows_faster(clock: Clock) -> None:
    staged = Staged([1e-2, 9e-2, 3e-2], [3e-2, 9e-2, 3e-2, 1.0], 0.0, random.Random(0), clock)
    program, decision = staged.settled(is_function=False)
    assert [row.name for row in decision.tried if row.is_chosen] == ["onnxruntime"]
    assert program.state == "settled"


@dataclass
class Slowing:
    """A machine that slows down at a time."""

    clock: Clock
    after: float
    slower: float
    noise: float
    luck: random.Random

    def timed(self, seconds: float, count: int) -> list[float]:
        factor = self.slower if self.clock.now > self.after else 1.0
        one = seconds * factor * (1 + self.noise * self.luck.random())
        self.clock.sleep(one * count)
        return [one] * count


@settings(deadline=None, max_examples=60)
@given(
    times=st.lists(TIMES, min_size=2, max_size=5),
    noise=st.sampled_from([0.0, 0.01, 0.3]),
    slower=st.sampled_from([1.0, 1.2, 2.0]),
    seed=st.integers(0, 1000),
)
def test_winner_of_a_race_is_not_beaten_in_its_table(
    times: list[float], noise: float, slower: float, seed: int
) -> None:
    """The machine slows down after two seconds, so that heats and final differ."""
    for clock in clock_of():
        slowing = Slowing(clock, clock.now + 2, slower, noise, random.Random(seed))
        contenders = {
            f"engine {n}": Contender(partial(slowing.timed, time)) for n, time in enumerate(times)
        }
        comparison = compare(contenders, 4.0)
        low = comparison.timings[comparison.fastest].interval[0]
        highs = {name: timing.interval[1] for name, timing in comparison.timings.items()}
        assert low is not None
        assert not {name: high for name, high in highs.items() if high is not None and high < low}
