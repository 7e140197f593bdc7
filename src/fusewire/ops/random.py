"""Random numbers from a key of two words, by Threefry-2x32 with 20 rounds.

Every element is a function of the key and of its place alone, in integer arithmetic, so bits,
integers and uniforms from 0 to 1 are the same everywhere; what passes through a logarithm or a
cosine is equal within rounding. ``random_bits`` and ``random_split`` agree with jax.random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, INTEGERS, DType, bool_, float32, float64, int64, uint32, uint64
from fusewire.ir.dims import Dim, Shape, is_equal, size
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import Family, Op, Trait
from fusewire.ops.elementwise import add, cos, log, multiply, negative, remainder, sqrt
from fusewire.ops.inference import require, same_dtype
from fusewire.ops.logic import (
    bitwise_or,
    bitwise_xor,
    greater_equal,
    less,
    shift_left,
    shift_right,
    where,
)
from fusewire.ops.movement import expand_dims, reshape, stack
from fusewire.ops.reduction import argmax, widened
from fusewire.ops.sample import Sample, draw, given, sample
from fusewire.ops.slicing import slice_axis
from fusewire.ops.sorting import argsort

FAMILY = Family("random")

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_KEY = given([0x13198A2E, 0x03707344], uint32)
_LACKS = dict.fromkeys(("empty", "scalar", "broadcast"), "a key always has two words")


def _require_key(key: TensorType) -> None:
    fits = key.dtype is uint32 and key.rank == 1 and is_equal(key.shape[0], 2) is not False
    require(fits, f"a key is uint32[2], found {key}.")


def _threefry_type(key: TensorType, x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    _require_key(key)
    require(same_dtype(x, y) is uint32, f"counters are uint32, found {x}.")
    require(x.shape == y.shape, f"both words of a counter have one shape, found {x} and {y}.")
    return x, y


def _threefry(key: Value, x: Value, y: Value) -> tuple[Value, Value]:
    first, second = (reshape(slice_axis(key, 0, slice(i, i + 1)), shape=()) for i in (0, 1))
    keys = first, second, bitwise_xor(bitwise_xor(first, second), _PARITY)
    x, y = add(x, keys[0]), add(y, keys[1])
    for group in range(5):
        for places in _ROTATIONS[group % 2]:
            x = add(x, y)
            y = bitwise_xor(bitwise_or(shift_left(y, places), shift_right(y, 32 - places)), x)
        x = add(x, keys[(group + 1) % 3])
        y = add(y, add(keys[(group + 2) % 3], group + 1))
    return x, y


threefry = FAMILY.declare(
    "threefry", _threefry_type,
    doc="Mix counters of two words with a key: Threefry-2x32, 20 rounds.",
    expand=_threefry, dtypes=(uint32,), traits=(Trait.ELEMENTWISE, Trait.RANDOM),
    samples=lambda: [
        sample(_KEY, draw(2, 3, low=0, high=2**32 - 1), draw(2, 3, low=0, high=9)),
        sample(_KEY, draw(0, 3), draw(0, 3)),
        sample(_KEY, draw(), draw()),
    ],
    lacks={"scalar": "a key always has two words"},
)  # fmt: skip


def _words(key: Value, shape: Shape) -> tuple[Value, ...]:
    """Mix the place of every element: two words of 32 bits each."""
    low = reshape(iota.new(shape=(size(shape),), axis=0, dtype=uint32), shape=shape)
    return threefry(key, multiply(low, 0), low)


def _bits(key: Value, shape: Shape) -> Value:
    return bitwise_xor(*_words(key, shape))


def _fraction(words: Value, bits: int, dtype: DType, offset: float = 0.0) -> Value:
    """Turn the upper bits of words into (whole number + offset) / 2**bits, exactly."""
    whole = cast(shift_right(words, 32 - bits) if bits < 32 else words, dtype=dtype)
    return multiply(add(whole, offset) if offset else whole, 2.0**-bits)


def _uniform(key: Value, shape: Shape, dtype: DType, low: float, high: float) -> Value:
    if dtype is float64:
        upper, lower = _words(key, shape)
        halves = _fraction(upper, 27, float64), multiply(_fraction(lower, 26, float64), 2.0**-27)
        found = add(*halves)
    else:
        found = _fraction(_bits(key, shape), 1 - round(math.log2(dtype.eps)), dtype)
    if (low, high) == (0.0, 1.0):
        return found
    return add(multiply(found, high - low), low)


def _normal(key: Value, shape: Shape, dtype: DType, mean: float, scale: float) -> Value:
    computed, bits = (float64, 32) if dtype is float64 else (float32, 24)
    first, second = _words(key, shape)
    # Box and Muller: the first is never 0, whose logarithm is infinite.
    radius = sqrt(multiply(log(_fraction(first, bits, computed, 1.0)), -2.0))
    turn = cos(multiply(_fraction(second, bits, computed), 2.0 * math.pi))
    found = add(multiply(multiply(radius, turn), scale), mean)
    return found if dtype is computed else cast(found, dtype=dtype)


def _integers(key: Value, shape: Shape, dtype: DType, low: int, high: int) -> Value:
    span = high - low
    if span <= 2**32:
        found = _bits(key, shape)
    else:
        upper, lower = (cast(word, dtype=uint64) for word in _words(key, shape))
        found = bitwise_or(shift_left(upper, 32), lower)
    if span not in (2**32, 2**64):
        found = remainder(found, span)
    # Integers wrap: what exceeds a signed dtype here is back in range once low is added.
    return add(cast(found, dtype=dtype), np.array(low, dtype.numpy))


def _bits_type(key: TensorType, *, shape: Shape) -> TensorType:
    _require_key(key)
    total = size(shape)
    require(not isinstance(total, int) or total <= 2**32, f"at most 2**32 numbers, found {total}.")
    return TensorType(uint32, shape)


def _uniform_type(
    key: TensorType, *, shape: Shape, dtype: DType = float32, low: float = 0.0, high: float = 1.0
) -> TensorType:
    require(dtype in FLOATS, f"uniform numbers are floats of 16 bits or more, found {dtype}.")
    return _bits_type(key, shape=shape).with_dtype(dtype)


def _normal_type(
    key: TensorType, *, shape: Shape, dtype: DType = float32, mean: float = 0.0, scale: float = 1.0
) -> TensorType:
    require(dtype in FLOATS, f"normal numbers are floats of 16 bits or more, found {dtype}.")
    return _bits_type(key, shape=shape).with_dtype(dtype)


def _integers_type(
    key: TensorType, *, shape: Shape, dtype: DType = int64, low: int = 0, high: int
) -> TensorType:
    require(dtype in INTEGERS, f"integers of 8 bits or more are needed, found {dtype}.")
    first, last = dtype.range
    fits = first <= low < high <= last + 1
    require(fits, f"low < high within {dtype} are needed, found {low} and {high}.")
    return _bits_type(key, shape=shape).with_dtype(dtype)


def _split_type(key: TensorType, *, count: Dim) -> TensorType:
    return _bits_type(key, shape=(count, 2))


def _permutation_type(key: TensorType, *, count: Dim) -> TensorType:
    return _bits_type(key, shape=(count,)).with_dtype(int64)


def _declare(
    name: str, rule: Callable[..., TensorType], expand: Callable[..., Value], doc: str,
    samples: Callable[[], list[Sample]], *traits: Trait, dtypes: tuple[DType, ...] = FLOATS,
    lacks: dict[str, str] | None = None,
) -> Op[Value]:  # fmt: skip
    return FAMILY.declare(
        name, rule, doc=doc, expand=expand, dtypes=dtypes, traits=(Trait.RANDOM, *traits),
        samples=samples, lacks=lacks,
    )  # fmt: skip


def _from_key(
    name: str, rule: Callable[..., TensorType], expand: Callable[..., Value], doc: str, *uses: Any
) -> Op[Value]:
    samples = [sample(_KEY, **attrs) for attrs in uses]
    return _declare(name, rule, expand, doc, lambda: samples, dtypes=(uint32,), lacks=_LACKS)


_SHAPES: tuple[dict[str, Any], ...] = ({"shape": (3, 5)}, {"shape": ()}, {"shape": (0, 3)})
_FLOATS = (*_SHAPES, *({"shape": (7,), "dtype": d} for d in FLOATS))
random_bits = _from_key("random_bits", _bits_type, _bits, "Draw 32 random bits.", *_SHAPES)
random_uniform = _from_key(
    "random_uniform", _uniform_type, _uniform,
    "Draw evenly from low up to high, which rounding may reach unless they are 0 and 1.",
    *_FLOATS, {"shape": (9,), "low": -1.0, "high": 3.0},
)  # fmt: skip
random_normal = _from_key(
    "random_normal", _normal_type, _normal, "Draw from a normal distribution.",
    *_FLOATS, {"shape": (9,), "mean": 5.0, "scale": 2.0},
)  # fmt: skip
random_integers = _from_key(
    "random_integers", _integers_type, _integers,
    "Draw integers from low up to, not including, high, even to one part in 2**32 of the span.",
    *({**shape, "high": 10} for shape in _SHAPES),
    {"shape": (9,), "dtype": "int8", "low": -128, "high": 128},
    {"shape": (9,), "dtype": "int32", "low": -(2**31), "high": 2**31},
    {"shape": (9,), "low": -(2**62), "high": 2**62},
)  # fmt: skip
random_split = _from_key(
    "random_split", _split_type, lambda key, count: stack(*_words(key, (count,)), axis=1),
    "Derive keys, one a row.", {"count": 3}, {"count": 0},
)  # fmt: skip
permutation = _from_key(
    "permutation", _permutation_type, lambda key, count: argsort(_bits(key, (count,)), axis=0),
    "Draw an order of 0 .. count - 1.", {"count": 9}, {"count": 0},
)  # fmt: skip


def _bernoulli_type(probability: TensorType, key: TensorType) -> TensorType:
    return _bits_type(key, shape=probability.shape).with_dtype(bool_)


def _bernoulli(probability: Value, key: Value) -> Value:
    wide = widened(probability)
    shape, dtype = wide.tensor.shape, wide.tensor.dtype
    return less(random_uniform(key, shape=shape, dtype=dtype), wide)


def _dropout_type(x: TensorType, key: TensorType, *, rate: float) -> TensorType:
    require(0.0 <= rate <= 1.0, f"a rate is from 0 to 1, found {rate}.")
    _bits_type(key, shape=x.shape)
    return x


def _dropout(x: Value, key: Value, rate: float) -> Value:
    kept = greater_equal(random_uniform(key, shape=x.tensor.shape, dtype=float32), rate)
    return where(kept, multiply(x, 1.0 / (1.0 - rate) if rate < 1.0 else 0.0), 0.0)


def _multinomial_type(logits: TensorType, key: TensorType, *, samples: Dim) -> TensorType:
    require(logits.rank >= 1, f"logits need an axis of classes, found {logits}.")
    _bits_type(key, shape=(*logits.shape[:-1], samples, logits.shape[-1]))
    return TensorType(int64, (*logits.shape[:-1], samples))


def _multinomial(logits: Value, key: Value, samples: Dim) -> Value:
    wide = widened(logits)
    *batch, classes = wide.tensor.shape
    # The largest of logits plus Gumbel noise is a draw; 23 bits keep both logarithms finite.
    even = _fraction(_bits(key, (*batch, samples, classes)), 23, wide.tensor.dtype, 0.5)
    noise = negative(log(negative(log(even))))
    return argmax(add(expand_dims(wide, axes=(-2,)), noise), axis=-1)


bernoulli = _declare(
    "bernoulli", _bernoulli_type, _bernoulli, "Draw True with the probabilities given.",
    lambda: [sample(draw(*s, low=0.0, high=1.0), _KEY) for s in ((4, 5), (), (0, 2))],
    Trait.DISCONTINUOUS,
)  # fmt: skip
dropout = _declare(
    "dropout", _dropout_type, _dropout, "Set a share of elements to 0 and scale the rest up.",
    lambda: [sample(draw(*s), _KEY, rate=r) for s, r in (((4, 5), 0.3), ((), 0.0), ((0, 2), 1.0))],
)  # fmt: skip
multinomial = _declare(
    "multinomial", _multinomial_type, _multinomial,
    "Draw classes of the last axis with probabilities proportional to e^logits.",
    lambda: [sample(draw(*s, 5), _KEY, samples=3) for s in ((2,), (), (0,), (2, 2))],
    Trait.DISCONTINUOUS, lacks={"scalar": "logits have an axis of classes"},
)  # fmt: skip
