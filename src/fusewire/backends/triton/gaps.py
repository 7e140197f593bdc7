"""What Triton claims and gets wrong."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
