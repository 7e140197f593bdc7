"""What this backend claims and gets wrong."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.contract.backend import Gap

GAPS: Sequence[Gap] = ()
