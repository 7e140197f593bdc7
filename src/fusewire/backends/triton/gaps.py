"""Known errors of the Triton backend in what it claims."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
