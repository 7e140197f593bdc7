"""Attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fusewire.dtypes import FLOATS, DType, bool_
from fusewire.ir.dims import Dim, floordiv, is_at_most
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import Family, Trait
from fusewire.ops.elementwise import (
    add,
    divide,
    multiply,
    reciprocal,
    sqrt,
    subtract,
    tanh,
)
from fusewire.ops.inference import require, require_dims, same_dim, same_dtype, within
from fusewire.ops.logic import equal, greater_equal, less_equal, logical_and, where
from fusewire.ops.movement import concat, reshape, squeeze, stack, transpose
from fusewire.ops.normalization import fitted, softmax
from fusewire.ops.reduction import reduce_max
from fusewire.ops.sample import Sample, bad, draw, given, sample
from fusewire.ops.slicing import slice_axis, split
from fusewire.ops.statistics import count

FAMILY = Family("transformer")


class Stages(NamedTuple):
    """What attention computes on its way, each [batch, query heads, queries, keys]."""

    raw: Value
    capped: Value
    masked: Value
    weights: Value


def _attention_type(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    mask: TensorType | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    left: int | None = None,
    right: int | None = None,
    offset: Dim = 0,
    softcap: float = 0.0,
    precision: DType | None = None,
) -> TensorType:
    same_dtype(q, k, v)
    require(q.rank == k.rank == v.rank == 4, "q, k, v are [batch, heads, positions, head size].")
    batch = same_dim(same_dim(q.shape[0], k.shape[0], "batches"), v.shape[0], "batches")
    heads = same_dim(k.shape[1], v.shape[1], "heads of k and v")
    require_dims(k.shape[2], v.shape[2], "positions of k and v")
    require_dims(q.shape[3], k.shape[3], "head sizes of q and k")
    if isinstance(q.shape[1], int) and isinstance(heads, int):
        fits = heads > 0 and q.shape[1] % heads == 0
        require(fits, f"{q.shape[1]} query heads do not share {heads} key heads evenly.")
    if mask is not None:
        require(mask.dtype in (bool_, q.dtype), f"the mask is bool or {q.dtype}, found {mask}.")
        fitted(q.with_shape((batch, *q.shape[1:3], k.shape[2])), mask.shape)
    return q.with_shape((batch, *q.shape[1:3], v.shape[3]))


def _visible(
    queries: Dim, keys: Dim, causal: bool, left: int | None, right: int | None, offset: Dim
) -> Value | None:
    """Tell which keys each query sees: query i stands at the place i + offset among the keys."""
    if not causal and left is None and right is None:
        return None
    ahead = 0 if causal else right
    if isinstance(offset, int):
        place = add(iota.new(shape=(queries, 1), axis=0), offset)
    else:
        place = slice_axis(iota.new(shape=(queries + offset, 1), axis=0), 0, np.s_[offset:])
        place = reshape(place, shape=(queries, 1))
    behind = subtract(place, iota.new(shape=(1, keys), axis=1))
    seen = None if ahead is None else greater_equal(behind, -ahead)
    if left is None:
        return seen
    near = less_equal(behind, left)
    return near if seen is None else logical_and(seen, near)


def _root(q: Value) -> Value | float:
    """Take the root of the head size, which only the run may tell."""
    size = count(q, (-1,))
    return sqrt(size) if isinstance(size, Value) else math.sqrt(size)


def _scaled(q: Value, k: Value, scale: float | None) -> tuple[Value, Value]:
    """Scale the product of q and k; both share it in 16 bits, as ONNX has it."""
    if q.tensor.dtype.bits > 16 or (scale is not None and scale <= 0.0):
        return divide(q, _root(q)) if scale is None else multiply(q, scale), k
    root = _root(q) if scale is None else 1.0 / scale
    each = sqrt(reciprocal(root)) if isinstance(root, Value) else math.sqrt(1.0 / root)
    return multiply(q, each), multiply(k, each)


def attention_stages(
    q: Value,
    k: Value,
    mask: Value | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    left: int | None = None,
    right: int | None = None,
    offset: Dim = 0,
    softcap: float = 0.0,
    precision: DType | None = None,
) -> Stages:
    """Compute the weights of attention, and what leads to them."""
    _, heads, queries, size = q.tensor.shape
    _, shared, keys, _ = k.tensor.shape
    scaled, k = _scaled(q, k, scale)
    # Query heads that share a key head become rows of one product.
    rows = floordiv(heads, shared) * queries
    folded = reshape(scaled, shape=(q.tensor.shape[0], shared, rows, size))
    product = matmul(folded, transpose(k, perm=(0, 1, 3, 2)))
    raw = reshape(product, shape=(product.tensor.shape[0], heads, queries, keys))
    capped = multiply(tanh(divide(raw, softcap)), softcap) if softcap else raw
    seen = _visible(queries, keys, causal, left, right, offset)
    biased = capped
    if mask is not None and mask.tensor.dtype is bool_:
        seen = mask if seen is None else logical_and(mask, seen)
    elif mask is not None:
        biased = add(capped, mask)
    masked = biased if seen is None else where(seen, biased, -math.inf)
    scores = masked if precision is None else cast(masked, dtype=precision)
    weights = softmax(scores, axis=-1)
    if mask is not None or left is not None or not is_at_most(0, offset):
        # A query that sees no key has no weights, where softmax has NaN.
        blind = equal(reduce_max(scores, axes=(-1,), keepdims=True), -math.inf)
        weights = where(blind, 0.0, weights)
    if precision is not None:
        weights = cast(weights, dtype=q.tensor.dtype)
    return Stages(raw, capped, masked, weights)


def _attention(q: Value, k: Value, v: Value, mask: Value | None, **attrs: Any) -> Value:
    shape = _attention_type(q.tensor, k.tensor, v.tensor, **attrs).shape
    weights = attention_stages(q, k, mask, **attrs).weights
    batch, heads, queries, keys = weights.tensor.shape
    shared = v.tensor.shape[1]
    folded = reshape(weights, shape=(batch, shared, floordiv(heads, shared) * queries, keys))
    return reshape(matmul(folded, v), shape=shape)


def _attention_samples() -> list[Sample]:
    q, k, v = draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 6)
    shared = draw(1, 4, 3, 4), draw(1, 2, 3, 4), draw(1, 2, 3, 4)
    seen = given([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool_)
    return [
        sample(q, k, v),
        sample(q, k, v, seen, scale=0.3),
        sample(q, k, v, draw(2, 1, 3, 5), softcap=1.5),
        sample(q, k, v, draw(2, 1, 1, 5)),
        sample(q, k, v, seen, causal=True, offset=2),
        sample(*shared, causal=True),
        sample(*shared, draw(4, 1, 3), left=1, right=0),
        sample(*shared, causal=True, offset=-1, precision="float32"),
        sample(draw(0, 2, 3, 4), draw(0, 2, 5, 4), draw(0, 2, 5, 6)),
    ]


attention = FAMILY.declare(
    "attention",
    _attention_type,
    doc="Average v by the softmax of scaled q k^T; a query that sees no key returns 0.",
    expand=_attention,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION,),
    samples=_attention_samples,
    refuses=lambda: [
        bad(
            "scale and bias must broadcast to float32[2, 2, 1, 5], found",
            "[2, 2, 1, 4]",
            "[2, 2, 5, 4]",
            "[2, 2, 5, 6]",
            "bool[3, 5]",
            scale=0.3,
        ),
        bad(
            "operands must have one dtype, found float32 and bool",
            "[2, 2, 3, 4]",
            "bool[2, 2, 5, 4]",
            "[2, 2, 5, 6]",
        ),
        bad(
            "q, k, v are [batch, heads, positions, head size]", "[]", "[2, 2, 5, 4]", "[2, 2, 5, 6]"
        ),
        bad(
            "positions of k and v must be equal, found 6 and 5",
            "[2, 2, 3, 4]",
            "[2, 2, 6, 4]",
            "[2, 2, 5, 6]",
        ),
        bad(
            "head sizes of q and k must be equal, found 5 and 4",
            "[2, 2, 3, 5]",
            "[2, 2, 5, 4]",
            "[2, 2, 5, 6]",
        ),
        bad(
            "3 query heads do not share 2 key heads evenly",
            "[2, 3, 3, 4]",
            "[2, 2, 5, 4]",
            "[2, 2, 5, 6]",
        ),
        bad(
            "the mask is bool or float32, found int8[2, 1, 1, 5]",
            "[2, 2, 3, 4]",
            "[2, 2, 5, 4]",
            "[2, 2, 5, 6]",
            "int8[2, 1, 1, 5]",
        ),
        bad("batches must be equal, found 3 and 2", "[3, 2, 3, 4]", "[2, 2, 5, 4]", "[2, 2, 5, 6]"),
        bad(
            "heads of k and v must be equal, found 3 and 2",
            "[2, 2, 3, 4]",
            "[2, 3, 5, 4]",
            "[2, 2, 5, 6]",
        ),
    ],
    lacks={"scalar": "q, k and v have four axes"},
)


def _rotary_type(
    x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool = False
) -> TensorType:
    same_dtype(x, cos, sin)
    least = min(x.rank, cos.rank, sin.rank)
    require(least > 0, "x, cos and sin need a last axis to rotate along.")
    half = same_dim(cos.shape[-1], sin.shape[-1], "last axes of cos and sin")
    fits = within(2 * half, x.shape[-1])
    require(fits, f"{half} angles rotate {2 * half} elements, found {x.shape[-1]}.")
    rows = fitted(x.with_shape(x.shape[:-1]), cos.shape[:-1], sin.shape[:-1])
    return x.with_shape((*rows.shape, x.shape[-1]))


def _rotary(x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    total = x.tensor.shape[-1]
    half = same_dim(cos.tensor.shape[-1], sin.tensor.shape[-1], "last axes of cos and sin")
    turned, rest = split(x, axis=-1, sizes=(2 * half, total - 2 * half))
    if interleaved:
        pairs = reshape(turned, shape=(*x.tensor.shape[:-1], half, 2))
        first, second = (squeeze(v, axes=(-1,)) for v in split(pairs, axis=-1, sizes=(1, 1)))
    else:
        first, second = split(turned, axis=-1, sizes=(half, half))
    real = subtract(multiply(first, cos), multiply(second, sin))
    imag = add(multiply(first, sin), multiply(second, cos))
    if interleaved:
        joined = stack(real, imag, axis=-1)
        whole = reshape(joined, shape=(*real.tensor.shape[:-1], 2 * real.tensor.shape[-1]))
    else:
        whole = concat(real, imag, axis=-1)
    return whole if total == 2 * half else concat(whole, rest, axis=-1)


rotary = FAMILY.declare(
    "rotary",
    _rotary_type,
    doc="Rotate pairs of the last axis (halves or neighbours) by angles; other elements stay.",
    expand=_rotary,
    dtypes=FLOATS,
    samples=lambda: [
        sample(draw(2, 3, 5, 4), draw(5, 2), draw(5, 2)),
        sample(draw(2, 5, 3, 4), draw(2, 5, 1, 2), draw(2, 5, 1, 2), interleaved=True),
        sample(draw(3, 7), draw(3, 2), draw(3, 2)),
        sample(draw(3, 7), draw(3, 2), draw(3, 2), interleaved=True),
        sample(draw(0, 4), draw(2), draw(2)),
    ],
    refuses=lambda: [
        bad("operands must have one dtype, found float32 and bool", "[0, 4]", "bool[2]", "[2]"),
        bad("x, cos and sin need a last axis to rotate along", "[]", "[2]", "[2]"),
        bad("2 angles rotate 4 elements, found 0", "[0]", "[2]", "[2]"),
        bad("last axes of cos and sin must be equal, found 3 and 2", "[0, 4]", "[3]", "[2]"),
    ],
    lacks={"scalar": "a scalar has no pairs to rotate"},
)
