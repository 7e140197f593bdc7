"""Where each operand's element lies for an output's element, with as few axes as possible.

Axes that all operands walk alike are merged, so most kernels need no division at all, and shapes
are parameters: one kernel serves every shape that merges to as many axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fusewire.ir.graph import Node

Walk = Literal["same", "first", "strided"]
Ints = tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """Elements of one operand: the first one's place, and steps along the output's axes."""

    steps: Ints
    start: int = 0

    def walk(self, dims: Ints) -> Walk:
        """Tell how the operand is walked over an output of these dims."""
        if self.start == 0 and self.steps == row_major(dims):
            return "same"
        return "strided" if self.start or any(self.steps) else "first"


def row_major(shape: Sequence[int]) -> Ints:
    """Give the steps of a dense tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def accesses(node: Node, operands: Sequence[Ints], shape: Ints) -> list[Access]:
    """Find how a node reads operands of these shapes to make an output of that shape."""
    if node.op == "transpose":
        steps = row_major(operands[0])
        return [Access(tuple(steps[axis] for axis in _ints(node, "perm")))]
    if node.op == "slice":
        steps = row_major(operands[0])
        start = sum(n * step for n, step in zip(_ints(node, "starts"), steps, strict=True))
        strides = zip(_ints(node, "strides"), steps, strict=True)
        return [Access(tuple(n * step for n, step in strides), start)]
    return [_broadcast(operand, shape) for operand in operands]


def _ints(node: Node, key: str) -> Ints:
    attr = node.attrs[key]
    assert isinstance(attr, tuple)
    found = tuple(n for n in attr if isinstance(n, int))
    assert len(found) == len(attr), f"{node!r} needs {key} of ints"
    return found


def _broadcast(operand: Ints, shape: Ints) -> Access:
    padded = (1,) * (len(shape) - len(operand)) + operand
    steps = zip(padded, row_major(padded), strict=True)
    return Access(tuple(0 if dim == 1 else step for dim, step in steps))


def merged(shape: Ints, found: Sequence[Access]) -> tuple[Ints, list[Access]]:
    """Drop axes of size 1 and merge neighbours that every operand walks as one."""
    kept: list[int] = []
    steps: list[list[int]] = [[] for _ in found]
    for axis, dim in enumerate(shape):
        if dim == 1:
            continue
        here = [access.steps[axis] for access in found]
        if kept and all(s[-1] == step * dim for s, step in zip(steps, here, strict=True)):
            kept[-1] *= dim
            for s, step in zip(steps, here, strict=True):
                s[-1] = step
        else:
            kept.append(dim)
            for s, step in zip(steps, here, strict=True):
                s.append(step)
    ends = zip(steps, found, strict=True)
    return tuple(kept), [Access(tuple(s), access.start) for s, access in ends]
