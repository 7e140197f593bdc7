"""NumPy's ufuncs as ops, with the dtypes that NumPy itself would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import DType, bool_, dtype, string
from fusewire.errors import FusewireError, TraceError
from fusewire.frontends.trace import methods
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.sizes import Size
from fusewire.frontends.trace.table import xp
from fusewire.ir.builder import constant
from fusewire.ir.graph import Value
from fusewire.ops.table import all_ops

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

Build = Callable[..., Any]

# Ufuncs that have the name of an op.
_SAME = (
    "add subtract multiply divide floor_divide remainder fmod maximum minimum copysign "
    "nextafter hypot logaddexp negative sign reciprocal sqrt square cbrt exp exp2 expm1 log log2 "
    "log10 log1p sin cos tan sinh cosh tanh ceil floor trunc equal not_equal less less_equal "
    "greater greater_equal isnan isinf isfinite signbit logical_and logical_or logical_xor "
    "logical_not bitwise_and bitwise_or bitwise_xor"
)
_NAMES = {
    **{name: name for name in _SAME.split()},
    "absolute": "abs", "fabs": "abs", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "rint": "round", "conjugate": "conj", "invert": "bitwise_not", "left_shift": "shift_left",
    "right_shift": "shift_right", "bitwise_count": "population_count",
}  # fmt: skip
_ON_BOOLS = {
    "add": "logical_or", "maximum": "logical_or", "bitwise_or": "logical_or",
    "multiply": "logical_and", "minimum": "logical_and", "bitwise_and": "logical_and",
    "bitwise_xor": "logical_xor", "invert": "logical_not", "not_equal": "logical_xor",
}  # fmt: skip
# Kinds of numbers that these ufuncs return unchanged.
_KEEPS = {
    "uint": "absolute conjugate positive floor ceil trunc",
    "int": "conjugate positive floor ceil trunc",
    "bool": "absolute conjugate positive floor ceil trunc",
    "float": "conjugate positive",
    "complex": "positive",
}
_COMPARES = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
_OPTIONS = {"dtype", "casting", "order", "subok", "signature"}
_TESTS = {"isnan": False, "isinf": False, "isfinite": True}


def _fmax(x: Value, y: Value, pick: Any) -> Any:
    if not x.tensor.dtype.is_float:
        return pick(x, y)
    return ops.where(ops.isnan(x), y, ops.where(ops.isnan(y), x, pick(x, y)))


def _heaviside(x: Value, middle: Value) -> Any:
    step = ops.where(ops.less(x, 0), 0, ops.where(ops.equal(x, 0), middle, 1))
    return ops.where(ops.isnan(x), x, step)


def _matmul(x: Value, y: Value) -> Any:
    if x.tensor.dtype is not bool_:
        return ops.matmul(x, y)
    return ops.not_equal(ops.matmul(*(ops.cast(v, dtype="int32") for v in (x, y))), 0)


def _power(x: Value, y: Value) -> Any:
    if not x.tensor.dtype.is_complex:
        return ops.power(x, y)
    one, none = (constant(np.array(n, y.tensor.dtype.numpy)) for n in (1, 0))
    none = ops.where(ops.equal(y, 0), one, none)
    return ops.where(ops.equal(x, 0), none, ops.exp(ops.multiply(y, ops.log(x))))


def _compared(ufunc: np.ufunc, x: Value, y: Value) -> Any:
    """Compare int64 with uint64 by value, as NumPy does: a negative number is below all others."""
    signed = x if x.tensor.dtype.kind == "int" else y
    below = ufunc(0, 1) if signed is x else ufunc(1, 0)
    wide = (ops.cast(v, dtype="uint64") for v in (x, y))
    same = getattr(ops, ufunc.__name__)(*wide)
    return ops.where(ops.less(signed, 0), constant(np.array(below)), same)


def _squeezed(x: Value, axis: int) -> Any:
    return ops.squeeze(x, axes=(axis,))


def _row(x: Value) -> Any:
    return ops.expand_dims(ops.conj(x) if x.tensor.dtype.is_complex else x, axes=(-2,))


def _column(x: Value) -> Any:
    return ops.expand_dims(x, axes=(-1,))


# Ufuncs that need more than one op.
_BUILDS: dict[str, Build] = {
    "positive": lambda x: x,
    "fmax": lambda x, y: _fmax(x, y, ops.maximum),
    "fmin": lambda x, y: _fmax(x, y, ops.minimum),
    "heaviside": _heaviside,
    "deg2rad": lambda x: ops.multiply(x, np.pi / 180),
    "radians": lambda x: ops.multiply(x, np.pi / 180),
    "rad2deg": lambda x: ops.multiply(x, 180 / np.pi),
    "degrees": lambda x: ops.multiply(x, 180 / np.pi),
    "divmod": lambda x, y: (ops.floor_divide(x, y), ops.remainder(x, y)),
    "modf": lambda x: (
        ops.copysign(ops.where(ops.isinf(x), 0.0, ops.subtract(x, ops.trunc(x))), x),
        ops.trunc(x),
    ),
    "logaddexp2": lambda x, y: ops.divide(
        ops.logaddexp(ops.multiply(x, np.log(2.0)), ops.multiply(y, np.log(2.0))), np.log(2.0)
    ),
    "ldexp": lambda x, i: ops.multiply(x, ops.exp2(ops.cast(i, dtype=x.tensor.dtype))),
    "spacing": lambda x: ops.subtract(ops.nextafter(x, ops.copysign(np.inf, x)), x),
    "matmul": _matmul,
    "power": _power,
    "float_power": _power,
    "vecdot": lambda x, y: _squeezed(_squeezed(_matmul(_row(x), _column(y)), -1), -1),
    "matvec": lambda x, y: _squeezed(_matmul(x, _column(y)), -1),
    "vecmat": lambda x, y: _squeezed(_matmul(_row(x), y), -2),
}


def supported() -> list[str]:
    """List the ufuncs that can be traced."""
    return sorted(_NAMES.keys() | _BUILDS.keys())


def call(
    recording: Recording, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Any
) -> Any:
    """Apply a ufunc, or one of its methods."""
    options = dict(options)
    if method != "__call__":
        return methods.call(recording, ufunc, method, inputs, options)
    outs = options.pop("out", None) or ()
    outs = outs if isinstance(outs, tuple) else (outs,)
    mask = options.pop("where", True)
    arrays = [recording.array(x) for x in inputs]
    if len(arrays) > ufunc.nin:
        arrays, outs = arrays[: ufunc.nin], tuple(inputs[ufunc.nin :])
    if ufunc.__name__ == "vecdot" and "axis" in options:
        axis = options.pop("axis")
        arrays = [xp.moveaxis(array, axis, -1) for array in arrays]
    if unknown := options.keys() - _OPTIONS:
        raise refusal(f"np.{ufunc.__name__} with {sorted(unknown)} cannot be traced.")
    results = _results(recording, ufunc, arrays, options)
    if mask is not True:
        results = [_chosen(recording, mask, *pair) for pair in _padded(results, outs)]
    given = [_store(result, out) for result, out in _padded(results, outs)]
    return given[0] if ufunc.nout == 1 else tuple(given)


def _padded(results: Sequence[Any], outs: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(results, [*outs, *[None] * (len(results) - len(outs))], strict=True))


def _results(
    recording: Recording, ufunc: np.ufunc, arrays: Sequence[Tracer], options: Any
) -> list[Any]:
    is_weak = len(arrays) > 1 and all(array.weak for array in arrays)
    knowns = [array.known for array in arrays]
    if all(known is not None for known in knowns):
        plain = [a.weak(k) if a.weak else k for a, k in zip(arrays, knowns, strict=True)]
        found = ufunc(*plain, **options)
        return [recording.lift(x) for x in (found if ufunc.nout > 1 else (found,))]
    chosen = resolve(ufunc, arrays, options)
    if any(a.type.dtype is not of is string for a, of in zip(arrays, chosen, strict=False)):
        raise refusal(f"np.{ufunc.__name__} of numbers and objects or strings cannot be traced.")
    short = _out_of_range(recording, ufunc, arrays, chosen)
    if short is not None:
        return [short]
    values = [recording.value(a, of) for a, of in zip(arrays, chosen, strict=False)]
    found = build(ufunc, values)
    outputs = found if isinstance(found, tuple) else (found,)
    wrapped = []
    for output, of in zip(outputs, chosen[ufunc.nin :], strict=True):
        value = output if output.tensor.dtype is of else ops.cast(output, dtype=of)
        kind = {"int": int, "float": float, "complex": complex}.get(of.kind) if is_weak else None
        made = recording.wrap(value, weak=kind)
        wrapped.append(made if ufunc.signature else recording.like(made, *arrays))
    return wrapped


def resolve(ufunc: np.ufunc, arrays: Sequence[Tracer], options: Any = None) -> list[DType]:
    """Return the dtypes in which NumPy would compute: of operands, then of results."""
    options = options or {}
    given: list[Any] = [array.weak or array.dtype for array in arrays]
    more = {key: options[key] for key in ("signature", "casting") if key in options}
    if options.get("dtype") is not None:
        more["signature"] = (None,) * ufunc.nin + (np.dtype(options["dtype"]),) * ufunc.nout
    found = ufunc.resolve_dtypes((*given, *[None] * ufunc.nout), **more)
    return [dtype(of) for of in found]


def _out_of_range(
    recording: Recording, ufunc: np.ufunc, arrays: Sequence[Tracer], chosen: Sequence[DType]
) -> Any:
    """Compare with a Python int that the dtype cannot hold: one answer for all elements."""
    if ufunc.nout != 1 or chosen[-1] is not bool_ or len(arrays) != 2:
        return None
    for i, (array, of) in enumerate(zip(arrays, chosen, strict=False)):
        if array.weak is int and array.known is not None and of.is_integer:
            number, (low, high) = int(array.known), of.range
            if not low <= number <= high:
                pair = [0, np.sign(number)] if i else [np.sign(number), 0]
                other = arrays[1 - i].value
                return recording.op(ops.equal if ufunc(*pair) else ops.not_equal, other, other)
    return None


def build(ufunc: np.ufunc, values: Sequence[Value]) -> Any:
    """Make the nodes of a ufunc for operands in NumPy's computation dtypes."""
    name, of = ufunc.__name__, values[0].tensor.dtype
    if name.startswith("logical_"):
        values = [v if v.tensor.dtype is bool_ else ops.not_equal(v, 0) for v in values]
    elif name in _TESTS and not of.is_inexact:
        return (ops.equal if _TESTS[name] else ops.not_equal)(values[0], values[0])
    elif name in _KEEPS.get(of.kind, "").split():
        return values[0]
    elif name == "negative" and of.kind == "uint":
        return ops.subtract(0, values[0])
    elif name == "reciprocal" and of.is_integer:
        return ops.truncate_divide(1, values[0])
    elif name == "equal" and of is bool_:
        return ops.logical_not(ops.logical_xor(*values))
    elif len(values) == 2 and name in _COMPARES and of is not values[1].tensor.dtype:
        return _compared(ufunc, *values)
    made = _BUILDS.get(name)
    if made is None:
        table = _ON_BOOLS if of is bool_ and name in _ON_BOOLS else _NAMES
        if name not in table:
            raise unsupported(ufunc)
        made = getattr(ops, table[name])
    try:
        return made(*values)
    except TraceError:
        raise
    except FusewireError as error:
        raise refusal(f"np.{name}: {error}") from error


