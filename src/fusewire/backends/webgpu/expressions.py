"""The table of each op as a WGSL expression over registers.

``{0}`` is the first operand, ``{t}`` the register type of it. A row has an expression for every
register type that the op is known to be right in; a name with that type at its end is a function
of the folder ``wgsl``. Nothing here knows about memory, indices or kernels, so a fused kernel
composes the same expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from fusewire.backends.webgpu.storage import STORAGES, computes, lacking, storage_of
from fusewire.dtypes import DType, dtype
from fusewire.errors import RefusedError
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.kernel.form import Combine, Compute

Row = Mapping[str, str]

_FLOATS = ("f32", "f64")
_SIGNED = ("i32", "i64")
_WHOLE = ("i32", "u32", "i64", "u64")
_REAL = (*_FLOATS, *_WHOLE)
_COMPLEX = ("vec2<f32>",)
# Ops that need no more of an element than its bits.
_BITS_ONLY = ("where", "bitcast")
_BOOLS: Mapping[str, str] = {
    "add": "{0} || {1}",
    "maximum": "{0} || {1}",
    "logical_or": "{0} || {1}",
    "multiply": "{0} && {1}",
    "minimum": "{0} && {1}",
    "logical_and": "{0} && {1}",
}


def _row(*parts: tuple[tuple[str, ...], str]) -> Row:
    return {register: code for registers, code in parts for register in registers}


def _calls(*names: str) -> dict[str, Row]:
    """Rows of functions that are ours for f32 and that WGSL lacks, or has too rough, for f64."""
    return {name: {"f32": f"{name}_f32({{0}})"} for name in names}


def _compared(name: str, sign: str, of_bools: str) -> Row:
    """A comparison; of floats by our own functions, because WGSL may take no NaN into account."""
    greater = name.startswith("greater")
    function = name.replace("greater", "less")
    operands = "{1}, {0}" if greater else "{0}, {1}"
    return _row(
        (_FLOATS, f"{function}_{{t}}({operands})"),
        (_WHOLE, f"{{0}} {sign} {{1}}"),
        (("bool",), of_bools),
    )


TABLE: dict[str, Row] = {
    "add": _row((_REAL + _COMPLEX, "{0} + {1}")),
    "subtract": _row((_REAL + _COMPLEX, "{0} - {1}")),
    "multiply": _row((_REAL, "{0} * {1}"), (_COMPLEX, "complex_product({0}, {1})")),
    "divide": _row((_FLOATS, "{0} / {1}"), (_COMPLEX, "complex_quotient({0}, {1})")),
    "floor_divide": _row(
        (_FLOATS, "floor_divide_{t}({0}, {1})"), (_WHOLE, "floor_quotient_{t}({0}, {1})")
    ),
    "truncate_divide": _row((_WHOLE, "whole_quotient_{t}({0}, {1})")),
    "remainder": _row((_FLOATS, "remainder_{t}({0}, {1})"), (_WHOLE, "floor_rest_{t}({0}, {1})")),
    "fmod": _row((_FLOATS, "fmod_{t}({0}, {1})"), (_WHOLE, "whole_rest_{t}({0}, {1})")),
    "maximum": _row((_FLOATS, "maximum_{t}({0}, {1})"), (_WHOLE, "max({0}, {1})")),
    "minimum": _row((_FLOATS, "minimum_{t}({0}, {1})"), (_WHOLE, "min({0}, {1})")),
    "power": _row((("f32",), "power_f32({0}, {1})"), (_WHOLE, "whole_power_{t}({0}, {1})")),
    "atan2": _row((("f32",), "atan2_f32({0}, {1})")),
    "copysign": _row((_FLOATS, "copysign_{t}({0}, {1})")),
    "negative": _row(
        (_FLOATS, "negative_{t}({0})"),
        (_SIGNED, "-{0}"),
        (_COMPLEX, "vec2<f32>(negative_f32({0}.x), negative_f32({0}.y))"),
    ),
    "sign": _row((_FLOATS, "sign_{t}({0})"), (_WHOLE, "whole_sign_{t}({0})")),
    "abs": _row(
        (_FLOATS, "abs_{t}({0})"),
        (_SIGNED, "abs({0})"),
        (("u32", "u64"), "{0}"),
        (_COMPLEX, "complex_size({0})"),
    ),
    "square": _row((_REAL, "{0} * {0}"), (_COMPLEX, "complex_product({0}, {0})")),
    "reciprocal": _row(
        (_FLOATS, "{t}(1) / {0}"), (_COMPLEX, "complex_quotient(vec2<f32>(1.0, 0.0), {0})")
    ),
    "sqrt": _row((_FLOATS, "sqrt({0})"), (_COMPLEX, "complex_sqrt({0})")),
    "rsqrt": {"f32": "inverseSqrt({0})", "f64": "f64(1) / sqrt({0})"},
    **_calls("cbrt", "exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan"),
    **_calls("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "digamma"),
    **_calls("sigmoid"),
    **{
        name: _row((("f32",), f"{name}_f32({{0}})"), (_COMPLEX, f"complex_{name}({{0}})"))
        for name in ("exp", "log", "sin", "cos")
    },
    **{name: _row((_FLOATS, f"{name}({{0}})")) for name in ("ceil", "floor", "round", "trunc")},
    "conj": _row((_COMPLEX, "vec2<f32>({0}.x, negative_f32({0}.y))")),
    "real": _row((_COMPLEX, "{0}.x")),
    "imag": _row((_COMPLEX, "{0}.y")),
    "complex": _row((("f32",), "vec2<f32>({0}, {1})")),
    "equal": {
        **_compared("equal", "==", "{0} == {1}"),
        "vec2<f32>": "equal_f32({0}.x, {1}.x) && equal_f32({0}.y, {1}.y)",
    },
    "not_equal": _row(
        (_FLOATS, "!equal_{t}({0}, {1})"),
        ((*_WHOLE, "bool"), "{0} != {1}"),
        (_COMPLEX, "!(equal_f32({0}.x, {1}.x) && equal_f32({0}.y, {1}.y))"),
    ),
    "less": _compared("less", "<", "!{0} && {1}"),
    "less_equal": _compared("less_equal", "<=", "!{0} || {1}"),
    "greater": _compared("greater", ">", "{0} && !{1}"),
    "greater_equal": _compared("greater_equal", ">=", "{0} || !{1}"),
    "logical_and": {"bool": "{0} && {1}"},
    "logical_or": {"bool": "{0} || {1}"},
    "logical_xor": {"bool": "{0} != {1}"},
    "logical_not": {"bool": "!{0}"},
    "bitwise_and": _row((_WHOLE, "{0} & {1}")),
    "bitwise_or": _row((_WHOLE, "{0} | {1}")),
    "bitwise_xor": _row((_WHOLE, "{0} ^ {1}")),
    "bitwise_not": _row((_WHOLE, "~{0}")),
    "shift_left": _row((_WHOLE, "shift_left_{t}({0}, {1})")),
    "shift_right": _row((_WHOLE, "shift_right_{t}({0}, {1})")),
    "isnan": _row(
        (_FLOATS, "is_nan_{t}({0})"), (_COMPLEX, "is_nan_f32({0}.x) || is_nan_f32({0}.y)")
    ),
    "isinf": _row(
        (_FLOATS, "is_infinite_{t}({0})"),
        (_COMPLEX, "is_infinite_f32({0}.x) || is_infinite_f32({0}.y)"),
    ),
    "isfinite": _row(
        (_FLOATS, "is_finite_{t}({0})"), (_COMPLEX, "is_finite_f32({0}.x) && is_finite_f32({0}.y)")
    ),
    "signbit": _row((_FLOATS, "is_signed_{t}({0})")),
}

# Ops that leave elements as they are: by size alone, in any dtype.
MOVES = {
    "broadcast_to": "{0}",
    "transpose": "{0}",
    "slice": "{0}",
    "where": "select({2}, {1}, {0})",
}


def _cast(node: Node) -> str:
    of, to = node.operands[0].tensor.dtype, node.outputs[0].tensor.dtype
    start, end = STORAGES[of.name].register, STORAGES[to.name].register
    if start == "vec2<f32>" and end != start:
        if to.kind == "bool":
            return "is_true_f32({0}.x) || is_true_f32({0}.y)"
        real = _scalar_cast(dtype("float32"), to, "f32", end)
        return real.replace("{0}", "{0}.x")
    if end == "vec2<f32>":
        part = _scalar_cast(of, dtype("float32"), start, "f32")
        return "{0}" if start == end else f"vec2<f32>({part}, 0.0)"
    return _scalar_cast(of, to, start, end)


def _scalar_cast(of: DType, to: DType, start: str, end: str) -> str:
    if to.kind == "bool":
        if of.is_float:
            return f"is_true_{start}({{0}})"
        return "{0}" if of.kind == "bool" else f"{{0}} != {start}(0)"
    if of.is_float and to.is_integer:
        return _rounded_down(to, start, end)
    if start == end:
        return "{0}"
    # Wider first, then of the other kind: naga has the sign of what it makes go up.
    first = {("i32", "u64"): "i64({0})", ("u32", "i64"): "u64({0})"}.get((start, end), "{0}")
    wide = f"{end}({first})"
    # Mesa 22.3.6 compares what it saw widened with a number it knows, and gets it wrong.
    return f"opaque_{end}({wide})" if end in ("i64", "u64") and not of.is_float else wide


def _rounded_down(to: DType, start: str, end: str) -> str:
    whole = f"to_{end}_{start}({{0}})"
    if to.bits >= 32:
        return whole
    low, high = to.range
    suffix = "u" if end == "u32" else ""
    return f"clamp({whole}, {low}{suffix}, {high}{suffix})"


def _population_count(node: Node) -> str:
    of = node.operands[0].tensor.dtype
    if of.bits >= 32:
        return "countOneBits({0})"
    return f"countOneBits({{0}} & {(1 << of.bits) - 1})"


def _nextafter(node: Node) -> str:
    of = node.operands[0].tensor.dtype.name
    step = {"float16": "f16", "bfloat16": "bf16"}.get(of, "{t}")
    return f"nextafter_{step}({{0}}, {{1}})"


# Ops whose expression depends on more than registers.
BY_NODE: dict[str, Callable[[Node], str]] = {
    "cast": _cast,
    "population_count": _population_count,
    "nextafter": _nextafter,
}


def expression(node: Node) -> str | None:
    """Give the expression of a node whose dtypes have registers; None when there is none."""
    if node.op in BY_NODE:
        return BY_NODE[node.op](node)
    if node.op in MOVES:
        return MOVES[node.op]
    register = STORAGES[node.operands[0].tensor.dtype.name].register
    row = TABLE.get(node.op)
    return None if row is None else row.get(register)


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
            f"complex. Cast to float32, or run it on another backend."
        )
    code = code.replace("{t}", storage_of(given[0], features).register)
    if statement.op == "cast" and statement.dtype.is_float and statement.dtype.bits == 16:
        # What is stored is rounded anyway; a cast is asked for because of its rounding.
        stored = storage_of(statement.dtype, features)
        return stored.load.replace("{0}", stored.store.replace("{0}", code))
    return narrowed(code, statement.dtype) if statement.op not in _BITS_ONLY else code


def narrowed(code: str, of: DType) -> str:
    """Bring what was computed to the width of its dtype."""
    if of.is_integer and of.bits < 32:
        mask = f"extractBits({code}, 0u, {of.bits}u)"
        return mask if of.kind == "int" else f"({code}) & {(1 << of.bits) - 1}u"
    return code


def _bitcast(of: DType, to: DType, features: frozenset[str]) -> str:
    source, target = storage_of(of, features), storage_of(to, features)
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
    register = storage_of(of, features).register
    found = TABLE[by].get(register) if computes(of, features) else None
    if found is None:
        raise RefusedError(f"WGSL does not combine {of.name} by {by}. Run it elsewhere.")
    return found.replace("{t}", register)
