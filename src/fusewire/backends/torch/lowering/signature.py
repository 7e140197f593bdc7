"""The signature of a lowering: from a node to the function that computes its outputs.

What attributes say is settled when a program is built, so that a call runs little but PyTorch's
own functions. Sizes that only a call knows are given to the function, behind the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fusewire.backends.torch.storage import Tensor
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType

# Called with the operands, None where one is absent; gives a tensor, or a tuple.
Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Sized:
    """A function that takes, behind the operands, the values of these dims as a tuple."""

    function: Function
    dims: tuple[Dim, ...]


Lower: TypeAlias = Callable[[Node], "Function | Sized"]


def plain(function: Function) -> Lower:
    """Lower by a function of the operands alone."""
    return lambda node: function


def with_attrs(make: Callable[..., Function]) -> Lower:
    """Lower by what is made of the attributes, given by name."""
    return lambda node: make(**node.attrs)


def sized(dims: Sequence[Dim], function: Function) -> Function | Sized:
    """Give a function its sizes now if all are known, and else at each call."""
    if not all(isinstance(dim, int) for dim in dims):
        return Sized(function, tuple(dims))
    fixed = tuple(dims)
    return lambda *operands: function(*operands, fixed)


def output(node: Node, index: int = 0) -> TensorType:
    """Give the type of an output."""
    return node.outputs[index].tensor


def operand(node: Node, index: int = 0) -> TensorType:
    """Give the type of an operand that is present."""
    value = node.inputs[index]
    assert value is not None
    return value.tensor


def places(indices: Tensor, count: int) -> Tensor:
    """Bring indices to 0 .. count - 1; negative ones count from the end."""
    wide = indices.to(torch.int64)
    return torch.where(wide < 0, wide + count, wide)


def is_whole(x: Tensor) -> bool:
    """Tell whether elements are integers."""
    return not (x.dtype.is_floating_point or x.dtype.is_complex or x.dtype == torch.bool)
