"""Tensors in the columns of Arrow tables.

Read are numbers, strings, lists of one length, nested or not, and tensors of fixed shape: Arrow's
own type and Ray's. Written are plain columns for outputs of one number per row, and else Arrow's
fixed-shape tensors, which readers that do not know the type see as lists.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from fusewire.errors import JobError


def to_array(name: str, column: Any) -> Any:
    """Return a column as an array, rows first; JobError for what is not a tensor."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0)
    shape: tuple[int, ...] = ()
    permutation: list[int] | None = None
    if isinstance(column, pa.ExtensionArray):
        shape = tuple(getattr(column.type, "shape", ()))
        # Of the axes as they are stored: those of the tensor are in another order.
        permutation = getattr(column.type, "permutation", None)
        column = column.storage
    count, dims = len(column), []
    _refuse_nulls(name, column)
    while not _is_plain(column.type):
        if not _is_list(column.type):
            raise JobError(
                f"The column {name!r} has the type {column.type}. An input is read from numbers, "
                "strings, lists of them of one length, or tensors of fixed shape."
            )
        column, length = _opened(name, column)
        dims.append(length)
    flat = column.to_numpy(zero_copy_only=False)
    if shape and math.prod(shape) == math.prod(dims):
        dims = list(shape)
    array = flat.reshape(count, *dims)
    return array.transpose(0, *(axis + 1 for axis in permutation)) if permutation else array


def to_column(name: str, array: Any) -> Any:
    """Return an array as a column, one row for each along axis 0; JobError if Arrow has no type."""
    if array.dtype.kind not in "biufO" or array.dtype.name == "bfloat16":
        raise JobError(
            f"The output {name} has {array.dtype} elements, for which Arrow has no type. Cast it "
            "in the model."
        )
    rows, shape = len(array), array.shape[1:]
    is_text = array.dtype == object
    flat = pa.array(array.reshape(-1), pa.string() if is_text else None)
    if not shape:
        return flat
    size = math.prod(shape)
    if size == 0 or rows == 0:
        raise JobError(f"The output {name} has rows without elements: {list(array.shape)}.")
    lists = pa.FixedSizeListArray.from_arrays(flat, size)
    if is_text:
        return lists
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, shape), lists)


def _is_plain(type_: Any) -> bool:
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    return bool(is_number or is_text or pa.types.is_boolean(type_))


def _is_list(type_: Any) -> bool:
    kinds = pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list
    return any(kind(type_) for kind in kinds)


def _opened(name: str, column: Any) -> tuple[Any, int]:
    """Return what lists hold, and their length; JobError if they have several lengths."""
    if pa.types.is_fixed_size_list(column.type):
        length = column.type.list_size
    else:
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise JobError(
                f"Lists in the column {name!r} have {lengths[0]} to {lengths[-1]} elements. A "
                "batch needs rows of one shape: pad them, or sort the table by length."
            )
        length = int(lengths[0]) if len(lengths) else 0
    held = column.flatten()
    _refuse_nulls(name, held)
    return held, length


def _refuse_nulls(name: str, column: Any) -> None:
    if column.null_count:
        raise JobError(
            f"The column {name!r} has {column.null_count} missing values, and an input has none. "
            "Fill or drop those rows."
        )
