"""The table of functions that replace NumPy's while tracing, and what its rows share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fusewire.dtypes import DType, dtype

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

# NumPy's functions on traced arrays, which its types do not cover.
xp: Any = np

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True)
class Replacement:
    """The replacement of a function: called with the recording, then with its arguments.

    Known arrays go to NumPy itself, unless the row returns views or writes into arguments.
    """

    handler: Callable[..., Any]
    takes_known: bool


class Table:
    """The rows of one module."""

    def __init__(self) -> None:
        self.rows: dict[Any, Replacement] = {}

    def row(self, *functions: Any, takes_known: bool = False) -> Callable[[Handler], Handler]:
        """Register a handler for functions."""

        def put(handler: Handler) -> Handler:
            for function in functions:
                assert function not in self.rows, f"{function} has two rows"
                self.rows[function] = Replacement(handler, takes_known)
            return handler

        return put


def promoted(arrays: Iterable[Tracer]) -> DType:
    """Return the dtype to which NumPy would promote arrays."""
    return dtype(np.result_type(*(a.weak(0) if a.weak else a.dtype for a in arrays)))


def strong(trace: Recording, x: Any) -> Tracer:
    """Convert an array as non-ufuncs do: Python numbers get NumPy's default dtypes."""
    array = trace.array(x)
    return (
        trace.array(array.known, array.dtype) if array.weak and array.known is not None else array
    )


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """Normalize an axis argument to axes from 0 up; None means all."""
    if axis is None:
        return tuple(range(rank))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(axis_of(item, rank) for item in axes)


def axis_of(axis: Any, rank: int) -> int:
    """Normalize an axis to 0 <= axis < rank."""
    place = axis.__index__()
    if not -rank <= place < rank:
        raise np.exceptions.AxisError(place, rank)
    return int(place % rank)


def result_dtype(function: Any, x: Tracer, *args: Any, **options: Any) -> DType:
    """Ask NumPy for the dtype of a result, by an array of one element."""
    return dtype(np.asarray(function(np.ones((1,), x.dtype), *args, **options)).dtype)


def is_given(x: Any) -> bool:
    """Return whether an optional argument of NumPy was given."""
    return x is not None and x is not np._NoValue


def flag(given: Any) -> bool:
    """Read an optional bool argument of NumPy."""
    return is_given(given) and bool(given)
