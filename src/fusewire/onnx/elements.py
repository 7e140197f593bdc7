"""Our dtypes and ONNX's, by the numbers of TensorProto.DataType. Imports no onnx."""

from __future__ import annotations

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.errors import FormatError

# In the order of the numbers, from 1 on; the text is what type constraints of ops say.
_ROWS = (
    (dtypes.float32, "float"),
    (dtypes.uint8, "uint8"),
    (dtypes.int8, "int8"),
    (dtypes.uint16, "uint16"),
    (dtypes.int16, "int16"),
    (dtypes.int32, "int32"),
    (dtypes.int64, "int64"),
    (dtypes.string, "string"),
    (dtypes.bool_, "bool"),
    (dtypes.float16, "float16"),
    (dtypes.float64, "double"),
    (dtypes.uint32, "uint32"),
    (dtypes.uint64, "uint64"),
    (dtypes.complex64, "complex64"),
    (dtypes.complex128, "complex128"),
    (dtypes.bfloat16, "bfloat16"),
    (dtypes.float8_e4m3fn, "float8e4m3fn"),
    (dtypes.float8_e4m3fnuz, "float8e4m3fnuz"),
    (dtypes.float8_e5m2, "float8e5m2"),
    (dtypes.float8_e5m2fnuz, "float8e5m2fnuz"),
    (dtypes.uint4, "uint4"),
    (dtypes.int4, "int4"),
    (dtypes.float4_e2m1fn, "float4e2m1"),
    (dtypes.float8_e8m0fnu, "float8e8m0"),
    (dtypes.uint2, "uint2"),
    (dtypes.int2, "int2"),
    (dtypes.float6_e2m3fn, "float6e2m3"),
    (dtypes.float6_e3m2fn, "float6e3m2"),
)
DTYPES: dict[int, DType] = {number: row[0] for number, row in enumerate(_ROWS, 1)}
NAMES: dict[DType, str] = {of: f"tensor({name})" for of, name in _ROWS}
_NUMBERS = {of: number for number, of in DTYPES.items()}


def stored_bytes(of: DType, count: int) -> int:
    """Count the bytes of elements in a file: those of under 8 bits are packed, bools are not."""
    bits = of.bits if of.is_narrow else 8 * of.itemsize
    return -(-count * bits // 8)


def can_lie_outside(of: DType) -> bool:
    """Tell whether a file holds elements as arrays do: not strings, nor what it packs."""
    return of is not dtypes.string and stored_bytes(of, 8) == 8 * of.itemsize


def element_of(of: DType) -> int:
    """Give ONNX's number of a dtype; FormatError when it has none."""
    if of not in _NUMBERS:
        raise FormatError(f"ONNX has no {of}. It has {', '.join(d.name for d in _NUMBERS)}.")
    return _NUMBERS[of]
