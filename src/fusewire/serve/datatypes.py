"""Names that the Open Inference Protocol has for dtypes, and tensors as its bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
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
    """Read a tensor from numbers, strings or booleans in lists, nested or flat."""
    if of is string:
        return _listed_strings(data, count, name).reshape(shape)
    try:
        listed = np.array(data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise RequestError(f"The data of {name} are not a tensor: {error}.") from None
    if listed.size != count:
        raise RequestError(f"The data of {name} have {listed.size} elements, not {count}.")
    if count == 0:
        return np.empty(shape, of.numpy)
    kinds = "b" if of.kind == "bool" else "iu" if of.is_integer else "iuf"
    if listed.dtype.kind not in kinds:
        raise RequestError(f"The data of {name} are not all {datatype_of(of.name)}.")
    if of.is_integer and not _fits(listed, of):
        raise RequestError(f"The data of {name} have a number that {of.name} does not hold.")
    with np.errstate(over="ignore"):
        return listed.astype(of.numpy).reshape(shape)


def _fits(listed: Array, of: DType) -> bool:
    least, most = of.range
    return int(listed.min()) >= least and int(listed.max()) <= most


def _listed_strings(data: Any, count: int, name: str) -> Array:
    found: list[str] = []
    rest = [data]
    while rest:
        item = rest.pop()
        if isinstance(item, list):
            rest.extend(reversed(item))
        elif isinstance(item, str):
            found.append(item)
        else:
            raise RequestError(f"The data of {name} are not all strings.")
    if len(found) != count:
        raise RequestError(f"The data of {name} have {len(found)} elements, not {count}.")
    try:
        "".join(found).encode()
    except UnicodeEncodeError:
        raise RequestError(f"The data of {name} have half of a surrogate pair.") from None
    array = np.empty(count, object)
    array[:] = found
    return array


def write_listed(array: Array) -> Array | list[str]:
    """Give a tensor as what orjson writes as a flat list; ValueError if JSON cannot hold it."""
    if array.dtype == object:
        return [str(item) for item in array.flat]
    if array.dtype.kind == "V" or array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("NaN and infinity are not numbers of JSON")
    return np.ascontiguousarray(array).reshape(-1)
