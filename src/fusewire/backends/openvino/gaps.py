"""Known errors of OpenVINO in what it claims. A gap that passes fails the suite."""

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
