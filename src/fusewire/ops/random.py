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

from fusewire.dtypes import (
    FLOATS,
    INTEGERS,
    DType,
    float32,
    float64,
    int64,
    uint32,
    uint64,
)
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, Shape, is_equal, size, symbols
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota, range_
from fusewire.ops.declare import Family, Op, Trait
from fusewire.ops.elementwise import add, cos, log, multiply, remainder, sqrt
from fusewire.ops.inference import require, same_dtype
from fusewire.ops.logic import (
    bitwise_or,
    bitwise_xor,
    shift_left,
    shift_right,
)
from fusewire.ops.movement import reshape, stack
from fusewire.ops.sample import Refuses, Sample, bad, draw, given, sample
from fusewire.ops.shape import size_of
from fusewire.ops.slicing import slice_axis
from fusewire.ops.sorting import argsort

FAMILY = Family("random")

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
KEY = given([0x13198A2E, 0x03707344], uint32)
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
    "threefry",
    _threefry_type,
    doc="Mix counters of two words with a key: Threefry-2x32, 20 rounds.",
    expand=_threefry,
    dtypes=(uint32,),
    traits=(Trait.ELEMENTWISE, Trait.RANDOM),
    samples=lambda: [
        sample(KEY, draw(2, 3, low=0, high=2**32 - 1), draw(2, 3, low=0, high=9)),
        sample(KEY, draw(0, 3), draw(0, 3)),
        sample(KEY, draw(), draw()),
    ],
    refuses=lambda: [
        bad("a key is uint32[2], found uint32[]", "[]", "[]", "[]"),
        bad("operands must have one dtype, found bool and uint32", "[2]", "bool[]", "[]"),
        bad("both words of a counter have one shape, found uint32[1] and", "[2]", "[1]", "[]"),
        bad("a key is uint32[2], found uint32[3]", "[3]", "[]", "[]"),
    ],
    lacks={"scalar": "a key always has two words"},
)


def draw_words(key: Value, shape: Shape, like: Value | None = None) -> tuple[Value, ...]:
    """Mix the place of every element: two words of 32 bits each.

    A value of this shape is needed where only the run tells the shape.
    """
    count = size(shape)
    if like is not None and any(s.unbacked for s in symbols(count)):
        zero, one = (constant(np.uint32(n)) for n in (0, 1))
        low = range_(zero, cast(size_of(like), dtype=uint32), one, count=count)
    else:
        low = iota.new(shape=(count,), axis=0, dtype=uint32)
    low = reshape(low, shape=shape)
    return threefry(key, multiply(low, 0), low)


def draw_bits(key: Value, shape: Shape, like: Value | None = None) -> Value:
    """Draw 32 bits for each place."""
    return bitwise_xor(*draw_words(key, shape, like))


def fraction(words: Value, bits: int, dtype: DType, offset: float = 0.0) -> Value:
    """Turn the upper bits of words into (whole number + offset) / 2**bits, exactly."""
    whole = cast(shift_right(words, 32 - bits) if bits < 32 else words, dtype=dtype)
    return multiply(add(whole, offset) if offset else whole, 2.0**-bits)


def draw_uniform(
    key: Value, shape: Shape, dtype: DType, low: float, high: float, like: Value | None = None
) -> Value:
    """Draw evenly from low up to high."""
    if dtype is float64:
        upper, lower = draw_words(key, shape, like)
        halves = fraction(upper, 27, float64), multiply(fraction(lower, 26, float64), 2.0**-27)
        found = add(*halves)
    else:
        found = fraction(draw_bits(key, shape, like), 1 - round(math.log2(dtype.eps)), dtype)
    if (low, high) == (0.0, 1.0):
        return found
    return add(multiply(found, high - low), low)


def draw_normal(
    key: Value, shape: Shape, dtype: DType, mean: float, scale: float, like: Value | None = None
) -> Value:
    """Draw from a normal distribution."""
    computed, bits = (float64, 32) if dtype is float64 else (float32, 24)
    first, second = draw_words(key, shape, like)
    # Box and Muller: the first is never 0, whose logarithm is infinite.
    radius = sqrt(multiply(log(fraction(first, bits, computed, 1.0)), -2.0))
    turn = cos(multiply(fraction(second, bits, computed), 2.0 * math.pi))
    found = add(multiply(multiply(radius, turn), scale), mean)
    return found if dtype is computed else cast(found, dtype=dtype)


def _integers(key: Value, shape: Shape, dtype: DType, low: int, high: int) -> Value:
    span = high - low
    if span <= 2**32:
        found = draw_bits(key, shape)
    else:
        upper, lower = (cast(word, dtype=uint64) for word in draw_words(key, shape))
        found = bitwise_or(shift_left(upper, 32), lower)
    if span not in (2**32, 2**64):
        found = remainder(found, span)
    # Integers wrap: what exceeds a signed dtype here is back in range once low is added.
    return add(cast(found, dtype=dtype), np.array(low, dtype.numpy))


def bits_type(key: TensorType, *, shape: Shape) -> TensorType:
    """Give the type of bits drawn with a key."""
    _require_key(key)
    total = size(shape)
    require(not isinstance(total, int) or total <= 2**32, f"at most 2**32 numbers, found {total}.")
    return TensorType(uint32, shape)