def unsupported(ufunc: np.ufunc) -> TraceError:
    """Say that a ufunc has no op, or that the op has a name of its own."""
    if ufunc.__name__ in all_ops():
        return refusal(
            f"{ufunc.__name__} is a ufunc of another library. Use fusewire.ops.{ufunc.__name__}."
        )
    return refusal(
        f"No op corresponds to the ufunc {ufunc.__name__}. Supported: {', '.join(supported())}."
    )


def _chosen(recording: Recording, mask: Any, result: Any, out: Any) -> Any:
    """Keep ``out`` where the mask does not hold; undefined without ``out``."""
    old = out if out is not None else np.zeros((), recording.array(result).dtype)
    return recording.call(np.where, (mask, result, old), {})


def _store(result: Any, out: Any) -> Any:
    """Write a result into ``out``; a scalar is immutable, so it is replaced."""
    if out is None:
        return result
    if isinstance(out, np.ndarray):
        raise refusal(
            "out= is an array that was made outside of the traced function. Make it inside, or "
            "pass it as an argument."
        )
    if isinstance(out, Size) or out.is_scalar:
        return result
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise refusal(
            f"A result of {result.dtype} cannot be stored into an array of {out.dtype}, as in "
            "NumPy: casting would lose values. Use x = x + y in place of x += y, or astype."
        )
    out.assign(result)
    return out
