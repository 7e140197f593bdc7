"""Known errors of the PyTorch backend in what it claims."""

from __future__ import annotations

from collections.abc import Sequence

from fusewire.contract.backend import Gap

_GELU = "PyTorch's kernel gives NaN for infinity (2.13)."
GAPS: Sequence[Gap] = tuple(
    Gap("gelu", "upstream", _GELU, dtype) for dtype in ("bfloat16", "float32")
)
