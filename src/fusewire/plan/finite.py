"""Look whether the floats of a call are all finite, without an array of their size.

Where an engine's own nodes may lose a NaN or an infinity, a plan looks at its inputs once per call.
A sum of squares is one pass: where it is finite, so is all of the input. It says nothing where it
is not, since large numbers overflow, and only then each element counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy import ndarray

from fusewire.ir.graph import Array, Value
from fusewire.ir.types import OptionalType, SequenceType, Type
from fusewire.plan.transfer import to_host

# What is said of a plan that looks at its inputs.
LOST_INSIDE = (
    "A NaN or an infinity that arises inside, from finite inputs, may be lost there: "
    'nan="exact" forbids that.'
)
_vdot = np.vdot
# Elements of which a mask is made at once.
_PIECE = 1 << 16


def holds_floats(type_: Type) -> bool:
    """Tell whether values of a type may have a NaN or an infinity."""
    if isinstance(type_, SequenceType | OptionalType):
        return holds_floats(type_.element)
    return type_.dtype.is_float or type_.dtype.is_complex


def float_places(values: Iterable[tuple[int, Value]], takes: int) -> tuple[int, ...]:
    """List the places of the inputs of a run, the first ``takes`` values, that hold floats."""
    places = (at for at, value in values if at < takes and holds_floats(value.type))
    return tuple(dict.fromkeys(places))


def are_finite(values: Sequence[Any], places: Sequence[int]) -> bool:
    """Tell whether the values at these places have neither a NaN nor an infinity."""
    for place in places:
        value = values[place]
        is_plain = type(value) is ndarray and value.dtype.char in "fd"
        if is_plain and value.flags.c_contiguous and isfinite(_vdot(value, value)):
            continue
        if not is_finite(value):
            return False
    return True


def is_finite(value: Any) -> bool:
    """Tell whether a value of any form has neither a NaN nor an infinity; exact."""
    if value is None:
        return True
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    array: Array = np.asarray(to_host(value))
    if array.dtype.kind in "biuOSUT":
        return True
    # Pieces of an array of any strides, each a view or a copy of a few elements.
    pieces = np.nditer(
        array, ["external_loop", "buffered", "zerosize_ok"], order="K", buffersize=_PIECE
    )
    return all(bool(np.isfinite(piece).all()) for piece in pieces)
