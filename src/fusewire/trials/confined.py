"""Run the fallback in a child, for good, in the place of an engine that met a limit there.

What a child was stopped for never runs in this process: the fallback might need as much.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from fusewire.contract.backend import Config, Device, Executable, Held, Into, Refusal
from fusewire.errors import BackendHung, BudgetError, EngineError, EngineOutOfMemory
from fusewire.ir.graph import Graph
from fusewire.plan.transfer import fetched
from fusewire.process.guard import BY_CODE
from fusewire.process.isolate import Contact, first_contact, rerun
from fusewire.process.limits import ChildLimits

# What an engine was stopped for.
STOPPED = (EngineOutOfMemory, BackendHung)
# The share of the seconds that a fallback gets in any case, however long the engine took.
_LEAST_SHARE = 0.5


@final
class ConfinedExecutable(Executable):
    """A region on the fallback, in a child under the limits of a call."""

    def __init__(
        self,
        reference: str,
        region: Graph,
        device: Device,
        limits: ChildLimits,
        stopped: EngineError,
    ) -> None:
        self._asked = reference, region, device, Config()
        self._limits = limits
        self._stopped = stopped
        self._contact: Contact | None = None

    @property
    def is_reentrant(self) -> bool:
        """A child does one job at a time."""
        return False

    def start(self, inputs: Sequence[Held], taken: float) -> None:
        """Run for the first time, after an engine took so many seconds to meet its limit."""
        arrays = [fetched(value) for value in inputs]
        seconds = self._limits.seconds
        left = replace(self._limits, seconds=max(seconds - taken, _LEAST_SHARE * seconds))
        answer = first_contact(*self._asked, arrays, left)
        if isinstance(answer, Refusal):
            raise self._error(answer)
        self._contact = answer

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run in the child."""
        if self._contact is None:
            self.start(inputs, 0.0)
        assert self._contact is not None
        arrays = [fetched(value) for value in inputs]
        outputs = rerun(self._contact, arrays, self._limits)
        if isinstance(outputs, Refusal):
            raise self._error(outputs)
        return list(outputs)

    def _error(self, refusal: Refusal) -> Exception:
        error = BY_CODE[refusal.code](refusal.reason, refusal.suggestion)
        if not isinstance(error, STOPPED):
            return error
        return BudgetError(
            f"{self._stopped.reason} {error.reason} Raise memory_limit or deadline, or check the "
            "inputs that decide sizes and rounds."
        )


def confined(
    reference: str,
    region: Graph,
    device: Device,
    limits: ChildLimits,
    inputs: Sequence[Held],
    stopped: EngineError,
    since: float,
) -> Executable:
    """Start a region on the fallback in a child; ``since`` is when the engine was asked."""
    executable = ConfinedExecutable(reference, region, device, limits, stopped)
    executable.start(inputs, time.monotonic() - since)
    return executable
