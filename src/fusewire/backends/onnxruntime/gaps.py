"""Known errors of ONNX Runtime that no dtype, attribute or shape predicts."""

from __future__ import annotations

from fusewire.contract.backend import Gap

GAPS: tuple[Gap, ...] = ()
