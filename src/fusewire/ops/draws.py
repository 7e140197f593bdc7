"""Random numbers for each element of an operand, even if only a run determines its shape."""

from __future__ import annotations

from collections.abc import Callable

from fusewire.dtypes import REAL, DType, bool_, float32, int64
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Family, Op, Trait
from fusewire.ops.elementwise import add, log, multiply, negative
from fusewire.ops.inference import require
from fusewire.ops.logic import greater_equal, less, where
from fusewire.ops.movement import broadcast_to, expand_dims
from fusewire.ops.random import (
    KEY,
    bits_type,
    declare_random,
    draw_bits,
    draw_normal,
    draw_uniform,
    fraction,
    normal_type,
    uniform_type,
)
from fusewire.ops.reduction import argmax, widened
from fusewire.ops.sample import bad, draw, sample

FAMILY = Family("draws")


def _uniform_like_type(
    x: TensorType, key: TensorType, *, dtype: DType = float32, low: float = 0.0, high: float = 1.0
) -> TensorType:
    return uniform_type(key, shape=x.shape, dtype=dtype)


def _normal_like_type(
    x: TensorType, key: TensorType, *, dtype: DType = float32, mean: float = 0.0, scale: float = 1.0
) -> TensorType:
    return normal_type(key, shape=x.shape, dtype=dtype)


def _like(
    name: str, rule: Callable[..., TensorType], draws: Callable[..., Value], doc: str
) -> Op[Value]:
    return declare_random(
        FAMILY,
        name,
        rule,
        lambda x, key, **attrs: draws(key, x.tensor.shape, **attrs, like=x),
        doc,
        lambda: [
            sample(draw(3), KEY),
            *(sample(draw(*s), KEY, only=(float32,)) for s in ((2, 3), (), (0, 3))),
            sample(draw(7), KEY, dtype="float64", only=(float32,)),
        ],
        dtypes=(bool_, *REAL),
    )


random_uniform_like = _like(
    "random_uniform_like",
    _uniform_like_type,
    draw_uniform,
    "Draw from a uniform distribution for each element of the operand.",
)
random_normal_like = _like(
    "random_normal_like",
    _normal_like_type,
    draw_normal,
    "Draw from a normal distribution for each element of the operand.",
)


def _bernoulli_type(probability: TensorType, key: TensorType) -> TensorType:
    return bits_type(key, shape=probability.shape).with_dtype(bool_)


def _bernoulli(probability: Value, key: Value) -> Value:
    wide = widened(probability)
    return less(random_uniform_like(wide, key, dtype=wide.tensor.dtype), wide)


def _dropout_type(x: TensorType, key: TensorType, *, rate: float) -> TensorType:
    require(0.0 <= rate <= 1.0, f"a rate is from 0 to 1, found {rate}.")
    bits_type(key, shape=x.shape)
    return x


def _dropout(x: Value, key: Value, rate: float) -> Value:
    kept = greater_equal(random_uniform_like(x, key), rate)
    return where(kept, multiply(x, 1.0 / (1.0 - rate) if rate < 1.0 else 0.0), 0.0)


def _multinomial_type(logits: TensorType, key: TensorType, *, samples: Dim) -> TensorType:
    require(logits.rank >= 1, f"logits need an axis of classes, found {logits}.")
    bits_type(key, shape=(*logits.shape[:-1], samples, logits.shape[-1]))
    return TensorType(int64, (*logits.shape[:-1], samples))


def _multinomial(logits: Value, key: Value, samples: Dim) -> Value:
    wide = widened(logits)
    *batch, classes = wide.tensor.shape
    # The largest of logits plus Gumbel noise is a draw; 23 bits keep both logarithms finite.
    each = broadcast_to(expand_dims(wide, axes=(-2,)), shape=(*batch, samples, classes))
    even = fraction(draw_bits(key, each.tensor.shape, each), 23, wide.tensor.dtype, 0.5)
    noise = negative(log(negative(log(even))))
    return argmax(add(each, noise), axis=-1)


bernoulli = declare_random(
    FAMILY,
    "bernoulli",
    _bernoulli_type,
    _bernoulli,
    "Draw True with the given probabilities.",
    lambda: [sample(draw(*s, low=0.0, high=1.0), KEY) for s in ((4, 5), (), (0, 2))],
    Trait.DISCONTINUOUS,
)
dropout = declare_random(
    FAMILY,
    "dropout",
    _dropout_type,
    _dropout,
    "Set a share of elements to 0 and scale the others up.",
    lambda: [sample(draw(*s), KEY, rate=r) for s, r in (((4, 5), 0.3), ((), 0.0), ((0, 2), 1.0))],
    refuses=lambda: [
        bad("a rate is from 0 to 1, found 2.0", "[]", "uint32[2]", rate=2.0),
        bad("a key is uint32[2], found bool[2]", "[]", "bool[2]", rate=0.0),
    ],
)
multinomial = declare_random(
    FAMILY,
    "multinomial",
    _multinomial_type,
    _multinomial,
    "Draw classes of the last axis with probabilities proportional to e^logits.",
    lambda: [sample(draw(*s, 5), KEY, samples=3) for s in ((2,), (), (0,), (2, 2))],
    Trait.DISCONTINUOUS,
    lacks={"scalar": "logits have an axis of classes"},
    refuses=lambda: [
        bad("logits need an axis of classes, found float32[]", "[]", "uint32[2]", samples=3),
        bad("a key is uint32[2], found bool[2]", "[5]", "bool[2]", samples=3),
    ],
)
