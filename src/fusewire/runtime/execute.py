"""Run plans: steps in order, bodies of control flow by plans of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from fusewire.contract.backend import Done, Event, Executable, Held
from fusewire.host_memory import POOL
from fusewire.runtime.plan import HOST, Plan, Step
from fusewire.runtime.regions import RegionBuilder, RegionRunner
from fusewire.runtime.transfer import to_host


class StepRunner(Protocol):
    """Runs one step."""

    def run(self, inputs: Sequence[Held]) -> list[Held]: ...

    def close(self) -> None: ...


@final
class PlanRunner(Executable):
    """A plan made ready to run."""

    def __init__(self, plan: Plan, builder: RegionBuilder) -> None:
        self._plan = plan
        whole = plan.is_whole
        self._runners: list[StepRunner] = [
            _host_runner(step, builder)
            if step.region.backend == HOST
            else RegionRunner(step.region, builder, whole)
            for step in plan.steps
        ]
        # Runs to the end and gives what the caller gets: values on the host.
        self.call: Callable[[Sequence[Held]], list[Any]] = (
            self._runners[0].run if whole else self._stepwise
        )

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own values; executables that cannot take turns by themselves do."""
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        """Run the steps in order, to the end."""
        return Done(self.call(inputs))

    def _stepwise(self, inputs: Sequence[Held]) -> list[Any]:
        plan = self._plan
        values: list[Any] = [*inputs, *plan.constants]
        borrowed = len(values)
        values += [None] * (plan.places - borrowed)
        for step, runner in zip(plan.steps, self._runners, strict=True):
            found = runner.run([values[place] for place in step.inputs])
            for place, value in zip(step.outputs, found, strict=True):
                values[place] = value
            for place in step.frees:
                values[place] = None
        # What came in or is a constant is not ours to give away, and nothing is given twice.
        given = []
        taken = set(range(borrowed))
        for place in plan.outputs:
            value = to_host(values[place])
            given.append(value.copy() if place in taken else value)
            taken.add(place)
        return given

    def close(self) -> None:
        """Let go of everything, and of memory that waits to be used again."""
        for runner in self._runners:
            runner.close()
        POOL.clear()


def _host_runner(step: Step, builder: RegionBuilder) -> StepRunner:
    # What ops mean is imported for those who have the host run one.
    from fusewire.runtime.control import HostRunner

    return HostRunner(step, builder)
