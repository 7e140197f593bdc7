"""Measure the ranges that int8 with fixed scales needs, on a user's own samples.

An exact engine runs the graph up to what is measured, in a child of its own; if it cannot, the
reference does. Half of the samples or more are left for judging, so that no candidate is judged on
what it was made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from fusewire.calibration import Calibration, spread
from fusewire.contract.backend import CALIBRATED, Config, Fact
from fusewire.errors import (
    BudgetError,
    CheckError,
    EngineError,
    OptionsError,
    ShapeMismatchError,
    note,
)
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.ops.interpret import Interpreter
from fusewire.ops.limits import limited
from fusewire.planning.candidates import Candidate, Unfit, split_candidate
from fusewire.planning.policy import TargetFinder
from fusewire.planning.target import Target
from fusewire.rewrite.static_int8 import (
    LayerRanges,
    Range,
    layers,
    observed,
    rounding_error,
    written,
)
from fusewire.trials.trial import TrialRunner

# The most samples that ranges are measured on.
MOST_MEASURED = 128
# Values of a tensor that are kept to choose its range by, of all samples together.
_KEPT = 1 << 16
# Shares of the values that a range may leave out at each end.
_LEFT_OUT = (0.0, 1e-5, 1e-4, 1e-3, 5e-3)
# The share of the budget for measuring.
_SHARE = 0.25
Run = Callable[[Sequence[HostValue]], Sequence[HostValue]]


@final
@dataclass(eq=False)
class Calibrating:
    """Measures the ranges of one graph, once, for all candidates that use them."""

    graph: Graph
    calibration: Calibration
    fallback: Target
    config: Config
    finder: TargetFinder
    budget: float
    _found: tuple[str, ...] | None = None

    @cached_property
    def _samples(self) -> list[list[Array]]:
        return self.calibration.values(self.graph.inputs)

    @cached_property
    def _places(self) -> list[int]:
        """The places of the samples that ranges are measured on: at most every other one."""
        return list(spread(range(0, len(self._samples), 2), MOST_MEASURED))

    def judged(self, most: int) -> list[list[Array]]:
        """Return samples that no range is measured on, at most so many, spread over all of them.

        They are shuffled: those that there is time for are then like the rest.
        """
        measured = set(self._places)
        others = [x for place, x in enumerate(self._samples) if place not in measured]
        return _shuffled(spread(others, most))

    def options(self, candidate: Candidate) -> Iterator[Mapping[str, Fact]]:
        """Yield the options under which a candidate's engine uses the ranges, if it can."""
        target, graph = candidate.target, candidate.planned.plan.graph
        if CALIBRATED in self.config.options or not target.backend.calibrates(target.device):
            return
        if layers(graph) and (lines := self._lines(target)):
            yield {CALIBRATED: lines}

    def _lines(self, target: Target) -> tuple[str, ...]:
        """Return the ranges as an option; empty if nothing could be measured."""
        if self._found is None:
            try:
                self._found = written(self._measured(target))
            except (BudgetError, EngineError) as error:
                note(f"Nothing is calibrated: {error}")
                self._found = ()
        return self._found

    def _measured(self, target: Target) -> dict[str, LayerRanges]:
        graph, names = observed(self.graph)
        runner = TrialRunner.of(self.config, self.finder)
        try:
            ranges = self._observe(self._run(graph, target, runner), len(names))
        except (CheckError, ShapeMismatchError) as error:
            raise OptionsError(f"A sample of calibrate cannot be run. {error}") from error
        finally:
            runner.close()
        found: dict[str, dict[str, Range]] = {}
        for (_, places), ends in zip(names, ranges, strict=True):
            for key, _, side in (place.partition(".") for place in places.split()):
                own = found.setdefault(key, {})
                low, high = own.get(side, ends)
                # Layers that share their weights share a range.
                own[side] = min(low, ends[0]), max(high, ends[1])
        return {key: LayerRanges(**sides) for key, sides in found.items()}

    def _run(self, graph: Graph, target: Target, runner: TrialRunner) -> Run:
        """Return what runs the graph: an engine in a child of its own, or the reference."""
        candidate = split_candidate(graph, target, (), self.fallback, may_fall_back=True)
        if not isinstance(candidate, Unfit):
            try:
                given = candidate, self._samples[0], self.budget
                trial = runner.attempt(*given, child="calibration")
            except (BudgetError, EngineError):
                pass
            else:
                return trial.run
        return Interpreter(graph)

    def _observe(self, run: Run, count: int) -> list[Range]:
        """Run the samples, until the time is used up, and choose a range for each output."""
        samples = _shuffled([self._samples[place] for place in self._places])
        kept = _KEPT // len(samples) + 1
        seen = [SeenValues() for _ in range(count)]
        end = time.monotonic() + _SHARE * self.budget
        for sample in samples:
            with limited(self.finder.limits.run_limits):
                outputs = run(sample)
            for one, output in zip(seen, outputs, strict=True):
                one.add(np.asarray(output), kept)
            if time.monotonic() > end:
                break
        return [one.range for one in seen]


def _shuffled(samples: Sequence[list[Array]]) -> list[list[Array]]:
    """Put samples into an order that has nothing to do with theirs, the same on every run."""
    order = np.random.default_rng(0).permutation(len(samples))
    return [samples[place] for place in order.tolist()]


@final
class SeenValues:
    """What was seen of a tensor: its ends, and some of its values.

    >>> seen = SeenValues()
    >>> seen.add(np.linspace(-1, 3, 1000), kept=100)
    >>> seen.range
    (-1.0, 3.0)
    """

    def __init__(self) -> None:
        self._low, self._high = 0.0, 0.0
        self._values: list[Array] = []
        self._count = 0

    def add(self, array: Array, kept: int) -> None:
        """Look at the values of one run, and keep about so many of them."""
        flat = array.reshape(-1)
        flat = flat[np.isfinite(flat)]
        if not flat.size:
            return
        self._low, self._high = min(self._low, flat.min()), max(self._high, flat.max())
        self._count += flat.size
        # A step that is no multiple of a power of two meets all channels.
        step = max(flat.size // kept, 1) | 1
        self._values.append(flat[::step].astype(np.float64))

    @property
    def range(self) -> Range:
        """The range in which rounding changes the values least."""
        ends = (float(self._low), float(self._high))
        if not self._values:
            return ends
        values = np.concatenate(self._values)
        ranges = [ends]
        for share in _LEFT_OUT:
            low, high = np.quantile(values, (share, 1 - share))
            ranges.append((max(float(low), ends[0]), min(float(high), ends[1])))
        return min(ranges, key=lambda one: self._error(values, one))

    def _error(self, values: Array, ends: Range) -> float:
        """Return the mean square of what rounding changes; the two ends may not be kept."""
        outer = rounding_error(np.asarray([self._low, self._high]), ends)
        return rounding_error(values, ends) + 2 * outer / self._count
