"""What ONNX Runtime is known to get wrong, and no dtype, attribute or shape foretells."""

from __future__ import annotations

from fusewire.backend import Gap

_FAR = "Its error is that of numbers near 1: what is nearly 0 has few right digits"
GAPS: tuple[Gap, ...] = (
    Gap("sigmoid", "upstream", f"{_FAR}, 0.003 about 17 bits of 24.", "float32"),
    Gap("sigmoid", "upstream", f"{_FAR}.", "float64"),
    Gap("sigmoid", "upstream", "Of -80 it gives 0, where bfloat16 has digits.", "bfloat16"),
    Gap("cos", "upstream", f"{_FAR}.", "float64"),
)
