"""Known errors of the reference beyond the bound of an op."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
