"""The element types of tensors: NumPy's and ml_dtypes', under one set of names.

A ``DType`` is an interned value: compare with ``is`` or ``==``, use as a key, print by name.
Nothing here knows about ops or engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from fusewire.errors import DTypeError

# ml_dtypes ships these two without types.
_finfo: Any = ml_dtypes.finfo
_iinfo: Any = ml_dtypes.iinfo

Kind = Literal["bool", "int", "uint", "float", "complex", "string"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type; ``numpy`` is the NumPy dtype that holds it in memory."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any] = field(compare=False, repr=False)

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_inexact(self) -> bool:
        return self.kind in ("float", "complex")

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float", "complex")

    @property
    def is_narrow(self) -> bool:
        """Whether it is a storage format of 8 bits or fewer for floats, or under 8 for ints."""
        return (self.kind == "float" and self.bits <= 8) or (self.is_integer and self.bits < 8)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next value; 0 for exact types."""
        if self.kind == "float":
            return float(_finfo(self.numpy).eps)
        if self.kind == "complex":
            return float(np.finfo(self.numpy).eps)
        return 0.0

    @property
    def range(self) -> tuple[float, float] | tuple[int, int]:
        """Smallest and largest finite value of a real numeric type."""
        if self.kind == "float":
            info = _finfo(self.numpy)
            return float(info.min), float(info.max)
        if self.is_integer:
            limits = _iinfo(self.numpy)
            return int(limits.min), int(limits.max)
        if self.kind == "bool":
            return 0, 1
        raise DTypeError(f"{self.name} has no smallest and largest value.")

    @property
    def itemsize(self) -> int:
        """Bytes per element in NumPy memory (sub-byte types take a whole byte)."""
        return int(self.numpy.itemsize)


def _row(kind: Kind, bits: int, numpy_type: Any, name: str | None = None) -> DType:
    numpy = np.dtype(numpy_type)
    return DType(name or numpy.name, kind, bits, numpy)


bool_ = _row("bool", 1, np.bool_)
int2 = _row("int", 2, ml_dtypes.int2)
int4 = _row("int", 4, ml_dtypes.int4)
int8 = _row("int", 8, np.int8)
int16 = _row("int", 16, np.int16)
int32 = _row("int", 32, np.int32)
int64 = _row("int", 64, np.int64)
uint2 = _row("uint", 2, ml_dtypes.uint2)
uint4 = _row("uint", 4, ml_dtypes.uint4)
uint8 = _row("uint", 8, np.uint8)
uint16 = _row("uint", 16, np.uint16)
uint32 = _row("uint", 32, np.uint32)
uint64 = _row("uint", 64, np.uint64)
float4_e2m1fn = _row("float", 4, ml_dtypes.float4_e2m1fn)
float6_e2m3fn = _row("float", 6, ml_dtypes.float6_e2m3fn)
float6_e3m2fn = _row("float", 6, ml_dtypes.float6_e3m2fn)
float8_e3m4 = _row("float", 8, ml_dtypes.float8_e3m4)
float8_e4m3 = _row("float", 8, ml_dtypes.float8_e4m3)
float8_e4m3b11fnuz = _row("float", 8, ml_dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = _row("float", 8, ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = _row("float", 8, ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = _row("float", 8, ml_dtypes.float8_e5m2)
float8_e5m2fnuz = _row("float", 8, ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = _row("float", 8, ml_dtypes.float8_e8m0fnu)
float16 = _row("float", 16, np.float16)
bfloat16 = _row("float", 16, ml_dtypes.bfloat16)
float32 = _row("float", 32, np.float32)
float64 = _row("float", 64, np.float64)
complex64 = _row("complex", 64, np.complex64)
complex128 = _row("complex", 128, np.complex128)
string = DType("string", "string", 0, np.dtype(object))

ALL: tuple[DType, ...] = tuple(v for v in list(globals().values()) if isinstance(v, DType))
SIGNED: tuple[DType, ...] = (int8, int16, int32, int64)
UNSIGNED: tuple[DType, ...] = (uint8, uint16, uint32, uint64)
INTEGERS: tuple[DType, ...] = SIGNED + UNSIGNED
FLOATS: tuple[DType, ...] = (float16, bfloat16, float32, float64)
COMPLEX: tuple[DType, ...] = (complex64, complex128)
NARROW: tuple[DType, ...] = tuple(d for d in ALL if d.is_narrow)
REAL: tuple[DType, ...] = FLOATS + INTEGERS
NUMERIC: tuple[DType, ...] = REAL + COMPLEX
STORED: tuple[DType, ...] = (bool_, *NUMERIC, *NARROW)

DTypeLike: TypeAlias = "DType | str | np.dtype[Any] | type[Any]"

_BY_NAME = {d.name: d for d in ALL}
_BY_NUMPY = {d.numpy: d for d in ALL if d is not string}


def dtype(of: DTypeLike) -> DType:
    """Look up a dtype by name, NumPy dtype or scalar type.

    >>> dtype("bfloat16"), dtype(np.float32), dtype(bool)
    (bfloat16, float32, bool)
    """
    if isinstance(of, DType):
        return of
    if isinstance(of, str) and of in _BY_NAME:
        return _BY_NAME[of]
    try:
        numpy = np.dtype(of)
    except TypeError:
        numpy = None
    if numpy is not None:
        if numpy.kind in "UT" or (numpy.kind == "O" and (of is object or of == numpy)):
            return string
        found = _BY_NUMPY.get(numpy.newbyteorder("="))
        if found is not None:
            return found
    raise DTypeError(f"{of!r} is not a supported dtype. Supported: {', '.join(_BY_NAME)}.")
