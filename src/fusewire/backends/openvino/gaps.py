"""What OpenVINO is known to get wrong though it is claimed. A gap that passes fails the suite."""

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
