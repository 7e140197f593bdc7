"""The limits of a child process."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.ops.limits import RunLimits
from fusewire.process.procfs import quarter_of_machine


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one job: seconds, and resident bytes (None: a quarter of the machine's memory)."""

    seconds: float = 60.0
    memory_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The limit in bytes."""
        return self.memory_bytes or quarter_of_machine()

    @property
    def run_limits(self) -> RunLimits:
        """The same limits, for what the interpreter runs in this process."""
        return RunLimits(self.seconds, self.most_bytes)
