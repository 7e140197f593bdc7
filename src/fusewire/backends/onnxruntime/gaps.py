"""What ONNX Runtime is known to get wrong, and no dtype, attribute or shape foretells."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
