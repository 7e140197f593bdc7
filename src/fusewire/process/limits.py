"""The limits of a child process."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusewire.ops.limits import RunLimits
from fusewire.system.hardware import quarter_of_machine

# How often a child holds weights at once: as it got them, compiled, and as an artifact. It was four
# times for ONNX Runtime and OpenVINO.
_COPIES = 5
# How many times as long compiling takes on a busy machine.
_BUSY = 3.0


@dataclass(frozen=True)
class ChildLimits:
    """Limits of one job: seconds, and bytes (None: a quarter of the machine's memory)."""

    seconds: float = 60.0
    memory_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The limit in bytes."""
        return self.memory_bytes or quarter_of_machine()

    def resident_bytes(self, given: int) -> int:
        """The most that a child may hold that was given so many bytes of weights and inputs.

        Without a limit of the caller's, what a model weighs is not held against it: engines hold
        weights several times while they compile.
        """
        return self.memory_bytes or quarter_of_machine() + _COPIES * given

    def with_compiling(self, seconds: float) -> ChildLimits:
        """Add time for an engine that says that it compiles for so long on an idle machine."""
        return replace(self, seconds=self.seconds + _BUSY * seconds) if seconds else self

    @property
    def run_limits(self) -> RunLimits:
        """The same limits, for what the interpreter runs in this process."""
        return RunLimits(self.seconds, self.most_bytes, self.memory_bytes)