def uniform_type(
    key: TensorType, *, shape: Shape, dtype: DType = float32, low: float = 0.0, high: float = 1.0
) -> TensorType:
    """Give the type of what is drawn evenly."""
    require(dtype in FLOATS, f"uniform numbers are floats of 16 bits or more, found {dtype}.")
    return bits_type(key, shape=shape).with_dtype(dtype)


def normal_type(
    key: TensorType, *, shape: Shape, dtype: DType = float32, mean: float = 0.0, scale: float = 1.0
) -> TensorType:
    """Give the type of what is drawn from a normal distribution."""
    require(dtype in FLOATS, f"normal numbers are floats of 16 bits or more, found {dtype}.")
    return bits_type(key, shape=shape).with_dtype(dtype)


def _integers_type(
    key: TensorType, *, shape: Shape, dtype: DType = int64, low: int = 0, high: int
) -> TensorType:
    require(dtype in INTEGERS, f"integers of 8 bits or more are needed, found {dtype}.")
    first, last = dtype.range
    fits = first <= low < high <= last + 1
    require(fits, f"low < high within {dtype} are needed, found {low} and {high}.")
    return bits_type(key, shape=shape).with_dtype(dtype)


def _split_type(key: TensorType, *, count: Dim) -> TensorType:
    return bits_type(key, shape=(count, 2))


def _permutation_type(key: TensorType, *, count: Dim) -> TensorType:
    return bits_type(key, shape=(count,)).with_dtype(int64)


def declare_random(
    family: Family,
    name: str,
    rule: Callable[..., TensorType],
    expand: Callable[..., Value],
    doc: str,
    samples: Callable[[], list[Sample]],
    *traits: Trait,
    dtypes: tuple[DType, ...] = FLOATS,
    lacks: dict[str, str] | None = None,
    refuses: Refuses | None = None,
) -> Op[Value]:
    """Declare an op that draws."""
    return family.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        traits=(Trait.RANDOM, *traits),
        samples=samples,
        lacks=lacks,
        refuses=refuses,
    )


def _from_key(
    name: str,
    rule: Callable[..., TensorType],
    expand: Callable[..., Value],
    doc: str,
    *uses: Any,
    refuses: Refuses | None = None,
) -> Op[Value]:
    samples = [sample(KEY, **attrs) for attrs in uses]
    return declare_random(
        FAMILY,
        name,
        rule,
        expand,
        doc,
        lambda: samples,
        dtypes=(uint32,),
        lacks=_LACKS,
        refuses=refuses,
    )


_SHAPES: tuple[dict[str, Any], ...] = ({"shape": (3, 5)}, {"shape": ()}, {"shape": (0, 3)})
_FLOATS = (*_SHAPES, *({"shape": (7,), "dtype": d} for d in FLOATS))
random_bits = _from_key("random_bits", bits_type, draw_bits, "Draw 32 random bits.", *_SHAPES)
random_uniform = _from_key(
    "random_uniform",
    uniform_type,
    draw_uniform,
    "Draw from a uniform distribution; rounding may reach high unless the range is 0 to 1.",
    *_FLOATS,
    {"shape": (9,), "low": -1.0, "high": 3.0},
    refuses=lambda: [
        bad(
            "uniform numbers are floats of 16 bits or more, found bool",
            "[2]",
            shape=(),
            dtype="bool",
        ),
        bad("at most 2**32 numbers, found 4295032832", "uint32[2]", shape=(65536, 65537)),
    ],
)
random_normal = _from_key(
    "random_normal",
    normal_type,
    draw_normal,
    "Draw from a normal distribution.",
    *_FLOATS,
    {"shape": (9,), "mean": 5.0, "scale": 2.0},
    refuses=lambda: [
        bad(
            "normal numbers are floats of 16 bits or more, found bool",
            "[2]",
            shape=(),
            dtype="bool",
        )
    ],
)
random_integers = _from_key(
    "random_integers",
    _integers_type,
    _integers,
    "Draw integers from low up to, not including, high, even to one part in 2**32 of the span.",
    *({**shape, "high": 10} for shape in _SHAPES),
    {"shape": (9,), "dtype": "int8", "low": -128, "high": 128},
    {"shape": (9,), "dtype": "int32", "low": -(2**31), "high": 2**31},
    {"shape": (9,), "low": -(2**62), "high": 2**62},
    refuses=lambda: [
        bad(
            "integers of 8 bits or more are needed, found bool",
            "[2]",
            shape=(),
            high=10,
            dtype="bool",
        ),
        bad("low < high within int64 are needed, found 0 and 0", "[2]", shape=(), high=0),
        bad(
            "low < high within int8 are needed, found -128 and 129",
            "[2]",
            shape=(9,),
            dtype="int8",
            low=-128,
            high=129,
        ),
    ],
)
random_split = _from_key(
    "random_split",
    _split_type,
    lambda key, count: stack(*draw_words(key, (count,)), axis=1),
    "Derive keys, one per row.",
    {"count": 3},
    {"count": 0},
)
permutation = _from_key(
    "permutation",
    _permutation_type,
    lambda key, count: argsort(draw_bits(key, (count,)), axis=0),
    "Draw a permutation of 0 .. count - 1.",
    {"count": 9},
    {"count": 0},
)
