"""The table of each elementwise op as an expression of Triton's language over registers.

``{0}`` is the first operand. A row has an expression for every kind of register that the op is
known to be right in: ``f`` float32, ``d`` float64, ``i`` and ``u`` integers, ``b`` bool. Ops that
need more than an expression are functions, which say their lines to a ``Say`` and give the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewire.backends.triton import functions
from fusewire.backends.triton.functions import Say
from fusewire.backends.triton.storage import literal, storage_of
from fusewire.dtypes import DType, bool_
from fusewire.kernel.form import Compute

Row = Mapping[str, str]


def _row(kinds: str, code: str) -> Row:
    return dict.fromkeys(kinds, code)


def _compared(sign: str) -> Row:
    return {
        **_row("fdiu", f"({{0}} {sign} {{1}})"),
        "b": f"({{0}}.to(tl.int32) {sign} {{1}}.to(tl.int32))",
    }


_ALL = "propagate_nan=tl.PropagateNan.ALL"
TABLE: dict[str, Row] = {
    "add": _row("fdiu", "({0} + {1})"),
    "subtract": _row("fdiu", "({0} - {1})"),
    "multiply": {**_row("fdiu", "({0} * {1})"), "b": "({0} & {1})"},
    "divide": {"f": "tl.div_rn({0}, {1})", "d": "({0} / {1})"},
    "maximum": {
        **_row("fd", f"tl.maximum({{0}}, {{1}}, {_ALL})"),
        **_row("iu", "tl.maximum({0}, {1})"),
        "b": "({0} | {1})",
    },
    "minimum": {
        **_row("fd", f"tl.minimum({{0}}, {{1}}, {_ALL})"),
        **_row("iu", "tl.minimum({0}, {1})"),
        "b": "({0} & {1})",
    },
    "negative": _row("fdi", "(-{0})"),
    "sign": {
        **_row("fd", "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))"),
        "i": "tl.where({0} > 0, 1, tl.where({0} < 0, -1, 0))",
        "u": "tl.where({0} > 0, 1, 0)",
    },
    "abs": {**_row("fdi", "tl.abs({0})"), "u": "{0}"},
    "square": _row("fdiu", "({0} * {0})"),
    "reciprocal": {"f": "tl.div_rn(tl.full([], 1.0, tl.float32), {0})", "d": "(1.0 / {0})"},
    "sqrt": {"f": "tl.sqrt_rn({0})", "d": "tl.sqrt({0})"},
    "rsqrt": {
        "f": "tl.div_rn(tl.full([], 1.0, tl.float32), tl.sqrt_rn({0}))",
        "d": "(1.0 / tl.sqrt({0}))",
    },
    **{
        name: _row("fd", f"tl.{name}({{0}})")
        for name in ("exp", "exp2", "log", "log2", "sin", "cos", "erf", "ceil", "floor")
    },
    "log10": {
        "f": "(tl.log({0}.to(tl.float64)) * 0.4342944819032518)",
        "d": "(tl.log({0}) * 0.4342944819032518)",
    },
    "tan": _row("fd", "(tl.sin({0}.to(tl.float64)) / tl.cos({0}.to(tl.float64)))"),
    "sigmoid": {
        "f": "tl.div_rn(tl.full([], 1.0, tl.float32), 1.0 + tl.exp(-{0}))",
        "d": "(1.0 / (1.0 + tl.exp(-{0})))",
    },
    "trunc": _row("fd", "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))"),
    "equal": _compared("=="),
    "not_equal": _compared("!="),
    "less": _compared("<"),
    "less_equal": _compared("<="),
    "greater": _compared(">"),
    "greater_equal": _compared(">="),
    "logical_and": {"b": "({0} & {1})"},
    "logical_or": {"b": "({0} | {1})"},
    "logical_xor": {"b": "({0} ^ {1})"},
    "logical_not": {"b": "({0} == 0)"},
    "bitwise_and": _row("iu", "({0} & {1})"),
    "bitwise_or": _row("iu", "({0} | {1})"),
    "bitwise_xor": _row("iu", "({0} ^ {1})"),
    "bitwise_not": _row("iu", "(~{0})"),
    "isnan": _row("fd", "({0} != {0})"),
    "isinf": _row("fd", '(tl.abs({0}) == float("inf"))'),
    "isfinite": _row("fd", '(tl.abs({0}) < float("inf"))'),
    "where": {"b": "tl.where({0}, {1}, {2})"},
}


def kind_of(of: DType) -> str:
    """Name the kind of register."""
    if of.is_float:
        return "d" if of.bits == 64 else "f"
    return of.kind[0]


def _bits_of(of: DType) -> str:
    return f"tl.int{64 if of.bits == 64 else 32}"


def _signbit(say: Say, of: DType, to: DType, x: str) -> str:
    return f"({x}.to({_bits_of(of)}, bitcast=True) < 0)"


def _copysign(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    size = say(f"tl.abs({x})")
    return f"tl.where({_signbit(say, of, to, y)}, -{size}, {size})"


def _round(say: Say, of: DType, to: DType, x: str) -> str:
    # Adding a number without bits below 1 rounds halves to even; larger ones are whole.
    big = 1.5 * 2.0 ** (52 if of.bits == 64 else 23)
    return f"tl.where(tl.abs({x}) < {big / 3}, ({x} + {big}) - {big}, {x})"


def _cast(say: Say, of: DType, to: DType, x: str) -> str:
    register = storage_of(to).register
    if to.kind == "bool":
        return x if of.kind == "bool" else f"({x} != 0)"
    if of.is_float and to.is_integer:
        return _whole(say, of, to, x)
    wide = f"{x}.to({register})"
    if to.bits == 16 and to.is_float and of is not to:
        # Rounded now, because a cast is how people ask for it.
        rounded = say(wide)
        stored = say(storage_of(to).write.format(rounded))
        return storage_of(to).read.format(stored)
    return wide


def _whole(say: Say, of: DType, to: DType, x: str) -> str:
    low, high = to.range
    above, below = say(f"{x} >= {float(high) + 1.0!r}"), say(f"{x} < {float(low)!r}")
    inside = say(f"tl.where({above} | {below} | ({x} != {x}), 0.0, {x})")
    found = say(f"{inside}.to({storage_of(to).register})")
    top, bottom = literal(high, to), literal(low, to)
    return f"tl.where({above}, {top}, tl.where({below}, {bottom}, {found}))"


def _bitcast(say: Say, of: DType, to: DType, x: str) -> str:
    stored = say(storage_of(of).write.format(x))
    memory = {"bfloat16": "tl.uint16", "float16": "tl.float16"}
    found = say(f"{stored}.to({memory.get(to.name, storage_of(to).register)}, bitcast=True)")
    return storage_of(to).read.format(found)


def _divisor(say: Say, y: str) -> str:
    return say(f"tl.where({y} == 0, 1, {y})")


def _truncate_divide(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    return f"tl.where({y} == 0, 0, {x} // {_divisor(say, y)})"


def _fmod(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    return f"({x} % {y})" if of.is_float else f"tl.where({y} == 0, 0, {x} % {_divisor(say, y)})"


def _remainder(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    rest = say(_fmod(say, of, to, x, y))
    if of.kind == "uint":
        return rest
    return f"tl.where(({rest} != 0) & (({rest} < 0) != ({y} < 0)), {rest} + {y}, {rest})"


def _floor_divide(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    if of.kind == "uint":
        return _truncate_divide(say, of, to, x, y)
    if of.is_float:
        rest = say(_remainder(say, of, to, x, y))
        whole = say(f"tl.floor(({x} - {rest}) / {y} + 0.5)")
        return f"tl.where({y} == 0, {x} / {y}, {whole})"
    rest = say(f"{x} % {_divisor(say, y)}")
    lower = say(f"(({rest} != 0) & (({rest} < 0) != ({y} < 0))).to({storage_of(of).register})")
    return f"tl.where({y} == 0, 0, {x} // {_divisor(say, y)} - {lower})"


def _shift(sign: str) -> Callable[[Say, DType, DType, str, str], str]:
    def shift(say: Say, of: DType, to: DType, x: str, y: str) -> str:
        inside = say(f"({y} >= 0) & ({y} < {of.bits})")
        by = say(f"tl.where({inside}, {y}, 0)")
        beyond = "0"
        if sign == ">>" and of.kind == "int":
            beyond = f"tl.where({x} < 0, -1, 0)"
        return f"tl.where({inside}, {x} {sign} {by}, {beyond}).to({storage_of(of).register})"

    return shift


def _population_count(say: Say, of: DType, to: DType, x: str) -> str:
    wide = 64 if of.bits == 64 else 32
    unsigned = say(f"{x}.to(tl.uint{of.bits}, bitcast=True)")
    held = say(f"{unsigned}.to(tl.uint{wide})")
    for step, mask in ((1, 0x5555555555555555), (2, 0x3333333333333333), (4, 0x0F0F0F0F0F0F0F0F)):
        kept = f"tl.full([], {mask & ((1 << wide) - 1)}, tl.uint{wide})"
        held = say(f"({held} & {kept}) + (({held} >> {step}) & {kept})")
    ones = f"tl.full([], {0x0101010101010101 & ((1 << wide) - 1)}, tl.uint{wide})"
    return f"(({held} * {ones}) >> {wide - 8}).to({storage_of(to).register})"


def _power(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    if of.is_float:
        return functions.power(say, of, to, x, y)
    register = storage_of(of).register
    left, base = say(f"tl.maximum({y}, 0)"), say(f"{x} + 0 * {y}")
    found = say(f"{base} * 0 + 1")
    for _ in range(of.bits):
        found = say(f"tl.where(({left} & 1) != 0, {found} * {base}, {found})")
        base, left = say(f"{base} * {base}"), say(f"{left} >> 1")
    if of.kind == "uint":
        return found
    inverse = say(f"tl.where({x} == 1, 1, tl.where({x} == -1, 1 - 2 * ({y} & 1), 0))")
    return f"tl.where({y} < 0, {inverse}, {found}).to({register})"


def _nextafter(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    width = of.bits
    memory = f"tl.int{width}"
    bits = say(f"{say(storage_of(of).write.format(x))}.to({memory}, bitcast=True)")
    away = say(f"(({x} < {y}) == ({x} > 0))")
    smallest = say(f"tl.where({y} > 0, 1, {-(1 << (width - 1)) + 1}).to({memory})")
    step = say(f"tl.where({x} == 0, {smallest}, {bits} + tl.where({away}, 1, -1).to({memory}))")
    target = {"bfloat16": "tl.uint16", "float16": "tl.float16"}
    stored = say(f"{step}.to({target.get(of.name, storage_of(of).register)}, bitcast=True)")
    stepped = storage_of(of).read.format(stored)
    return f"tl.where({x} == {y}, {y}, tl.where(({x} != {x}) | ({y} != {y}), {x} + {y}, {stepped}))"


# Ops whose expression is a float of the operands' own width.
KEEPING = frozenset(TABLE) - {"log10", "tan"}
FUNCTIONS: dict[str, Callable[..., str]] = {
    "signbit": _signbit, "copysign": _copysign, "round": _round, "cast": _cast,
    "bitcast": _bitcast, "truncate_divide": _truncate_divide, "fmod": _fmod,
    "remainder": _remainder, "floor_divide": _floor_divide, "shift_left": _shift("<<"),
    "shift_right": _shift(">>"), "population_count": _population_count, "power": _power,
    "nextafter": _nextafter, **functions.FUNCTIONS,
}  # fmt: skip
# In float32 only: they are computed in float64 and would be too rough there.
_ONLY_SINGLE = {*functions.FUNCTIONS, "power"} - functions.DOUBLE


def lacks(op: str, of: DType) -> str | None:
    """Answer None for an op that has an expression in a dtype, else why it has none."""
    if op in _ONLY_SINGLE and kind_of(of) == "d":
        return f"{op} is computed in float64 and rounded, which is too rough for float64 itself"
    if op in FUNCTIONS or kind_of(of) in TABLE.get(op, {}):
        return None
    return f"{op} has no expression in {of.name}"


def expression(say: Say, statement: Compute, of: DType, operands: list[str]) -> str:
    """Print an op of which ``lacks`` is None, on names; ``of`` is the dtype of the first."""
    function = FUNCTIONS.get(statement.op)
    to = statement.dtype
    if function is not None:
        said = function(say, of, to, *operands)
    else:
        said = TABLE[statement.op][kind_of(of)].format(*operands)
    return said if to is bool_ else in_register(said, to, exact=statement.op in KEEPING)


def in_register(said: str, of: DType, *, exact: bool = False) -> str:
    """Make an expression of a register's type; ``exact`` if it has that type, unless promoted."""
    if exact and of.is_float:
        return said
    # Numbers and promotions may have made it wider.
    return f"({said}).to({storage_of(of).register})"
