"""How Triton kernels store each dtype in memory and in registers.

float16 and bfloat16 are float32 in registers, rounded when they are stored. bfloat16 lies in
memory as its 16 bits and is rounded by hand, the same way on a device and in the interpreter,
which cuts bits off instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.dtypes import DType


@dataclass(frozen=True)
class Storage:
    """``pointer`` is the element in a signature, ``register`` the type that is computed in.

    ``memory`` is what NumPy calls the memory; ``{0}`` in ``read`` is what was loaded, in ``write``
    the register.
    """

    pointer: str
    register: str
    memory: str
    read: str = "{0}"
    write: str = "{0}"


def _same(pointer: str, register: str, memory: str) -> Storage:
    return Storage(pointer, f"tl.{register}", memory)


_BITS = "{0}.to(tl.uint32, bitcast=True)"
# Round to nearest, ties to even; NaN stays one.
_ROUNDED = (
    f"tl.where({{0}} != {{0}}, 0x7FC0, "
    f"({_BITS} + 0x7FFF + (({_BITS} >> 16) & 1)) >> 16).to(tl.uint16)"
)
STORAGES: dict[str, Storage] = {
    "bool": Storage("i8", "tl.int1", "int8", "({0} != 0)", "{0}.to(tl.int8)"),
    "float16": Storage("fp16", "tl.float32", "float16", "{0}.to(tl.float32)", "{0}.to(tl.float16)"),
    "bfloat16": Storage(
        "u16",
        "tl.float32",
        "uint16",
        "({0}.to(tl.uint32) << 16).to(tl.float32, bitcast=True)",
        _ROUNDED,
    ),
    "float32": _same("fp32", "float32", "float32"),
    "float64": _same("fp64", "float64", "float64"),
    **{f"int{n}": _same(f"i{n}", f"int{n}", f"int{n}") for n in (8, 16, 32, 64)},
    **{f"uint{n}": _same(f"u{n}", f"uint{n}", f"uint{n}") for n in (8, 16, 32, 64)},
}


def storage_of(of: DType) -> Storage:
    """Give the storage of a dtype that has one."""
    return STORAGES[of.name]


def literal(value: bool | int | float | complex, of: DType, shape: Sequence[int] = ()) -> str:
    """Print a number of the register's type: a scalar, or a block."""
    assert not isinstance(value, complex)
    if of.kind == "bool":
        said = str(int(bool(value)))
    elif of.is_integer:
        said = str(int(value))
    else:
        number = float(value)
        said = repr(number) if abs(number) < float("inf") else f'float("{number}")'
    return f"tl.full({list(shape)}, {said}, {storage_of(of).register})"
