"""Arguments of a call as arrays that engines take."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType


def plain(value: Value, argument: Any) -> Any:
    """Convert an argument for a tensor to an array of its dtype, in native byte order."""
    if not isinstance(value.type, TensorType):
        return argument
    wanted = value.type.dtype.numpy
    if isinstance(argument, np.ndarray | np.generic) and argument.dtype == wanted:
        return _as_truth(argument) if wanted == np.bool_ else argument
    array = as_array(argument)
    if array.dtype.kind in "OUST":
        return array
    return array.astype(wanted, casting="same_kind")


def as_array(argument: Any) -> Any:
    """Convert to an array; a tensor that cannot be one is a ShapeMismatchError."""
    try:
        return np.asarray(argument)
    except (TypeError, RuntimeError) as error:
        kind = type(argument)
        raise ShapeMismatchError(
            f"An argument is a {kind.__module__}.{kind.__name__} that NumPy cannot take: {error} "
            "Give an array, such as x.detach().float().numpy() of a PyTorch tensor."
        ) from None


def _as_truth(argument: Any) -> Any:
    """Copy booleans with bytes other than 0 and 1: engines compute with the bytes."""
    codes = argument.view(np.uint8)
    return codes != 0 if codes.size and codes.max() > 1 else argument
