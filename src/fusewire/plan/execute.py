"""Run plans: steps in order; bodies of control flow have plans of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, final

from numpy import ndarray

from fusewire.contract.backend import Executable, Held, Into
from fusewire.errors import BudgetError
from fusewire.errors import note as say
from fusewire.host_memory import POOL
from fusewire.ir.dims import Symbol, bind_alone, evaluate, symbols
from fusewire.ir.live import call_bytes, result_bytes
from fusewire.ir.types import TensorType
from fusewire.ops import limits
from fusewire.ops.limits import Meter, limited
from fusewire.plan.finite import are_finite
from fusewire.plan.guards import Checks, EntryChecks
from fusewire.plan.plan import HOST, INTERPRETED, Plan, Step
from fusewire.plan.regions import Key, RegionBuilder, RegionRunner, shape_of
from fusewire.plan.transfer import copied, fetched

_KEPT_SHAPES = 256
# Takes the number of a step, and when it began and ended, in seconds of ``time.perf_counter``.
NoteStep = Callable[[int, float, float], object]


class StepRunner(Protocol):
    """Runs one step."""

    def run(self, inputs: Sequence[Held]) -> list[Held]: ...

    def close(self) -> None: ...


@final
class PlanRunner(Executable):
    """A plan made ready to run."""

    def __init__(self, plan: Plan, builder: RegionBuilder, *, is_body: bool = False) -> None:
        """``is_body``: it runs the body of a control node, in the form that the call has."""
        self._plan, self._builder = plan, builder
        whole = plan.is_whole
        self._runners: list[StepRunner] = [
            _step_runner(step, builder, whole) for step in plan.steps
        ]
        self._limits = builder.limits
        most = self._limits.memory_bytes
        # The plan around a body has seen to what a caller may change.
        steady, truths = ((), ()) if is_body else (plan.steady, plan.truth_places)
        places = (*plan.guarded_inputs, *steady)
        is_checked = bool(plan.guards or places or truths)
        self._entry_checks = (
            EntryChecks(plan.guards, plan.constants, places, truths, most) if is_checked else None
        )
        self._checks = [
            Checks(step.guards, plan.constants, most) if step.guards else None
            for step in plan.steps
        ]
        self._is_whole = whole
        run = self._direct() or self._within_limits
        self._peaks: dict[Key, int] = {}
        has_engine = any(region.backend not in INTERPRETED for region in plan.regions())
        self._is_bounded = has_engine and self._limits.asked_bytes is not None
        self._run = run
        # The inputs that may have what an engine loses, and what runs calls that have it.
        loses_nan = not is_body and any(map(builder.may_lose_nan, plan.regions()))
        self._looked_at = plan.float_places() if loses_nan else ()
        self._exact: PlanRunner | None = None
        self._exact_lock = threading.Lock()
        # Runs to the end and returns values on the host, as the caller gets them.
        self.call = self._with_checks()

    def _direct(self) -> Callable[[Sequence[Held]], list[Any]] | None:
        """Return what runs the one engine that answers all of a call; None if there is more."""
        plan = self._plan
        if len(plan.steps) != 1 or plan.steps[0].region.backend in INTERPRETED:
            return None
        (step,), (runner,) = plan.steps, self._runners
        if self._is_whole:
            return runner.run
        is_given = all(place < plan.takes for place in step.inputs)
        is_plain = isinstance(runner, RegionRunner) and not step.guards
        if not (is_plain and is_given and step.outputs == plan.outputs):
            return None
        # Inputs that nobody uses are left out.
        places = step.inputs
        return lambda inputs: [
            x if type(x) is ndarray else fetched(x) for x in runner.run([inputs[i] for i in places])
        ]

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own values; executables that are not reentrant have a lock."""
        return True

    def run(
        self, inputs: Sequence[Held], into: Into = (), keeps_buffers: bool = False
    ) -> list[Held]:
        """Run the steps in order; with ``keeps_buffers``, outputs stay where they are.

        An engine that answers all of it may write outputs where ``into`` says.
        """
        if not into and not keeps_buffers:
            return self.call(inputs)
        inputs = self._admitted(inputs)
        if not are_finite(inputs, self._looked_at):
            return self.exact().run(inputs, into, keeps_buffers)
        runner = self._runners[0] if self._runners else None
        if isinstance(runner, RegionRunner) and self._run == runner.run:
            return runner.run(inputs, into, keeps_buffers)
        with limited(self._limits) as meter:
            if self._is_whole:
                return self._runners[0].run(inputs)
            return self._stepwise(inputs, meter, self._runners, keeps_buffers)

    def _with_checks(self) -> Callable[[Sequence[Held]], list[Any]]:
        """Return what checks the inputs, if there is anything to check, and runs.

        A function of its own, since a call of a small program notices each frame.
        """
        run, entry, places = self._run, self._entry_checks, self._looked_at
        if entry is None and not self._is_bounded and not places:
            return run
        admitted = self._admitted if entry is None or self._is_bounded else entry.admitted

        def call_if_finite(inputs: Sequence[Held]) -> list[Any]:
            taken = inputs if entry is None and not self._is_bounded else admitted(inputs)
            return run(taken) if are_finite(taken, places) else self.exact().call(taken)

        return call_if_finite if places else lambda inputs: run(admitted(inputs))

    def exact(self) -> PlanRunner:
        """Return what runs calls with a NaN or an infinity in an input, which lose none of them.

        It is made at the first such call: its engines have to be built again.
        """
        with self._exact_lock:
            if self._exact is None:
                names = " + ".join(dict.fromkeys(x.backend for x in self._plan.regions()))
                say(
                    f"An input has a NaN or an infinity, which {names} may lose as it runs here: "
                    "such calls run in its exact form. This is said once."
                )
                self._exact = PlanRunner(self._plan.exact(), self._builder.exact())
            return self._exact

    def _admitted(self, inputs: Sequence[Held]) -> Sequence[Held]:
        """Return what a run takes for its inputs; checks values, and the bytes sizes lead to."""
        if self._entry_checks is not None:
            inputs = self._entry_checks.admitted(inputs)
        if self._is_bounded:
            limit, count = self._limits.asked_bytes or 0, self.peak_bytes(inputs)
            if count > limit:
                names = dict.fromkeys(step.region.backend for step in self._plan.steps)
                raise BudgetError(
                    f"The run needs {count:,} bytes at once on {' + '.join(names)}; the limit is "
                    f"{limit:,}. Raise memory_limit, or give smaller inputs."
                )
        return inputs

    def peak_bytes(self, inputs: Sequence[Held]) -> int:
        """Return the most bytes that the values of a run take at once, without its inputs.

        If that is beyond the limit op by op, an engine that plans its memory is asked, which takes
        that the region is built; not so if the results alone are beyond it.
        """
        shapes = tuple(map(shape_of, inputs))
        count = self._peaks.get(shapes)
        if count is None:
            if len(self._peaks) >= _KEPT_SHAPES:
                self._peaks.clear()
            count = call_bytes(self._plan.graph, shapes)
            limit = self._limits.asked_bytes
            if limit is not None and count > limit:
                count = self._planned_bytes(inputs, shapes, limit) or count
            self._peaks[shapes] = count
        return count

    def _planned_bytes(self, inputs: Sequence[Held], shapes: Key, limit: int) -> int | None:
        """Return what an engine planned for a run, or what it needs at least if that is too much.

        None if the engine does not say.
        """
        runner = self._runners[0]
        if not self._is_whole or not isinstance(runner, RegionRunner):
            return None
        least = result_bytes(self._plan.graph, shapes)
        return least if least > limit else runner.run_bytes(inputs)

    def _within_limits(self, inputs: Sequence[Held]) -> list[Any]:
        """Run what is interpreted under limits, those of the call that this is part of."""
        with limited(self._limits) as meter:
            if self._is_whole:
                return self._runners[0].run(inputs)
            return self._stepwise(inputs, meter, self._runners)

    def timed(self, inputs: Sequence[Held], note: NoteStep) -> list[Any]:
        """Run like ``call``, wait for each step, and note when it began and ended."""
        inputs = self._admitted(inputs)
        if not are_finite(inputs, self._looked_at):
            return self.exact().timed(inputs, note)
        runners = [_TimedRunner(runner, i, note) for i, runner in enumerate(self._runners)]
        with limited(self._limits) as meter:
            if self._is_whole:
                return runners[0].run(inputs)
            return self._stepwise(inputs, meter, runners)

    def _stepwise(
        self,
        inputs: Sequence[Held],
        meter: Meter,
        runners: Sequence[StepRunner],
        keeps_buffers: bool = False,
    ) -> list[Any]:
        plan = self._plan
        values: list[Any] = [*inputs, *plan.constants]
        borrowed = len(values)
        values += [None] * (plan.places - borrowed)
        for step, runner, checks in zip(plan.steps, runners, self._checks, strict=True):
            if checks is not None:
                checks.check(values)
            meter.tick()
            outputs = runner.run([values[place] for place in step.inputs])
            meter.hold(outputs)
            for place, value in zip(step.outputs, outputs, strict=True):
                values[place] = value
            for place in step.frees:
                if place >= borrowed:
                    meter.drop((values[place],))
                values[place] = None
        meter.drop(values[borrowed:])
        return self._results(values, borrowed, keeps_buffers)

    def _results(self, values: list[Any], borrowed: int, keeps_buffers: bool) -> list[Any]:
        # Inputs and constants are not ours to return, and no array is returned twice.
        results = []
        shared = set(range(borrowed))
        for place in self._plan.outputs:
            value = values[place]
            if place not in shared:
                results.append(value if keeps_buffers else fetched(value))
            else:
                copy = copied(value) if keeps_buffers else None
                results.append(fetched(value).copy() if copy is None else copy)
            shared.add(place)
        return results

    def close(self) -> None:
        """Close the runners, and free pooled memory."""
        for runner in self._runners:
            runner.close()
        with self._exact_lock:
            if self._exact is not None:
                self._exact.close()
        POOL.clear()


