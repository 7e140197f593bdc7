"""NumPy at the edges of its dtypes: what a program must answer as the function itself does.

Integers at both ends of six dtypes, special values of three floats, functions that write to views
and decide by values, arrays without elements and without axes, and dtypes that meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Function: TypeAlias = Callable[..., Any]
Functions: TypeAlias = Mapping[str, Function]
# A function and what it is called with.
Uses: TypeAlias = Mapping[str, tuple[Function, Any]]


class Case(NamedTuple):
    """A function, and what it is called with."""

    name: str
    function: Function
    inputs: tuple[Any, ...]


def f32(*elements: float) -> Any:
    return np.array(elements, np.float32)


SPECIAL = f32(
    *(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38, 0.5, 2.5, -2.5, 1.5),
    *(16777217, 1e-8),
)
F16 = np.array([0, -0.0, 65504, -65504, 6e-8, 1, np.nan, np.inf], np.float16)
FLOATS = {"special": SPECIAL, "f64": SPECIAL.astype(np.float64), "f16": F16}
I8 = np.array([-128, 127, 0, 1, -1, 2, 100, -100], np.int8)
I32 = np.array([-(2**31), 2**31 - 1, 0, 1, -1, 2, 46341, -7], np.int32)
I64 = np.array([-(2**63), 2**63 - 1, 0, 1, -1, 2, 3037000500, -7], np.int64)
U8 = np.array([0, 1, 255, 128, 127, 2, 3, 200], np.uint8)
U32 = np.array([0, 1, 2**32 - 1, 2**31, 2**31 - 1, 2, 3, 65536], np.uint32)
U64 = np.array([0, 1, 2**64 - 1, 2**63, 2**63 - 1, 2, 3, 2**32], np.uint64)
INTEGERS = {"i8": I8, "i32": I32, "i64": I64, "u8": U8, "u32": U32, "u64": U64}
B = np.array([True, False, True, True, False, False, True, False])
DIVISORS = np.array([3, -3, 2, -2, 5, 7, -7, 1])
M = np.arange(24, dtype=np.float32).reshape(4, 6) - 7


def adds_before(x: Any) -> Any:
    y = x.copy()
    y[1:] += y[:-1]
    return y


def doubles_reversed(x: Any) -> Any:
    y = x.copy()
    y[::-1][:3] = y[:3] * 2
    return y


def writes_to_view(x: Any) -> Any:
    y = x * 1
    z = y[::2]
    z *= 3
    y[1] = z[0]
    return (y, z)


def decides(x: Any) -> Any:
    t = x * 2
    for i in range(3):
        t = t + x[i] if i % 2 else t - x[i]
    return t


def masks(x: Any) -> Any:
    y = np.zeros_like(x)
    y[x > 0] = 1
    return y


def writes_out(x: Any) -> Any:
    y = np.empty_like(x)
    np.multiply(x, 3, out=y)
    return y


def adds_where(x: Any) -> Any:
    return np.add(x, 1, where=x > 0, out=x * 0)


def adds_in_place(x: Any) -> Any:
    y = x.copy()
    y *= 2
    y += 100
    return y


def adds_at_repeated(x: Any) -> Any:
    y = x.copy()
    y[[0, 0, 1]] += 1
    return y


def assigns_broadcast(m: Any) -> Any:
    y = m.copy()
    y[:, 1:3] = y[0:1, 0:1]
    return y


def adds_to_transposed(m: Any) -> Any:
    y = m.copy()
    t = y.T
    t += 1
    return y


def writes_to_flat(m: Any) -> Any:
    y = m.copy()
    v = y.reshape(-1)
    v[3] = 99
    return y


def recurses(x: Any) -> Any:

    def again(a: Any, n: int) -> Any:
        return a if n == 0 else again(a * 1.5 - 1, n - 1)

    return again(x, 4)


def overlaps(x: Any) -> Any:
    y = x.copy()
    y[2:] = y[:-2]
    return y


OVER_INTEGERS: Functions = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "sign": np.sign,
    "square": np.square,
    "x*x": lambda x: x * x,
    "x+x": lambda x: x + x,
    "x-1": lambda x: x - 1,
    "x*3": lambda x: x * 3,
    "x//3": lambda x: x // 3,
    "x//-3": lambda x: x // -3,
    "x%3": lambda x: x % 3,
    "x%-3": lambda x: x % -3,
    "x**2": lambda x: x**2,
    "x**3": lambda x: x**3,
    "x<<3": lambda x: x << 3,
    "x>>3": lambda x: x >> 3,
    "~x": lambda x: ~x,
    "x^5": lambda x: x ^ 5,
    "sum": np.sum,
    "prod": np.prod,
    "cumsum": np.cumsum,
    "max": np.max,
    "argmax": np.argmax,
    "mean": np.mean,
    "x/2": lambda x: x / 2,
    "sqrt": np.sqrt,
    "clip": lambda x: np.clip(x, 1, 100),
    "sort": np.sort,
    "divmod": lambda x: np.divmod(x, 3),
    "fmod": lambda x: np.fmod(x, 3),
    "x==x[0]": lambda x: x == x[0],
    "x<x[::-1]": lambda x: x < x[::-1],
    "astype f32": lambda x: x.astype(np.float32),
    "astype i8": lambda x: x.astype(np.int8),
    "astype u8": lambda x: x.astype(np.uint8),
    "astype i32": lambda x: x.astype(np.int32),
    "astype i64": lambda x: x.astype(np.int64),
    "astype u64": lambda x: x.astype(np.uint64),
    "astype u32": lambda x: x.astype(np.uint32),
    "astype bool": lambda x: x.astype(bool),
    "var": np.var,
    "std": np.std,
    "diff": np.diff,
    "dot": lambda x: np.dot(x, x),
    "ptp": lambda x: np.max(x) - np.min(x),
    "outer": lambda x: np.outer(x, x[:3]),
    "cumprod": np.cumprod,
    "where": lambda x: np.where(x > 1, x, -x),
    "gcd-ish": lambda x: np.maximum(x, 2),
    "x[::-1]": lambda x: x[::-1],
    "roll": lambda x: np.roll(x, 3),
    "argsort": lambda x: np.argsort(x, kind="stable"),
}

OVER_FLOATS: Functions = {
    "neg": lambda x: -x,
    "x*0": lambda x: x * 0,
    "x+0": lambda x: x + 0,
    "0-x": lambda x: 0 - x,
    "x-0": lambda x: x - 0,
    "x/x": lambda x: x / x,
    "1/x": lambda x: 1 / x,
    "x*x": lambda x: x * x,
    "sign": np.sign,
    "abs": np.abs,
    "signbit": np.signbit,
    "copysign": lambda x: np.copysign(1, x),
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "rint": np.rint,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "nanmax-ish": lambda x: np.fmax(x, 0),
    "maximum": lambda x: np.maximum(x, 0),
    "minimum": lambda x: np.minimum(x, 0),
    "clip": lambda x: np.clip(x, -1, 1),
    "x//1": lambda x: x // 1,
    "x%1": lambda x: x % 1,
    "x%-1": lambda x: x % -1,
    "fmod": lambda x: np.fmod(x, 1),
    "x**2": lambda x: x**2,
    "x**0.5": lambda x: x**0.5,
    "x**-1": lambda x: x ** (-1),
    "x**0": lambda x: x**0,
    "x**3": lambda x: x**3,
    "x==x": lambda x: x == x,
    "x!=x": lambda x: x != x,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "sort": np.sort,
    "argsort": lambda x: np.argsort(x, kind="stable"),
    "cumsum": np.cumsum,
    "astype i32 small": lambda x: np.clip(np.nan_to_num(x), -100, 100).astype(np.int32),
    "nan_to_num": np.nan_to_num,
    "where nan": lambda x: np.where(np.isnan(x), 0, x),
    "mean": np.mean,
    "x-x": lambda x: x - x,
    "not": lambda x: np.logical_not(x),
    "and": lambda x: np.logical_and(x, x),
    "any": np.any,
    "all": np.all,
    "count": np.count_nonzero,
    "hypot": lambda x: np.hypot(x, x),
    "atan2": lambda x: np.arctan2(x, x[::-1]),
    "logaddexp": lambda x: np.logaddexp(x, x[::-1]),
    "outer": lambda x: np.multiply.outer(x, x),
    "2*x+x": lambda x: 2 * x + x,
    "(x+1)-1": lambda x: x + 1 - 1,
    "x*2/2": lambda x: x * 2 / 2,
    "x*1e30*1e-30": lambda x: x * np.float32(1e30) * np.float32(1e-30),
    "(x*x)/x": lambda x: x * x / x,
    "abs(x)**2": lambda x: np.abs(x) ** 2,
    "sqrt(x*x)": lambda x: np.sqrt(x * x),
    "exp(log)": lambda x: np.exp(np.log(x)),
    "-(-x)": lambda x: np.negative(-x),
    "0*x+1": lambda x: 0 * x + 1,
    "max(x,x)": lambda x: np.maximum(x, -x),
    "x+x*-1": lambda x: x + x * -1,
}

WRITES: Uses = {
    "inplace_view": (adds_before, f32(1, 2, 3, 4, 5)),
    "inplace_rev": (doubles_reversed, f32(1, 2, 3, 4, 5)),
    "alias": (writes_to_view, f32(1, 2, 3, 4, 5)),
    "ifs": (decides, f32(1, 2, 3, 4, 5)),
    "setitem": (masks, f32(1, -2, 3)),
    "outarg": (writes_out, f32(1, -2, 3)),
    "wherearg": (adds_where, f32(1, -2, 3)),
    "augint8": (adds_in_place, I8),
    "augu8": (adds_in_place, U8),
    "augi64": (adds_in_place, I64),
    "fancy": (adds_at_repeated, f32(1, 2, 3)),
    "bcast_assign": (assigns_broadcast, M),
    "T_": (adds_to_transposed, M),
    "reshape_view": (writes_to_flat, M),
    "nested": (recurses, f32(1, 2)),
    "overlap": (overlaps, f32(1, 2, 3, 4, 5)),
}

OF_NOTHING: Functions = {
    "sum": np.sum,
    "sum0": lambda x: x.sum(0),
    "sum1": lambda x: x.sum(1),
    "mean0": lambda x: x.mean(0),
    "prod": np.prod,
    "any": np.any,
    "all": np.all,
    "cumsum": lambda x: np.cumsum(x, 0),
    "sort": lambda x: np.sort(x, 0),
    "matmul": lambda x: x @ np.ones((3, 2), np.float32),
    "matmulT": lambda x: x.T @ x,
    "concat": lambda x: np.concatenate([x, x]),
    "var": lambda x: np.var(x),
    "tile": lambda x: np.tile(x, (2, 2)),
    "reshape": lambda x: x.reshape(0, 3),
    "stack": lambda x: np.stack([x, x]),
    "where": lambda x: np.where(x > 0, x, 1),
    "std": lambda x: np.std(x, 0),
    "einsum": lambda x: np.einsum("ij,ij->j", x, x),
}

OF_ONE: Functions = {
    "sin": np.sin,
    "sum": np.sum,
    "+": lambda x: x + 1,
    "@": lambda x: x * np.ones(3, np.float32),
    "argmax": np.argmax,
    "cumsum": np.cumsum,
    "sort": lambda x: np.sort(np.atleast_1d(x)),
    "stack": lambda x: np.stack([x, x]),
    "broadcast": lambda x: np.broadcast_to(x, (2, 3)),
    "[None]": lambda x: x[None],
    "clip": lambda x: np.clip(x, 0, 1),
    "round": np.round,
}

OF_TWO: Uses = {
    "i32/f32": (lambda a, b: a + b, (I32, np.ones(8, np.float32))),
    "i8+i32": (lambda a, b: a + b, (I8, I32)),
    "u8+i8": (lambda a, b: a + b, (U8, I8)),
    "u32+i32": (lambda a, b: a * b, (U32, I32)),
    "u64+i64": (lambda a, b: a + b, (U64, I64)),
    "bool+bool": (lambda a, b: a + b, (B, B)),
    "bool-int": (lambda a, b: a * b, (B, I8)),
    "f16+f32": (lambda a, b: a + b, (F16, np.ones(8, np.float32))),
    "f16*i32": (lambda a, b: a * b, (F16, I32)),
    "i64<f64": (lambda a, b: a < b, (I64, I64.astype(np.float64))),
    "u64>i64": (lambda a, b: a > b, (U64, I64)),
    "i64/i64": (lambda a, b: a / b, (I64, I64[::-1].copy())),
    "i64//i64": (lambda a, b: a // np.where(b == 0, 1, b), (I64, DIVISORS)),
    "i64%i64": (lambda a, b: a % b, (I64, DIVISORS)),
    "pow": (lambda a, b: a**b, (I32, np.array([2, 3, 0, 1, 2, 5, 2, 3], np.int32))),
    "shift": (lambda a, b: a << b, (I32, np.array([1, 31, 0, 5, 2, 3, 4, 7], np.int32))),
    "where dt": (lambda a, b: np.where(a > 0, a, b), (I8, np.ones(8, np.float32))),
    "take": (lambda a, b: np.take(a, b), (SPECIAL, np.array([0, -1, 3]))),
    "mm i32": (lambda a, b: a @ b, (I32.reshape(2, 4), I32.reshape(4, 2))),
    "mm i8": (lambda a, b: a @ b, (I8.reshape(2, 4), I8.reshape(4, 2))),
    "mm f16": (
        lambda a, b: a @ b,
        (np.ones((3, 2000), np.float16), np.ones((2000, 3), np.float16)),
    ),
    "mm bool": (lambda a, b: a @ b, (B.reshape(2, 4), B.reshape(4, 2))),
    "einsum": (lambda a, b: np.einsum("ij,kj->ik", a, b), (M, M)),
    "sum f16": (lambda a, b: a.sum() + b, (np.full(4096, 10, np.float16), np.float16(0))),
    "mean f16": (lambda a, b: a.mean() + b, (np.full(70000, 10, np.float16), np.float16(0))),
    "sum i8": (lambda a, b: a.sum() + b, (np.full(100, 127, np.int8), np.int64(0))),
    "sum bool": (lambda a, b: a.sum() + b, (B, np.int64(0))),
    "cumsum i8": (lambda a, b: np.cumsum(a) + b, (np.full(100, 127, np.int8), np.int64(0))),
    "searchsorted": (
        lambda a, b: np.searchsorted(a, b),
        (f32(1, 2, 2, 3, np.nan), f32(2, np.nan, 0, 5)),
    ),
    "isin": (lambda a, b: np.isin(a, b), (I8, np.array([1, 2, 127], np.int8))),
    "minimum nan": (np.minimum, (SPECIAL, SPECIAL[::-1].copy())),
    "maximum nan": (np.maximum, (SPECIAL, SPECIAL[::-1].copy())),
    "eq": (lambda a, b: a == b, (SPECIAL, SPECIAL[::-1].copy())),
    "sub inf": (lambda a, b: a - b, (SPECIAL, SPECIAL)),
    "mul zero inf": (lambda a, b: a * b, (SPECIAL, SPECIAL[::-1].copy())),
    "mm nan zero": (
        lambda a, b: a @ b,
        (f32(0, np.inf, 1, 2).reshape(2, 2), f32(0, 0, 1, 1).reshape(2, 2)),
    ),
}


def cases() -> Iterator[Case]:
    """List them."""
    for over, arrays in ((OVER_INTEGERS, INTEGERS), (OVER_FLOATS, FLOATS)):
        for name, function in over.items():
            for of, x in arrays.items():
                yield Case(f"{name} {of}", function, (x,))
    for name, (function, x) in WRITES.items():
        yield Case(name, function, (x,))
    for name, function in OF_NOTHING.items():
        yield Case(f"empty {name}", function, (np.zeros((0, 3), np.float32),))
    for name, function in OF_ONE.items():
        yield Case(f"0d {name}", function, (np.array(2.5, np.float32),))
    for name, (function, inputs) in OF_TWO.items():
        yield Case(f"two {name}", function, inputs)
