"""The loop-level form of a fused region: plain data that says everything a kernel does.

A ``Kernel`` runs its body once for every point of its axes, in any order or all at once. The body
is a list of statements over scalars; each scalar is named once and has a dtype. Loads and stores
say by ``Index`` where an element lies, so views, broadcasts, transposes, slices, pads and concats
are no statements at all. A ``Fold`` combines over axes of its own, a ``Loop`` runs over them:
softmax is three stages under one row, fold, fold, loop. A ``Lowered`` region is kernels in a line;
each sees what those before it stored.

Scalar ops are the elementwise primitives of ``fusewire.ops``, by name: a printer has one expression
for each, and what they mean is written there. docs/kernel.md tells the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import TypeAlias

from fusewire.dtypes import DType, bool_
from fusewire.ir.graph import Attr, Constant
from fusewire.kernel.index import Axis, Index

# Two-operand ops that a fold or a store may combine by. ``argmax`` and ``argmin`` fold pairs.
Combine: TypeAlias = OneOf[
    "add", "multiply", "maximum", "minimum", "logical_or", "logical_and", "argmax", "argmin"
]
Number: TypeAlias = bool | int | float | complex


@dataclass(frozen=True)
class KernelBuffer:
    """Memory of a dense tensor, row-major. A local one belongs to one point of a kernel's axes."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Bound:
    """low <= index < high."""

    index: Index
    low: int
    high: int


# All bounds hold; () always does.
Guard: TypeAlias = tuple[Bound, ...]


@dataclass(frozen=True)
class BufferLoad:
    """Read an element; where the guard does not hold nothing is read, and the value is 0."""

    name: str
    dtype: DType
    buffer: str
    index: tuple[Index, ...]
    guard: Guard = ()


@dataclass(frozen=True)
class Literal:
    """A number."""

    name: str
    dtype: DType
    value: Number


@dataclass(frozen=True)
class Place:
    """An index as an integer value."""

    name: str
    dtype: DType
    index: Index


@dataclass(frozen=True)
class Holds:
    """Whether a guard holds."""

    name: str
    guard: Guard

    @property
    def dtype(self) -> DType:
        return bool_


@dataclass(frozen=True)
class Compute:
    """An elementwise primitive of ``fusewire.ops`` on scalars."""

    name: str
    dtype: DType
    op: str
    operands: tuple[str, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()


@dataclass(frozen=True)
class Fold:
    """Run the body over all points of the axes, and combine its value; none gives the identity.

    ``argmax`` and ``argmin`` have two values and two names: the largest (smallest) first value, and
    the second value of the point that it is from, the earliest such in row-major order; NaN wins.
    """

    names: tuple[str, ...]
    dtypes: tuple[DType, ...]
    combine: Combine
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Carry:
    """What a loop hands from one point to the next: ``start`` for the first, then ``next``."""

    name: str
    dtype: DType
    start: str
    next: str


@dataclass(frozen=True)
class Loop:
    """Run the body over all points of the axes; in row-major order if it is ordered."""

    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    ordered: bool = False
    carries: tuple[Carry, ...] = ()


@dataclass(frozen=True)
class BufferStore:
    """Write an element where the guard holds; with ``combine``, of what is there and the value."""

    buffer: str
    index: tuple[Index, ...]
    value: str
    guard: Guard = ()
    combine: Combine | None = None


Scalar: TypeAlias = BufferLoad | Literal | Place | Holds | Compute
Statement: TypeAlias = Scalar | Fold | Loop | BufferStore


@dataclass(frozen=True)
class OutsideCall:
    """A kernel that a package brought for its op, on whole tensors: all it does is in its source.

    ``digest`` tells that source from others. Operands and results have the shapes of the node.
    """

    op: str
    digest: str
    operands: tuple[KernelBuffer, ...]
    results: tuple[KernelBuffer, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()


@dataclass(frozen=True)
class Kernel:
    """The body runs once for every point of the axes; points know nothing of one another.

    Statements of the body itself are stages: each sees all that those before it stored in locals.
    ``steps`` are axes of repeats around the kernel: numbers that are given with a launch. A kernel
    with a ``call`` has neither axes nor body.
    """

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]
    reads: tuple[KernelBuffer, ...]
    writes: tuple[KernelBuffer, ...]
    locals: tuple[KernelBuffer, ...] = ()
    steps: tuple[Axis, ...] = ()
    call: OutsideCall | None = None

    def buffer(self, name: str) -> KernelBuffer:
        """Find a buffer by name."""
        return next(b for b in (*self.reads, *self.writes, *self.locals) if b.name == name)


@dataclass(frozen=True)
class Repeat:
    """Run kernels in a line, once for each step, in order."""

    step: Axis
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Lowered:
    """A region as kernels in a line.

    ``inputs`` and ``outputs`` name buffers in the order of the graph's; outputs are never inputs.
    Buffers that are neither those nor constants are temporaries.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: Mapping[str, KernelBuffer]
    constants: Mapping[str, Constant]
    steps: tuple[Kernel | Repeat, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, those of repeats once."""
        found: list[Kernel] = []
        for step in self.steps:
            found += step.kernels if isinstance(step, Repeat) else (step,)
        return tuple(found)


def identity(combine: Combine, of: DType) -> bool | int | float:
    """Give the number that changes nothing when it is combined."""
    if of.kind == "bool":
        return combine in ("logical_and", "minimum", "multiply")
    if combine in ("maximum", "minimum"):
        if of.is_float:
            return float("-inf") if combine == "maximum" else float("inf")
        return of.range[0 if combine == "maximum" else 1]
    return 1 if combine == "multiply" else 0
