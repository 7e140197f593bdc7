"""Level 3: how each kernel of a way is best cut, and whether the way is faster with all of that.

Kernels are timed one by one, in a child, by the device's own clock where it has one, and judged as
any candidate is. What is found of a kernel is remembered by itself: another model that has it does
not time it again. In the end tuned and untuned meet anew, so that tuning never makes slower.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from fusewire.choosing.ledger import Ledger
from fusewire.choosing.rows import ORDER
from fusewire.choosing.search import Contest, Decision, Tell
from fusewire.choosing.tuned import Cut, keep, recall
from fusewire.choosing.verify import Jury
from fusewire.contract.backend import Config, Fact
from fusewire.contract.tuning import TUNED, Piece, Tuner, written
from fusewire.errors import FusewireError, NoneRightError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.graph import Graph
from fusewire.ir.types import tensor_of
from fusewire.numerics.bound import bindings_of
from fusewire.ops.sample import Draw, HostValue
from fusewire.planning.candidates import Candidate
from fusewire.planning.claims import Home
from fusewire.planning.planner import make_plan
from fusewire.process.guard import described, guarded
from fusewire.records.remember import Memory
from fusewire.runtime.why import Tried
from fusewire.trials.stage import Stage

# A way that takes more than this many times as long as the fastest is not worth tuning.
_HOPELESS = 4.0
# Kernels with less than this share of the time are left as they are.
_SHARE = 0.01
# The least and the most seconds that one choice may take, and those of its comparison in any case;
# of a large budget it is a share, so that whatever did not end in time does with a larger one.
_SHORTEST, _LONGEST, _LEAST_SECONDS = 3.0, 15.0, 1.0
_LARGEST = 0.125
# The shares of the budget between which kernels are tuned: engines are compared before, and tuned
# and untuned meet after.
_BEGINS, _ENDS = 0.5, 0.85
# Less than this is not worth another cut.
_LEAD = 1.03
# Runs of the reference for a kernel, as many as for a whole, and those that tell how it weighs.
_RUNS, _WEIGHING = 8, 3


@dataclass
class Tuning:
    """Tunes the ways of one comparison that began at ``start``, a time of ``time.monotonic()``."""

    stage: Stage
    memory: Memory
    config: Config
    inputs: Sequence[HostValue]
    start: float
    budget: float
    say: Tell = lambda what, share: None
    seed: int = 0
    is_thorough: bool = False
    is_cut: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """When the last kernel is tuned."""
        return self.start + _ENDS * self.budget

    def tell(self, what: str) -> None:
        """Say what is being done."""
        self.say(what, (time.monotonic() - self.start) / max(self.budget, 1e-3))

    def improve(self, decision: Decision, contest: Contest) -> Decision:
        """Tune the best way of each backend that can be, and decide again with those."""
        found: dict[str, tuple[Candidate, list[Cut]]] = {}
        against = [decision.chosen.name]
        for way in self._worthy(decision):
            cuts = self._cuts(way)
            if kept := {cut.key: cut.chosen for cut in cuts if cut.is_other}:
                better = replace(way, options={**way.options, TUNED: written(kept)})
                found[better.name] = better, cuts
                against = list(dict.fromkeys([*against, way.name]))
        if not found:
            notes = (*decision.notes, *self.notes)
            return replace(decision, notes=notes, is_cut=decision.is_cut or self.is_cut)
        try:
            made = contest.rematch((better for better, _ in found.values()), against)
        except NoneRightError as error:
            return self._as_before(decision, error)
        rows = tuple(_with(row, found.get(row.name)) for row in made.tried)
        return replace(
            made,
            tried=rows,
            notes=(*made.notes, *self.notes),
            is_cut=made.is_cut or decision.is_cut or self.is_cut,
        )

    def _as_before(self, decision: Decision, error: NoneRightError) -> Decision:
        """Keep what was decided before tuning: ways that ran then fail when they meet again."""
        rows = {row.name: row for row in error.tried}
        if rows[decision.chosen.name].status == "wrong":
            raise error
        reason = rows[decision.chosen.name].reason
        said = (
            f"{decision.chosen.name} failed when it met what was tuned, and is as before: {reason}"
        )
        return replace(decision, notes=(*decision.notes, *self.notes, said), is_cut=True)

    def _worthy(self, decision: Decision) -> Iterator[Candidate]:
        """Yield the fastest way of each device whose backend can be tuned."""
        rows = [row for row in decision.tried if row.name in decision.staged]
        timed = [row for row in rows if row.seconds is not None and row.status in ORDER]
        seen: set[tuple[str, str]] = set()
        least = min((row.seconds or 0.0 for row in timed), default=0.0)
        for row in sorted(timed, key=lambda row: row.seconds or 0.0):
            way = decision.staged[row.name].candidate
            at = way.home.name, way.home.device.id
            if at in seen or not isinstance(way.home.backend, Tuner):
                continue
            seen.add(at)
            if self.is_thorough or (row.seconds or 0.0) <= _HOPELESS * least:
                yield way
            else:
                times = f"takes {(row.seconds or 0.0) / least:.1f} times as long as the fastest"
                self.notes.append(f"{way.name} {times}, and is not tuned.")

    def _cuts(self, way: Candidate) -> list[Cut]:
        """Find how the kernels of a way are best cut, the heaviest first."""
        home = way.home
        known = {
            piece.key: (piece, recall(self.memory, home, piece)) for piece in self._pieces(way)
        }
        found = [cut for _, cut in known.values() if cut is not None]
        new = [piece for piece, cut in known.values() if cut is None]
        weights = self._weights(home, new)
        late = [piece for piece in new if piece.key not in weights]
        least = _SHARE * sum(weights.values())
        heavy = [piece for piece in new if weights.get(piece.key, 0.0) > least]
        heavy.sort(key=lambda piece: -weights[piece.key])
        for number, piece in enumerate(heavy):
            # A kernel has as much of the time that is left as it has of the work that is.
            share = weights[piece.key] / sum(weights[rest.key] for rest in heavy[number:])
            seconds = (self.deadline - time.monotonic()) * share / (len(piece.axes) + 1)
            most = max(_LONGEST, _LARGEST * self.budget)
            about = f"tuning kernel {number + 1} of {len(heavy)}"
            cut = self._tuned(home, piece, about, min(max(seconds, _SHORTEST), most))
            if cut is not None:
                found.append(cut)
                if not cut.is_late:
                    keep(self.memory, home, piece, cut)
            if (time.monotonic() > self.deadline) if cut is None else cut.is_late:
                late.append(piece)
        self._note(way, found, late)
        return found

    def _note(self, way: Candidate, found: Sequence[Cut], late: Sequence[Piece]) -> None:
        others = sum(cut.is_other for cut in found)
        before = sum(cut.cache == "hit" for cut in found)
        said = [f"{others} of {len(found)} kernels that were tuned are cut otherwise"] * bool(found)
        said += [f"{before} were known"] * bool(before)
        if late:
            self.is_cut = True
            some = sum(cut.is_late for cut in found)
            # What choosing takes at the least, in the share of a budget that it has.
            takes = _SHORTEST * sum(len(piece.axes) + 1 for piece in late) / (_ENDS - _BEGINS)
            enough = math.ceil(max(takes, 2 * self.budget) / 10) * 10
            said += [f"{some} were not tuned to the end"] * bool(some)
            said += [f"{len(late) - some} were not tuned"] * (len(late) > some)
            said[-1] += f": the budget was used up. Try budget_seconds={enough}"
        text = "; ".join(said) or "it has no kernels to tune"
        self.notes.append(f"{way.name}: {text}.")

    def _pieces(self, way: Candidate) -> list[Piece]:
        home, plan = way.home, way.planned.plan
        backend, config = home.backend, way.config(self.config)
        assert isinstance(backend, Tuner)
        sizes, found = dict(bindings_of(plan.graph, self.inputs)), dict[str, Piece]()
        for region in plan.regions():
            if region.backend != home.name:
                continue
            graph = bind_symbols(region.graph, sizes)
            given = graph, home.device, config
            for piece in guarded(home.name, "claim", described(graph), backend.pieces, *given):
                other = found.get(piece.key)
                count = piece.count + (0 if other is None else other.count)
                found[piece.key] = replace(piece, count=count)
        return list(found.values())

    def _weights(self, home: Home, pieces: Sequence[Piece]) -> dict[str, float]:
        """Tell what kernels take of a run, by their keys, as far as there is time."""
        weights: dict[str, float] = {}
        for number, piece in enumerate(pieces):
            self.tell(f"weighing kernel {number + 1} of {len(pieces)}")
            if time.monotonic() > self.deadline:
                break
            inputs = _inputs(piece.graph, self.seed)
            try:
                staged = self.stage.place(self._way(home, piece, piece.untuned), inputs)
                taken = min(staged.seconds(inputs, _WEIGHING))
            except FusewireError:
                # What does not run alone is left as it is.
                taken = 0.0
            weights[piece.key] = taken * piece.count
        return weights

    def _way(self, home: Home, piece: Piece, chosen: Mapping[str, Fact]) -> Candidate:
        assert isinstance(home.backend, Tuner)
        options = {**home.backend.clock(home.device), **chosen}
        return Candidate(home, make_plan(piece.graph, [home]), options=options)

    def _tuned(self, home: Home, piece: Piece, about: str, seconds: float) -> Cut | None:
        """Choose for one kernel, one thing after another; None where none is right, or too late."""
        chosen, gain, is_late = piece.untuned, 1.0, False
        race = self._races(piece, about)
        try:
            for number, (axis, values) in enumerate(piece.axes.items()):
                if time.monotonic() > self.deadline:
                    if number == 0:
                        return None
                    is_late = True
                    break
                ways = [self._way(home, piece, {**chosen, axis: value}) for value in values]
                decision = race(ways, seconds)
                is_late |= decision.is_cut
                if _lead(decision, ways[0]) > _LEAD:
                    chosen[axis] = decision.chosen.options[axis]
            if chosen != piece.untuned:
                # The best of many flatters itself: it meets what it has untuned once more, alone.
                ways = [self._way(home, piece, choice) for choice in (piece.untuned, chosen)]
                left = max(self.deadline - time.monotonic(), _LEAST_SECONDS)
                decision = race(ways, min(seconds, left), is_last=True)
                is_late |= decision.is_cut
                gain = _lead(decision, ways[0])
        except FusewireError:
            return None
        if gain <= _LEAD:
            chosen, gain = piece.untuned, 1.0
        is_other = chosen != piece.untuned
        return Cut(piece.key, piece.name, piece.count, chosen, gain, is_other, is_late=is_late)

    def _races(self, piece: Piece, about: str) -> Callable[..., Decision]:
        """Give what compares ways to run a kernel; where ``is_last``, all of them in any case."""
        inputs = _inputs(piece.graph, self.seed)
        ledger = Ledger(piece.graph, inputs, self.memory, self.config, self.stage.limits.seconds)
        jury = Jury(piece.graph, inputs, seed=self.seed, runs=_RUNS, deadline=self.deadline)

        def race(ways: list[Candidate], seconds: float, *, is_last: bool = False) -> Decision:
            contest = Contest(
                inputs,
                self.stage,
                jury,
                ledger,
                seconds,
                lambda what, share: self.tell(about),
                is_thorough=is_last,
                least=_LEAST_SECONDS,
                close=math.inf if len(ways) == 2 else None,
            )
            return contest.run(ways)

        return race


def _lead(decision: Decision, before: Candidate) -> float:
    """Tell how many times as fast as before the chosen one is; 1 where that may be noise."""
    rows = {row.name: row for row in decision.tried}
    old, new = rows[before.name], rows[decision.chosen.name]
    pairs = ((old.seconds, new.seconds), (old.low, new.low))
    lead = min(a / b if a and b else 1.0 for a, b in pairs)
    return 1.0 if before.name in decision.ties or lead <= 1 + (decision.noise or 0.0) else lead


def _inputs(graph: Graph, seed: int) -> list[HostValue]:
    """Make inputs up: fractions of either sign, zeros and ones."""
    rng, found = np.random.default_rng(seed), list[HostValue]()
    for value in graph.inputs:
        of = tensor_of(value.type)
        shape = tuple(dim for dim in of.shape if isinstance(dim, int))
        low = -1.0 if of.dtype.is_float else 0.0
        found.append(Draw(shape, low=low, high=1.0).make(of.dtype, rng))
    return found


def _with(row: Tried, found: tuple[Candidate, list[Cut]] | None) -> Tried:
    return row if found is None else replace(row, tuned=tuple(map(asdict, found[1])))
