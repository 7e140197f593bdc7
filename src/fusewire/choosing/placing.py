"""What all searches share that place the nodes of a graph on several engines."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fusewire.choosing.race import Progress
from fusewire.contract.backend import Config
from fusewire.errors import FusewireError
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Graph, HostValue
from fusewire.numerics.scale import bindings_of
from fusewire.planning.candidates import Candidate, placed_candidate, placing_of
from fusewire.planning.segments import Segment, segments
from fusewire.planning.target import Target
from fusewire.trials.trial import CandidateTrial, TrialRunner

# Seconds of timed calls, after some that warm up, and the fewest and most of them.
_TIMING, _FEWEST, _MOST = 0.06, 3, 40
# The most segments that a graph is cut into.
_SEGMENTS = 12


@dataclass(frozen=True)
class PlacedSearch:
    """A search for a faster plan after a race, which began at ``start`` on the monotonic clock."""

    graph: Graph
    inputs: Sequence[HostValue]
    runner: TrialRunner
    config: Config
    fallback: Target
    start: float
    budget: float
    may_fall_back: bool = True
    max_crossings: int | None = None
    progress: Progress = lambda what, share: None

    @cached_property
    def sizes(self) -> dict[Symbol, int]:
        """The sizes of the given inputs."""
        return dict(bindings_of(self.graph, self.inputs))

    @cached_property
    def segments(self) -> list[Segment]:
        """The graph in parts, in order; none if there is no place to cut it."""
        return segments(self.graph, self.sizes, _SEGMENTS)

    def seconds_left(self, share: float = 1.0) -> float:
        """Say how much of a share of the budget is left; less than 0 if none is."""
        return self.start + share * self.budget - time.monotonic()

    def tell(self, what: str) -> None:
        """Show what is being done."""
        used = 1 - max(self.seconds_left(), 0.0) / max(self.budget, 1e-3)
        self.progress(what, used)

    def placed(
        self, graph: Graph, engines: Sequence[Target], numbers: Sequence[int]
    ) -> Candidate | None:
        """Plan a graph on engines that leave each other the cores; numbers place its nodes.

        Engines after the first keep options that they have.
        """
        own = [{**x.options, **x.backend.beside_others(x.device)} for x in engines]
        first, *others = engines
        beside = [replace(x, options=options) for x, options in zip(others, own[1:], strict=True)]
        return placed_candidate(
            graph,
            [first, *beside],
            placing_of(numbers),
            self.fallback,
            options=own[0],
            may_fall_back=self.may_fall_back,
        )

    def samples(self, trial: CandidateTrial, inputs: Sequence[HostValue]) -> tuple[float, ...]:
        """Time a few calls, after some that warm up; raises FusewireError if it fails."""
        first = trial.seconds(inputs, _FEWEST)
        once = statistics.median(first)
        if once > _TIMING:
            # What takes this long is warm, and a budget has few such calls.
            return tuple(first)
        count = round(min(max(_TIMING / once, _FEWEST), _MOST))
        return tuple(trial.seconds(inputs, count))

    def quick_seconds(self, trial: CandidateTrial) -> float:
        """Return the least seconds of a few calls with the given inputs; infinite if it fails.

        The least is what others that use the machine disturb least.
        """
        try:
            return min(self.samples(trial, self.inputs))
        except FusewireError:
            return math.inf

    def has_time(self, seconds: float, count: int, share: float) -> bool:
        """Tell whether so many candidates, which take about so long, can be timed till a share."""
        return _FEWEST * seconds * count < self.seconds_left(share)

    def hands_over_few(self, candidate: Candidate) -> bool:
        """Tell whether a plan keeps to the most tensors that may be handed over."""
        most = self.max_crossings
        return most is None or candidate.planned.plan.crossings() <= most
