"""Scalars of kernels as WGSL: numbers, indices and the expressions of the table.

Numbers that come of shapes are words of ``params`` where a page asks for that, so that one text
serves many shapes; else they are literals, which compilers divide by faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from fusewire.backends.webgpu.lowering import TABLE, expression
from fusewire.backends.webgpu.storage import RAW, STORAGES, Storage
from fusewire.dtypes import DType, float32, float64
from fusewire.errors import RefusedError
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Combine, Compute, Number
from fusewire.kernel.index import Atom, Axis, Held, Index, Quotient

# Words of params that every kernel has: how many points, a zero that no compiler knows, the step.
HEAD = 4
STEP = "i32(params[0].z)"
# Ops that need no more of an element than its bits.
_MOVES = ("where", "bitcast")
_BOOLS: Mapping[str, str] = {
    "add": "{0} || {1}",
    "maximum": "{0} || {1}",
    "logical_or": "{0} || {1}",
    "multiply": "{0} && {1}",
    "minimum": "{0} && {1}",
    "logical_and": "{0} && {1}",
}


def storage(of: DType, features: frozenset[str]) -> Storage:
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
    stored = storage(of, features)
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


def compute(statement: Compute, given: tuple[DType, ...], features: frozenset[str]) -> str:
    """Give the expression of a statement over ``{0}`` ...; RefusedError says what is missing."""
    return _compute(replace(statement, name="", operands=()), given, features)


@cache
def _compute(statement: Compute, given: tuple[DType, ...], features: frozenset[str]) -> str:
    if statement.op == "bitcast":
        return _bitcast(given[0], statement.dtype, features)
    operands = [Value(TensorType(of, ())) for of in given]
    node = Node(statement.op, operands, dict(statement.attrs), [TensorType(statement.dtype, ())])
    judged = given[:1] if statement.op == "where" else (*given, statement.dtype)
    for of in judged:
        if not computes(of, features):
            raise RefusedError(lacking(of, features))
    code = expression(node)
    if code is None:
        raise RefusedError(
            f"WGSL computes {statement.op} in 32 bits at most, and {given[0].name} has 64 or is "
            f"complex. Cast to float32, or run it elsewhere."
        )
    code = code.replace("{t}", storage(given[0], features).register)
    if statement.op == "cast" and statement.dtype.is_float and statement.dtype.bits == 16:
        # What is stored is rounded anyway; a cast is asked for because of its rounding.
        stored = storage(statement.dtype, features)
        return stored.load.replace("{0}", stored.store.replace("{0}", code))
    return cut(code, statement.dtype) if statement.op not in _MOVES else code


def cut(code: str, of: DType) -> str:
    """Bring what was computed to the width of its dtype."""
    if of.is_integer and of.bits < 32:
        mask = f"extractBits({code}, 0u, {of.bits}u)"
        return mask if of.kind == "int" else f"({code}) & {(1 << of.bits) - 1}u"
    return code


def _bitcast(of: DType, to: DType, features: frozenset[str]) -> str:
    source, target = storage(of, features), storage(to, features)
    if source.register == target.register and of.kind == to.kind:
        return "{0}"
    if of.itemsize < 4:
        bits = source.store
        return target.load.replace("{0}", bits)
    pair = "vec2<f32>"
    if (source.register == pair) != (target.register == pair) or of.itemsize > 8:
        raise RefusedError(f"WGSL has no bitcast from {of.name} to {to.name}. Run it elsewhere.")
    return f"bitcast<{target.register}>({{0}})"


@cache
def combine(by: Combine, of: DType, features: frozenset[str]) -> str:
    """Give the expression that combines two values of a dtype."""
    if of.kind == "bool":
        return _BOOLS[by]
    register = storage(of, features).register
    found = TABLE[by].get(register) if computes(of, features) else None
    if found is None:
        raise RefusedError(f"WGSL does not combine {of.name} by {by}. Run it elsewhere.")
    return found.replace("{t}", register)


class Numbers:
    """The integers of a kernel's indices: words of params, or literals."""

    def __init__(self, *, given: bool) -> None:
        self._given = given
        self.words: list[int] = []

    def number(self, value: int) -> str:
        """Print an integer as i32."""
        if not self._given or -1 <= value <= 1:
            return str(value) if value >= 0 else f"({value})"
        place = HEAD + len(self.words)
        self.words.append(value % 2**32)
        return f"i32(params[{place // 4}].{'xyzw'[place % 4]})"


class Places:
    """Indices as i32, by the names of axes and of held values."""

    def __init__(self, numbers: Numbers, features: frozenset[str]) -> None:
        self.numbers = numbers
        self.features = features
        self.axes: dict[Axis, str] = {}
        self.names: dict[str, str] = {}
        self.dtypes: dict[str, DType] = {}

    def index(self, index: Index) -> str:
        """Print an index."""
        parts = []
        for atom, factor in index.terms:
            name = self._atom(atom)
            parts.append(name if factor == 1 else f"{name} * {self.numbers.number(factor)}")
        if index.constant or not parts:
            parts.append(self.numbers.number(index.constant))
        return " + ".join(parts) if len(parts) == 1 else f"({' + '.join(parts)})"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Axis):
            return self.axes[atom]
        if isinstance(atom, Held):
            return self._held(atom)
        inner, by = self.index(atom.of), self.numbers.number(atom.by)
        whole = isinstance(atom, Quotient)
        if atom.of.range[0] >= 0:
            return f"i32(u32({inner}) {'/' if whole else '%'} u32({by}))"
        return f"floor_{'quotient' if whole else 'rest'}_i32({inner}, {by})"

    def _held(self, atom: Held) -> str:
        name, of = self.names[atom.value], self.dtypes[atom.value]
        if not computes(of, self.features):
            raise RefusedError(lacking(of, self.features))
        register = storage(of, self.features).register
        most = f"{register}({self.numbers.number(atom.extent - 1)})"
        low = f"max({name}, {register}(0))" if of.kind == "int" else name
        return f"i32(min({low}, {most}))"