@final
class _TimedRunner:
    """A step that notes when it began and ended; it ends when its outputs are on the host."""

    def __init__(self, runner: StepRunner, number: int, note: NoteStep) -> None:
        self._runner = runner
        self._number = number
        self._note = note

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        """Run to the end: a device would go on beside the next step."""
        start = time.perf_counter()
        outputs = [fetched(value) for value in self._runner.run(inputs)]
        self._note(self._number, start, time.perf_counter())
        return outputs

    def close(self) -> None:
        """Leave the runner open: it is the plan's."""


@final
class _BoundedRunner:
    """A region that runs only if what it holds at once is within the limits of the call."""

    def __init__(self, step: Step, runner: RegionRunner) -> None:
        self._region = step.region
        self._peaks = step.peaks
        self._runner = runner
        # What the region holds, for the shapes that it was asked about last.
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}

    def run(self, inputs: Sequence[Held]) -> list[Held]:
        """Ask for the bytes first."""
        meter = limits.meter()
        if meter is not None:
            shapes = tuple(map(shape_of, inputs))
            count = self._known.get(shapes)
            if count is None:
                count = self._asked(shapes)
            # An engine may keep copies of its inputs, and of what it returns.
            copies = count + sum(map(limits.value_bytes, inputs))
            meter.need(count + copies, where=f" in a region on {self._region.backend}")
        return self._runner.run(inputs)

    def _asked(self, shapes: tuple[tuple[int, ...], ...]) -> int:
        sizes: dict[Symbol, int] = {}
        for value, shape in zip(self._region.inputs, shapes, strict=True):
            if isinstance(value.type, TensorType):
                bind_alone(value.type.shape, shape, sizes)
        known = [p for p in self._peaks if all(s in sizes for s in symbols(p))]
        if len(self._known) >= _KEPT_SHAPES:
            self._known.clear()
        count = self._known[shapes] = max([evaluate(p, sizes) for p in known], default=0)
        return count

    def close(self) -> None:
        """Close the region."""
        self._runner.close()


def _step_runner(step: Step, builder: RegionBuilder, is_last: bool) -> StepRunner:
    if step.region.backend == HOST and not builder.is_served:
        # Imports the interpreter with all ops, which most programs do not need.
        from fusewire.plan.control import HostRunner

        return HostRunner(step, builder, partial(PlanRunner, is_body=True))
    runner = RegionRunner(step.region, builder, is_last)
    return _BoundedRunner(step, runner) if step.peaks and not is_last else runner
