"""How the engine stores tensors of each dtype. Must never import it.

OpenVINO's CPU plugin computes in float32 and int32, whatever a graph says: int64 and uint32 lose
their upper bits, float64 its digits (2026.4.1: 2**40 + 1 comes back as 1, 1e300 as 3.4e38). So a
dtype it does not keep is shown to it in pieces that it keeps, and what it cannot compute on those
is refused. Pieces lie next to each other in memory, so that NumPy arrays are only viewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.ir.graph import Array


@dataclass(frozen=True)
class Storage:
    """How a tensor is held.

    ``edge`` is the element type of parameters and results, ``inner`` that between nodes, both by
    the engine's name; ``carrier`` shows the same bits in NumPy; ``parts`` is the number of pieces
    that make an element, each a tensor of its own between nodes.
    """

    edge: str
    inner: str
    carrier: np.dtype[Any]
    parts: int = 1


def _same(name: str, carrier: str, inner: str | None = None, parts: int = 1) -> Storage:
    return Storage(name, inner or name, np.dtype(carrier), parts)


NARROWED = _same("i32", "int32")
STORAGE: Mapping[DType, Storage] = {
    dtypes.bool_: _same("boolean", "bool"),
    dtypes.int8: _same("i8", "int8"),
    dtypes.int16: _same("i16", "int16"),
    dtypes.int32: _same("i32", "int32"),
    dtypes.uint8: _same("u8", "uint8"),
    dtypes.uint16: _same("u16", "uint16"),
    # Bits of uint32 in int32: sums, products and bit operations are the same.
    dtypes.uint32: _same("i32", "int32"),
    **dict.fromkeys((dtypes.int64, dtypes.uint64), _same("i32", "int32", parts=2)),
    # Small ints have a byte each in NumPy's memory.
    **dict.fromkeys((dtypes.int2, dtypes.int4), _same("i8", "int8")),
    **dict.fromkeys((dtypes.uint2, dtypes.uint4), _same("u8", "uint8")),
    dtypes.float16: _same("f16", "float16", "f32"),
    dtypes.bfloat16: _same("bf16", "uint16", "f32"),
    dtypes.float32: _same("f32", "float32"),
    dtypes.complex64: _same("f32", "float32", parts=2),
    # Only moved, never computed with.
    dtypes.float64: _same("i32", "int32", parts=2),
    dtypes.complex128: _same("i32", "int32", parts=4),
    **{d: _same("u8", "uint8") for d in dtypes.NARROW if d.is_float},
}
FLOATS = frozenset((dtypes.float16, dtypes.bfloat16, dtypes.float32))
LONG = frozenset((dtypes.int64, dtypes.uint64))
# Ints whose arithmetic int32 can do, with the upper bits dropped afterwards.
SHORT = frozenset(d for d in dtypes.ALL if d.is_integer and d not in LONG) - {dtypes.uint32}
MOVED_ONLY = (
    frozenset(STORAGE)
    - FLOATS
    - LONG
    - SHORT
    - {
        dtypes.bool_,
        dtypes.uint32,
        dtypes.complex64,
    }
)


class _Shown:
    """Memory of an array, shown as writable: the engine insists, and never writes constants."""

    def __init__(self, array: Array) -> None:
        self.array = array
        pointer, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}


def writable(array: Array) -> Array:
    """Show memory that the engine will only read as it wants it."""
    return array if array.flags.writeable else np.asarray(_Shown(array))
