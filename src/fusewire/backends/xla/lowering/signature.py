"""The signature of a lowering: from a node and its operands as jax arrays to its outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType

# Called with the node and its operands, None where one is absent; gives an array, or a tuple.
Lower: TypeAlias = Callable[..., Any]

# float32 means float32: no engine may round what is multiplied to fewer bits.
PRECISION = lax.Precision.HIGHEST


def plain(function: Callable[..., Any]) -> Lower:
    """Lower by a function of the operands alone."""
    return lambda node, *operands: function(*operands)


def with_attrs(function: Callable[..., Any]) -> Lower:
    """Lower by a function of the operands and, by name, the attributes."""
    return lambda node, *operands: function(*operands, **node.attrs)


def output(node: Node, index: int = 0) -> TensorType:
    """Give the type of an output."""
    return node.outputs[index].tensor


def shape_of(node: Node, index: int = 0) -> tuple[int, ...]:
    """Give the shape of an output, which is known when a program is traced."""
    return tuple(int(dim) for dim in output(node, index).shape)  # type: ignore[arg-type] # static here


def places(indices: Traced, count: int) -> Traced:
    """Bring indices to 0 .. count - 1; negative ones count from the end."""
    # 32 bits address all but the longest axes, and are what CPUs gather with fastest.
    wide = indices.astype(np.int32 if count < 2**31 else np.int64)
    return jnp.where(wide < 0, wide + count, wide)
