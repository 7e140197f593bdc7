"""How WebGPU kernels store each dtype in memory and in registers.

Memory holds what NumPy's memory holds, byte for byte, so copies to and from the host convert
nothing. WGSL reads words of 32 bits and up: smaller elements lie several to a word, and one
invocation makes one word. Registers are what kernels compute in: 16-bit floats in f32, as the
reference does; 8- and 16-bit integers in 32 bits, cut to size when they are stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fusewire.dtypes import DType, float32, float64
from fusewire.kernel.form import Number


@dataclass(frozen=True)
class Storage:
    """One dtype. ``load`` and ``store`` are WGSL over ``{0}``: a word, or its bits; a register."""

    word: str
    register: str
    lanes: int = 1
    load: str = "{0}"
    store: str = "{0}"
    features: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of one lane of a word that holds several."""
        return 32 // self.lanes

    def read(self, memory: str, index: str) -> str:
        """Print the load of an element."""
        if self.lanes == 1:
            return self.load.format(f"{memory}[{index}]")
        shift = {4: 2, 2: 1}[self.lanes]
        word = f"{memory}[{index} >> {shift}u]"
        lane = f"({index} & {self.lanes - 1}u) * {self.bits}u"
        return self.load.format(f"extractBits({word}, {lane}, {self.bits}u)")


def _signed(bits: int) -> Storage:
    load = f"extractBits(bitcast<i32>({{0}}), 0u, {bits}u)"
    store = f"(bitcast<u32>({{0}}) & {(1 << bits) - 1}u)"
    return Storage("u32", "i32", 32 // bits, load, store)


def _unsigned(bits: int) -> Storage:
    return Storage("u32", "u32", 32 // bits, store=f"({{0}} & {(1 << bits) - 1}u)")


STORAGES = {
    "bool": Storage("u32", "bool", 4, "({0} != 0u)", "select(0u, 1u, {0})"),
    "int8": _signed(8),
    "int16": _signed(16),
    "int32": Storage("i32", "i32"),
    "int64": Storage("i64", "i64", features=("shader-int64",)),
    "uint8": _unsigned(8),
    "uint16": _unsigned(16),
    "uint32": Storage("u32", "u32"),
    "uint64": Storage("u64", "u64", features=("shader-int64",)),
    "float16": Storage("u32", "f32", 2, "half_value({0})", "half_bits({0})"),
    "bfloat16": Storage("u32", "f32", 2, "bitcast<f32>({0} << 16u)", "brain_bits({0})"),
    "float32": Storage("f32", "f32"),
    # Tests of bits need integers of the same width.
    "float64": Storage("f64", "f64", features=("shader-f64", "shader-int64")),
    "complex64": Storage("vec2<f32>", "vec2<f32>"),
}
# What only moves: elements by their size, whatever they mean.
RAW = {
    1: _unsigned(8),
    2: _unsigned(16),
    4: Storage("u32", "u32"),
    8: Storage("vec2<u32>", "vec2<u32>"),
    16: Storage("vec4<u32>", "vec4<u32>"),
}


def byte_size(count: int, of: DType) -> int:
    """Give the bytes that a tensor takes: whole words."""
    return -(-count * of.itemsize // 4) * 4


def storage_of(of: DType, features: frozenset[str]) -> Storage:
    """Find how elements lie and are computed; as bits alone where that is all there is."""
    found = STORAGES.get(of.name)
    return found if found and features.issuperset(found.features) else RAW[of.itemsize]


def computes(of: DType, features: frozenset[str]) -> bool:
    """Tell whether a device computes in a dtype."""
    found = STORAGES.get(of.name)
    return found is not None and features.issuperset(found.features)


def lacking(of: DType, features: frozenset[str]) -> str:
    """Say why a device does not compute in a dtype."""
    found = STORAGES.get(of.name)
    if found is None:
        return (
            f"WebGPU's kernels do not compute in {of.name}: they take bool, integers of 8 to 64 "
            f"bits, float16, bfloat16, float32, float64 and complex64."
        )
    missing = ", ".join(sorted(set(found.features) - features))
    return f"The adapter has no {of.name} in shaders: it lacks {missing}."


def literal(value: Number, of: DType, features: frozenset[str]) -> str:
    """Print a number in the register of its dtype."""
    stored = storage_of(of, features)
    if not computes(of, features):
        return _raw(value, of, stored)
    register = stored.register
    if register == "bool":
        return "true" if value else "false"
    if register == "vec2<f32>":
        whole = complex(value)
        return f"vec2<f32>({_float(whole.real, 'f32')}, {_float(whole.imag, 'f32')})"
    assert not isinstance(value, complex)
    if register in ("f32", "f64"):
        return _float(float(value), register)
    suffix = {"i32": "", "u32": "u", "i64": "li", "u64": "lu"}[register]
    whole_number = int(value)
    if register == "i64" and whole_number < 0:
        return f"(-{-(whole_number + 1)}li - 1li)"
    return f"{register}({whole_number})" if whole_number < 0 else f"{whole_number}{suffix}"


def _float(value: float, register: str) -> str:
    of = float32 if register == "f32" else float64
    with np.errstate(over="ignore"):
        held = np.array(value).astype(of.numpy)
    normal = 2.0**-126 if of is float32 else 2.0**-1022
    if value == 0 and math.copysign(1, value) > 0:
        return f"{register}(0)"
    if np.isfinite(held) and abs(float(held)) >= normal:
        return f"{held!s}{'f' if register == 'f32' else 'lf'}"
    # WGSL has no literal for these, and may fold what it knows to be one.
    if register == "f32":
        return f"bitcast<f32>({int(held.view(np.uint32)):#x}u ^ params[0].y)"
    return f"bitcast<f64>({int(held.view(np.uint64)):#x}lu ^ u64(params[0].y))"


def _raw(value: Number, of: DType, stored: Storage) -> str:
    raw = np.array(value).astype(of.numpy).reshape(1).view(np.uint8)
    if stored.lanes > 1 or stored.register == "u32":
        return f"{int.from_bytes(raw.tobytes(), 'little')}u"
    words = [f"{int(word):#x}u" for word in raw.view(np.uint32)]
    return f"{stored.register}({', '.join(words)})"
