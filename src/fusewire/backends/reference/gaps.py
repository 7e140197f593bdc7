"""What the reference gets wrong, beyond the bound of the op."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
