"""What the Triton backend refuses, and why, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fusewire.backends.triton.expressions import lacks
from fusewire.backends.triton.outside import call_refusal
from fusewire.backends.triton.storage import STORAGES
from fusewire.dtypes import DType
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.analysis import walk
from fusewire.kernel.form import BufferStore, Compute, Fold, Kernel, Loop
from fusewire.kernel.lower.table import expansion_refusal
from fusewire.kernel.lower.table import refusal as no_kernel
from fusewire.kernel.outside import TritonKernel
from fusewire.kernel.refusal import PrintCheck, print_refusal
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

# Indices are printed in 32 bits.
_MOST = 1 << 31
_FREE = frozenset(("reshape", "transpose", "broadcast_to", "slice", "concat", "pad"))


# Kernels that packages bring for their ops.
OutsideKernels = Mapping[str, TritonKernel]


def refusal(node: Node, outside: OutsideKernels) -> str | None:
    """Answer None for a node, or a composite all parts of which are taken; else why it is not."""
    found = (_type_refusal(node, value) for value in (*node.operands, *node.outputs))
    return next(filter(None, found), None) or expansion_refusal(
        node, lambda part: primitive_refusal(part, outside)
    )


def primitive_refusal(node: Node, outside: OutsideKernels) -> str | None:
    """Answer None for a node that has a kernel here, else why it has none."""
    if node.op in outside:
        return call_refusal(node, outside[node.op])
    reason = no_kernel(node)
    if reason is not None:
        return reason
    for value in (*node.operands, *node.outputs):
        if (found := _type_refusal(node, value)) is not None:
            return found
    if get_op(node.op).is_(Trait.ELEMENTWISE):
        first = node.operands[0].tensor.dtype
        return _sentence(lacks(node.op, first))
    return None if node.op in _FREE else print_refusal(node, _TritonCheck())


def _sentence(reason: str | None) -> str | None:
    return None if reason is None else f"In Triton's language {reason}. Run it elsewhere."


def _type_refusal(node: Node, value: Value) -> str | None:
    if not isinstance(value.type, TensorType):
        return f"Kernels work on tensors, and {node.op} has {value.type}."
    of = value.type.dtype
    if of.name not in STORAGES:
        return (
            f"Triton's kernels do not compute in {of.name}: they take bool, integers of 8 to 64 "
            f"bits, float16, bfloat16, float32 and float64."
        )
    size = math.prod(dim for dim in value.type.shape if isinstance(dim, int))
    if size >= _MOST:
        return f"{value.type} has {size:,} elements, and places are counted in 32 bits."
    return None


@final
@dataclass(frozen=True)
class _TritonCheck(PrintCheck):
    """Looks up all that kernels compute in the table of expressions."""

    def refusal(self, node: Node, kernels: Sequence[Kernel]) -> str | None:
        """Answer None if the table has all of it, else what is missing."""
        return next(filter(None, map(_kernel_refusal, kernels)), None)


def _kernel_refusal(kernel: Kernel) -> str | None:
    dtypes = {s.dtype.name for s in walk(kernel.body) if isinstance(s, Compute)}
    if strange := sorted(dtypes - set(STORAGES)):
        return f"Triton's kernels do not compute in {', '.join(strange)}."
    types: dict[str, DType] = {}
    for statement in walk(kernel.body):
        if isinstance(statement, Fold):
            types.update(zip(statement.names, statement.dtypes, strict=True))
        elif isinstance(statement, Loop):
            types.update({carry.name: carry.dtype for carry in statement.carries})
        elif not isinstance(statement, BufferStore):
            types[statement.name] = statement.dtype
    for statement in walk(kernel.body):
        if isinstance(statement, Compute):
            found = lacks(statement.op, types[statement.operands[0]])
            if found is not None:
                return _sentence(found)
    return None
