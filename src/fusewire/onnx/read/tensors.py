"""Tensors of ONNX files as constants: their type, what holds their elements, and the elements.

Nothing is allocated for a tensor before its dims and the length of its data were found to agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.contract.frontend import Limits
from fusewire.dtypes import DType
from fusewire.errors import BudgetError, FormatError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.onnx.elements import DTYPES, stored_bytes
from fusewire.onnx.read.shown import shown

# TensorProto.EXTERNAL.
EXTERNAL = 1
MOST_ELEMENTS = 2**63 - 1
_FIELDS = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
# Where elements of a dtype are when they are no raw bytes; int32_data otherwise.
_HOMES = {
    dtypes.float32: "float_data",
    dtypes.complex64: "float_data",
    dtypes.float64: "double_data",
    dtypes.complex128: "double_data",
    dtypes.int64: "int64_data",
    dtypes.uint32: "uint64_data",
    dtypes.uint64: "uint64_data",
    dtypes.string: "string_data",
}
_ENTRIES = {
    "float_data": np.float32,
    "double_data": np.float64,
    "int32_data": np.int32,
    "int64_data": np.int64,
    "uint64_data": np.uint64,
}


def element_count(dims: Any, what: str, limits: Limits) -> int:
    """Multiply dims that a file gives; FormatError or BudgetError when they make no tensor."""
    if len(dims) > limits.rank:
        raise BudgetError(
            f"{what} has {len(dims):,} dims; the limit is {limits.rank} (Limits.rank)."
        )
    if any(dim < 0 for dim in dims):
        raise FormatError(f"{what} has the dims {list(dims)}: a size is 0 or more.")
    count = int(math.prod(dims))
    if count > MOST_ELEMENTS:
        raise FormatError(f"{what} has the dims {list(dims)}: {count} elements are too many.")
    return count


def name_of(tensor: Any) -> str:
    """Say which tensor, for messages."""
    return f"The tensor {shown(tensor.name)}"


def type_of(tensor: Any, limits: Limits) -> TensorType:
    """Read dtype and dims."""
    of = DTYPES.get(tensor.data_type)
    if of is None:
        raise FormatError(
            f"{name_of(tensor)} has data_type {tensor.data_type}, which is not a dtype."
        )
    element_count(tensor.dims, name_of(tensor), limits)
    return TensorType(of, tuple(tensor.dims))


def check_data(tensor: Any, type_: TensorType) -> bytes:
    """See that a tensor has its elements once, and as many as its dims say; returns raw ones."""
    held = [field for field in _FIELDS if len(getattr(tensor, field))]
    # Every access copies them.
    data: bytes = tensor.raw_data
    raw = len(data)
    held += ["raw_data"] if raw else []
    if tensor.data_location == EXTERNAL:
        held.append("external_data")
    if tensor.HasField("segment"):
        raise FormatError(f"{name_of(tensor)} is one of several segments, which nothing reads.")
    if len(held) > 1:
        raise FormatError(
            f"{name_of(tensor)} has its elements twice, in {' and '.join(held)}, and readers "
            "differ in which they take. Save the model again."
        )
    of, count = type_.dtype, math.prod(tensor.dims)
    if held == ["external_data"]:
        if of is dtypes.string:
            raise FormatError(f"{name_of(tensor)} holds strings, which cannot be external data.")
        return data
    home = _HOMES.get(of, "int32_data")
    if held == ["raw_data"] and of is not dtypes.string:
        found, wanted = raw, stored_bytes(of, count)
    else:
        if held and held != [home]:
            raise FormatError(f"{name_of(tensor)} is {of} and has {held[0]}: {home} holds that.")
        found, wanted = len(getattr(tensor, home)), entries(of, count)
    if found != wanted:
        raise FormatError(
            f"{name_of(tensor)} is {type_} and has {found:,} {'bytes' if raw else 'entries'} of "
            f"data where {wanted:,} are needed."
        )
    return data


def entries(of: DType, count: int) -> int:
    """Count the numbers that a typed field holds for so many elements."""
    if of.is_complex:
        return 2 * count
    # Entries hold a byte of packed elements each; elements of 6 bits have one of their own.
    return stored_bytes(of, count) if of.is_narrow and of.bits != 6 else count


def elements(tensor: Any, type_: TensorType) -> Array:
    """Give the elements of a tensor that has them inside, checked before."""
    raw = check_data(tensor, type_)
    of = type_.dtype
    if of is dtypes.string:
        return _strings(tensor, type_)
    if raw:
        return decoded(np.frombuffer(raw, np.uint8), type_)
    home = _HOMES.get(of, "int32_data")
    held = getattr(tensor, home)
    found: Array = np.fromiter(held, _ENTRIES[home], len(held))
    if home != "int32_data" or of is dtypes.int32:
        # Complex numbers are pairs; 32 bits may be held in 64.
        found = found.view(of.numpy) if of.is_complex else found.astype(of.numpy, copy=False)
        return found.reshape(type_.shape)
    # An entry holds the bits of an element, not its value.
    bits = found.view(np.uint32).astype(f"u{of.itemsize}")
    if of.bits == 6:
        return (bits & np.uint8(0x3F)).view(of.numpy).reshape(type_.shape)
    return decoded(bits.view(np.uint8), type_)


def decoded(raw: Array, type_: TensorType) -> Array:
    """Give elements from bytes as files hold them."""
    of = type_.dtype
    if of is dtypes.bool_:
        return np.not_equal(raw, 0).reshape(type_.shape)
    if of.is_narrow and of.bits < 8:
        count = math.prod(dim for dim in type_.shape if isinstance(dim, int))
        raw = _unpacked(raw, of.bits)[:count]
    return raw.view(of.numpy).reshape(type_.shape)


def _unpacked(raw: Array, bits: int) -> Array:
    """Give a byte to each element; the first is in the lowest bits."""
    if bits == 6:
        flags = np.unpackbits(raw, bitorder="little")
        return np.packbits(
            flags[: flags.size // 6 * 6].reshape(-1, 6), axis=1, bitorder="little"
        ).reshape(-1)
    made = np.empty((raw.size, 8 // bits), np.uint8)
    for place in range(8 // bits):
        made[:, place] = (raw >> np.uint8(place * bits)) & np.uint8(2**bits - 1)
    return made.reshape(-1)


def _strings(tensor: Any, type_: TensorType) -> Array:
    made = np.empty(len(tensor.string_data), object)
    for place, held in enumerate(tensor.string_data):
        try:
            made[place] = held.decode()
        except UnicodeDecodeError:
            raise FormatError(
                f"{name_of(tensor)} has the string {shown(held)}, which is not UTF-8."
            ) from None
    return made.reshape(type_.shape)


def sparse_type(sparse: Any, limits: Limits) -> TensorType:
    """Read the type that a sparse tensor has once it is dense; check how it is held."""
    values, what = sparse.values, name_of(sparse.values)
    type_ = type_of(values, limits)
    count = element_count(sparse.dims, what, limits)
    if len(values.dims) != 1 or type_.dtype is dtypes.string or not sparse.dims:
        raise FormatError(f"{what} is sparse and not a list of numbers for a tensor of some rank.")
    stored = values.dims[0]
    allowed = ([stored], [stored, len(sparse.dims)])
    if stored > count or (stored and list(sparse.indices.dims) not in allowed):
        raise FormatError(f"{what} has {stored} values, and no place for each.")
    if stored and type_of(sparse.indices, limits).dtype is not dtypes.int64:
        raise FormatError(f"{what} has places that are not int64.")
    return TensorType(type_.dtype, tuple(sparse.dims))


def dense(sparse: Any, type_: TensorType, load: Callable[[Any], Array]) -> Array:
    """Give all elements of a sparse tensor; ``load`` gives those of the tensors inside it."""
    made = np.zeros(tuple(sparse.dims), type_.dtype.numpy)
    if sparse.values.dims[0] == 0:
        return made
    places = load(sparse.indices)
    what = name_of(sparse.values)
    if places.ndim == 2:
        if np.any((places < 0) | (places >= np.array(made.shape))):
            raise FormatError(f"{what} is sparse and has a value outside its dims.")
        places = np.asarray(np.ravel_multi_index(tuple(places.T), made.shape))
    if np.any((places < 0) | (places >= made.size)) or np.any(np.diff(places) <= 0):
        raise FormatError(f"{what} is sparse and its places do not ascend within its dims.")
    made.reshape(-1)[places] = load(sparse.values)
    return made
