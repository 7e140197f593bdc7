"""What several families need to say in ops of ours."""

from __future__ import annotations

from fusewire import dtypes
from fusewire.ir.graph import Value
from fusewire.ops import conversion, movement


def scalar(x: Value | None) -> Value | None:
    """Give a tensor of one element as a scalar: files say conditions and counts either way."""
    if x is None or x.tensor.rank == 0:
        return x
    return movement.reshape(x, shape=())


def cast(x: Value, to: dtypes.DType) -> Value:
    """Convert unless it is of the dtype already."""
    return x if x.tensor.dtype is to else conversion.cast(x, dtype=to)
