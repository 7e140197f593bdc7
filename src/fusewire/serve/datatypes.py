"""Names that the Open Inference Protocol has for dtypes, and tensors as its bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import chain, takewhile
from math import prod
from typing import Any

import numpy as np

from fusewire.dtypes import DType, dtype, string
from fusewire.errors import RequestError
from fusewire.ir.graph import Array

_PROTOCOL_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    "string": "BYTES",
}
DATATYPES: Mapping[str, DType] = {name: dtype(own) for own, name in _PROTOCOL_NAMES.items()}
_LENGTH = struct.Struct("<I")
_VIEWED_BYTES = 1 << 16
# Lists within lists: NumPy has no more dims.
_DEEPEST = 65
# Of JSON, where a float may stand.
_INTEGERS = (-(1 << 63), (1 << 64) - 1)


def datatype_of(own: str) -> str:
    """Name a dtype as the protocol does; the name of ours if it has none."""
    return _PROTOCOL_NAMES.get(own, own)


def read_raw(raw: memoryview, of: DType, shape: tuple[int, ...], count: int) -> Array:
    """Read a tensor from its bytes, which it goes on using; strings are copied."""
    if of is string:
        return _read_strings(raw, count).reshape(shape)
    array = np.frombuffer(raw, of.numpy).reshape(shape)
    if of.kind == "bool" and count and array.view(np.uint8).max() > 1:
        raise RequestError("A BOOL tensor has a byte that is neither 0 nor 1.")
    return array


def _read_strings(raw: memoryview, count: int) -> Array:
    """Read elements that each begin with their length in 4 bytes."""
    found = np.empty(count, object)
    at = 0
    for place in range(count):
        if at + 4 > len(raw):
            raise RequestError(f"A BYTES tensor ends after {place} of {count} elements.")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += 4
        if at + length > len(raw):
            raise RequestError(f"Element {place} of a BYTES tensor is longer than the tensor.")
        try:
            found[place] = str(raw[at : at + length], "utf-8")
        except UnicodeDecodeError:
            raise RequestError(f"Element {place} of a BYTES tensor is not UTF-8.") from None
        at += length
    if at != len(raw):
        raise RequestError(f"A BYTES tensor has {len(raw) - at} bytes after its last element.")
    return found


def write_raw(array: Array) -> bytes:
    """Write a tensor as its bytes, in the order of its elements."""
    if array.dtype != object:
        return array.tobytes()
    parts = [str(item).encode() for item in array.flat]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def raw_view(array: Array) -> bytes | memoryview:
    """Give the bytes of a tensor, without a copy if there are many of them in one piece."""
    if array.nbytes < _VIEWED_BYTES or not array.flags.c_contiguous:
        return array.tobytes()
    # A view as bytes: ml_dtypes arrays do not support the buffer protocol.
    return array.reshape(-1).view(np.uint8).data


def read_listed(data: Any, of: DType, shape: tuple[int, ...], count: int, name: str) -> Array:
    """Read a tensor from numbers, strings or booleans in lists, nested or flat.

    Nothing is made of them before their number and their kind are known to be right.
    """
    flat = _flattened(data, shape, count, name)
    kinds = set(map(type, flat))
    if not kinds <= _listed_kinds(of):
        raise RequestError(f"The data of {name} are not all {datatype_of(of.name)}.")
    if of is string:
        return _strings(flat, name).reshape(shape)
    if int in kinds:
        _check_range(flat, of, name)
    is_float = float in _listed_kinds(of)
    with np.errstate(over="ignore"):
        listed = np.array(flat, np.float64 if is_float else of.numpy)
        return listed.astype(of.numpy, copy=False).reshape(shape)


def _flattened(data: Any, shape: tuple[int, ...], count: int, name: str) -> list[Any]:
    """Return the elements of lists that are as long as each other, if there are so many."""
    if not isinstance(data, list):
        raise RequestError(f"The data of {name} are not a list.")
    # Without elements, there may be as many lists as the shape has rows.
    most = prod(takewhile(bool, shape))
    flat: list[Any] = [data]
    for _ in range(_DEEPEST):
        kinds = set(map(type, flat))
        if list not in kinds:
            break
        lengths = set(map(len, flat)) if kinds == {list} else set[int]()
        if len(lengths) != 1:
            raise RequestError(f"The data of {name} are not a tensor: lists differ in length.")
        size = len(flat) * lengths.pop()
        if size > most:
            raise RequestError(f"The data of {name} have {size} elements, not {count}.")
        flat = list(chain.from_iterable(flat))
    if len(flat) != count:
        raise RequestError(f"The data of {name} have {len(flat)} elements, not {count}.")
    return flat


def _listed_kinds(of: DType) -> set[type]:
    """Return the types of Python that elements of a dtype are sent as."""
    if of is string:
        return {str}
    if of.kind == "bool":
        return {bool}
    return {int} if of.is_integer else {int, float}


def _check_range(flat: list[Any], of: DType, name: str) -> None:
    """Refuse integers that a dtype does not hold; those of floats have 64 bits at most."""
    least, most = of.range if of.is_integer else _INTEGERS
    integers = flat if of.is_integer else [item for item in flat if type(item) is int]
    if min(integers) < least or max(integers) > most:
        where = of.name if of.is_integer else "an integer of 64 bits"
        raise RequestError(f"The data of {name} have a number that {where} does not hold.")


def _strings(flat: list[str], name: str) -> Array:
    try:
        "".join(flat).encode()
    except UnicodeEncodeError:
        raise RequestError(f"The data of {name} have half of a surrogate pair.") from None
    array = np.empty(len(flat), object)
    array[:] = flat
    return array


def write_listed(array: Array) -> Array | list[str]:
    """Give a tensor as what orjson writes as a flat list; ValueError if JSON cannot hold it."""
    if array.dtype == object:
        return [str(item) for item in array.flat]
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError("NaN and infinity are not numbers of JSON")
    return np.ascontiguousarray(array).reshape(-1)
