"""How tensors lie in memory and in registers.

Memory holds what NumPy's memory holds, byte for byte, so copies to and from the host convert
nothing. WGSL reads words of 32 bits and up: smaller elements lie several to a word, and one
invocation makes one word. Registers are what kernels compute in: 16-bit floats in f32, as the
reference does; 8- and 16-bit integers in 32 bits, cut to size when they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.dtypes import DType


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


def storage_of(of: DType, *, moved: bool = False) -> Storage | None:
    """Find how a dtype is stored; None when kernels cannot compute with it."""
    return RAW.get(of.itemsize) if moved else STORAGES.get(of.name)


def byte_size(count: int, of: DType) -> int:
    """Give the bytes that a tensor takes: whole words."""
    return -(-count * of.itemsize // 4) * 4
