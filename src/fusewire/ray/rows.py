"""Rows of a table as arrays: what one row of an input is, and how a column becomes that input.

A row is what axis 0 of every input and output counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.errors import JobError
from fusewire.ir.types import TensorType, Type


@dataclass(frozen=True)
class RowType:
    """One row of an input: its dtype, its shape, and how many rows a call takes.

    A size that is open is None; ``count`` is None if a call takes any number of rows.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    count: int | None

    def __str__(self) -> str:
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.dtype.name}[{dims}]"

    def fit(self, column: str, array: Any, *, casts: bool = False) -> Any:
        """Return a column as the input takes it: rows first; JobError if it does not fit.

        Rows that are flat get the shape of the input if they have as many elements.
        """
        array = self._fit_dtype(column, stacked(column, array), casts)
        if self._is_fitting(array.shape[1:]):
            return array
        shape = self._filled(math.prod(array.shape[1:])) if array.ndim <= 2 else None
        if shape is None:
            raise JobError(
                f"A row of the column {column!r} has the shape {list(array.shape[1:])}, and one of "
                f"the input {self.name} is {self}. Store rows of that shape, or flat ones with as "
                "many elements."
            )
        return array.reshape(len(array), *shape)

    def _fit_dtype(self, column: str, array: Any, casts: bool) -> Any:
        if array.dtype == self.dtype:
            return array
        may_cast = np.can_cast(array.dtype, self.dtype, "same_kind")
        if casts and may_cast:
            return array.astype(self.dtype)
        advice = "Give cast='same_kind' (--cast)." if may_cast else "Convert the column."
        raise JobError(
            f"The column {column!r} has {array.dtype} elements, and the input {self.name} takes "
            f"{self.dtype.name}. {advice}"
        )

    def _is_fitting(self, shape: tuple[int, ...]) -> bool:
        pairs = zip(self.shape, shape, strict=False)
        return len(shape) == len(self.shape) and all(a in (None, b) for a, b in pairs)

    def _filled(self, elements: int) -> tuple[int, ...] | None:
        """Fill in the one open size that so many elements need; None if there is no one way."""
        known = math.prod(dim for dim in self.shape if dim is not None)
        if self.shape.count(None) > 1 or known == 0 or elements % known:
            return None
        if None not in self.shape and elements != known:
            return None
        return tuple(elements // known if dim is None else dim for dim in self.shape)


def stacked(column: str, array: Any) -> Any:
    """Return rows as one array; JobError if they have several shapes."""
    array = np.asarray(array)
    if array.dtype != object or not len(array) or isinstance(array.flat[0], str):
        return array
    try:
        return np.stack([np.asarray(row) for row in array])
    except ValueError:
        shapes = sorted({np.shape(row) for row in array})[:3]
        raise JobError(
            f"Rows of the column {column!r} have several shapes: {', '.join(map(str, shapes))}. "
            "A batch needs rows of one shape: pad them, or sort the table by length."
        ) from None


def row_types(inputs: Mapping[str, Type]) -> dict[str, RowType]:
    """Return what a row of each input is; JobError if the model does not take rows."""
    rows = {name: _row_type(name, type_) for name, type_ in inputs.items()}
    counts = {row.count for row in rows.values()}
    if len(counts) > 1:
        shown = ", ".join(f"{name} {row.count or 'any'}" for name, row in rows.items())
        raise JobError(
            f"The inputs take different numbers of rows in a call ({shown}), so that a table "
            "cannot be cut into batches for them."
        )
    if not rows:
        raise JobError("The model has no inputs, so that a table cannot be mapped through it.")
    return rows


def _row_type(name: str, type_: Type) -> RowType:
    if not isinstance(type_, TensorType) or type_.rank == 0:
        raise JobError(
            f"The input {name} is {type_}. A table can be mapped through a model whose inputs are "
            "tensors with rows along axis 0."
        )
    first, *rest = (dim if isinstance(dim, int) else None for dim in type_.shape)
    if first == 0:
        raise JobError(f"The input {name} is {type_}, which takes no rows.")
    return RowType(name, type_.dtype.numpy, tuple(rest), first)
