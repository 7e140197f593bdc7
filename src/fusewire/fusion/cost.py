"""The cost of a kernel: bytes moved, launches, and arithmetic.

Fusion asks whether one kernel costs less than two; whoever knows a device better gives another
function of ``Work``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

# A launch, and a cheap operation on one element, in bytes that could be moved meanwhile.
LAUNCH_BYTES = 1 << 18
FLOP_BYTES = 0.05


@dataclass(frozen=True)
class Work:
    """What some kernels do."""

    bytes: int
    launches: int = 1
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes + other.bytes, self.launches + other.launches, self.flops + other.flops
        )


Cost: TypeAlias = Callable[[Work], float]


def bytes_and_launches(work: Work) -> float:
    """Count bytes, with launches and operations in the bytes that take as long."""
    return work.bytes + LAUNCH_BYTES * work.launches + FLOP_BYTES * work.flops


@dataclass(frozen=True)
class KernelLimits:
    """What one kernel may hold at most."""

    nodes: int = 64
    buffers: int = 8
    local_bytes: int = 16 * 1024
    row: int = 1 << 16
