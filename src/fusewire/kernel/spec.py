"""What a fused operation needs of a device, as far as known before compilation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusewire.kernel.analysis import shape_of, walk
from fusewire.kernel.form import BufferLoad, BufferStore, Fold, Kernel, KernelBuffer, Loop, Lowered

# Points that a group of invocations computes, for kernels that say nothing else.
GROUP = 256
TILE = 16


@dataclass(frozen=True)
class KernelSpec:
    """One kernel: buffers, bytes that it needs beside them, and a block to begin with.

    ``register_bytes`` counts every scalar of a body as if all were alive at once.
    """

    name: str
    inputs: tuple[KernelBuffer, ...]
    outputs: tuple[KernelBuffer, ...]
    temporary_bytes: int
    register_bytes: int
    block: tuple[int, ...]
    flags: tuple[str, ...]


def spec_of(kernel: Kernel) -> KernelSpec:
    """Describe a kernel."""
    scalars = [s for s in walk(kernel.body) if not isinstance(s, Fold | Loop | BufferStore)]
    flags: list[str] = [shape_of(kernel)]
    guarded = (s for s in walk(kernel.body) if isinstance(s, BufferLoad | BufferStore))
    flags += ["guarded"] if any(s.guard for s in guarded) else []
    flags += ["repeated"] if kernel.steps else []
    return KernelSpec(
        kernel.name,
        kernel.reads,
        kernel.writes,
        sum(map(bytes_of, kernel.locals)),
        sum(s.dtype.itemsize for s in scalars),
        _block(kernel),
        tuple(flags),
    )


def temporary_bytes(region: Lowered) -> int:
    """Count the bytes of what is stored between kernels."""
    given = {*region.inputs, *region.outputs, *region.constants}
    return sum(bytes_of(b) for name, b in region.buffers.items() if name not in given)


def bytes_of(buffer: KernelBuffer) -> int:
    """Count the bytes of a buffer."""
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def _block(kernel: Kernel) -> tuple[int, ...]:
    """Suggest how many invocations work together."""
    shape = shape_of(kernel)
    if shape == "contraction":
        return (TILE, TILE)
    if shape == "rows":
        rows = [
            math.prod(a.extent for a in s.axes) for s in kernel.body if isinstance(s, Fold | Loop)
        ]
        return (min(GROUP, 1 << max(max(rows, default=1) - 1, 0).bit_length()),)
    points = math.prod(axis.extent for axis in kernel.axes)
    return (min(GROUP, max(points, 1)),)
