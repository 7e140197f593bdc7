"""What Triton claims and gets wrong."""

from __future__ import annotations

from fusewire.backend import Gap

GAPS: tuple[Gap, ...] = ()
