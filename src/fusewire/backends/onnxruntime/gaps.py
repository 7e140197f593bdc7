"""What ONNX Runtime is known to get wrong, and no dtype, attribute or shape foretells."""

from __future__ import annotations

from fusewire.backend import Gap

# The engine clamps x to 18 and errs by 2e-7: 1 / (1 + e^-x) of its own nodes is right, and takes
# two to three times as long (1.31.1, 100,000 to 1,000,000 elements).
GAPS: tuple[Gap, ...] = (
    Gap(
        "sigmoid",
        "upstream",
        "Its error is that of numbers near 1, so what is nearly 0 has few right digits.",
        "float32",
    ),
)
