"""Known errors of the Inductor backend in what it claims."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.contract.backend import Gap

GAPS: Sequence[Gap] = ()
