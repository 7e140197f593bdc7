"""Arithmetic, comparisons, bits and casts. Operands come in the dtype a node computes in."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from fusewire.backends.xla.lowering.signature import Lower, output, plain
from fusewire.backends.xla.storage import Traced, carrier, encode, store
from fusewire.dtypes import DType, bool_
from fusewire.ir.graph import Node


def _broadcast(function: Callable[..., Traced]) -> Lower:
    """Lower by a function of lax, which takes operands of one shape."""
    return lambda node, *operands: function(*jnp.broadcast_arrays(*operands))


def _is_whole(x: Traced) -> bool:
    return x.dtype.kind in "iu"


def _by(divide: Callable[[Traced, Traced], Traced]) -> Lower:
    """Give 0 for integers divided by 0, where XLA gives -1 or the dividend."""

    def lower(node: Node, x: Traced, y: Traced) -> Traced:
        if not _is_whole(x):
            return divide(x, y)
        nothing = y == 0
        return jnp.where(nothing, x.dtype.type(0), divide(x, jnp.where(nothing, 1, y)))

    return lower


def _power(node: Node, x: Traced, y: Traced) -> Traced:
    if not _is_whole(x):
        return jnp.power(x, y)
    found = jnp.power(x, jnp.maximum(y, 0))
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y % 2 == 0, 1, x), 0)
    return jnp.where(y < 0, inverse, found)


def _shift(shift: Callable[[Traced, Traced], Traced], beyond: Callable[[Traced], Traced]) -> Lower:
    """Say what XLA leaves open: a shift by the width or more, or by less than 0."""

    def lower(node: Node, x: Traced, y: Traced) -> Traced:
        x, y = jnp.broadcast_arrays(x, y)
        inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
        return jnp.where(inside, shift(x, jnp.where(inside, y, 0)), beyond(x))

    return lower


def _signs(x: Traced) -> Traced:
    return jnp.where(x < 0, -1, 0).astype(x.dtype) if x.dtype.kind == "i" else jnp.zeros_like(x)


def _shift_right(x: Traced, y: Traced) -> Traced:
    return (lax.shift_right_arithmetic if x.dtype.kind == "i" else lax.shift_right_logical)(x, y)


def _cast(node: Node, x: Traced) -> Traced:
    of: DType = output(node).dtype
    if of is bool_:
        return x != 0
    if x.dtype.kind == "c" and not of.is_complex:
        x = lax.real(x)
    if of.is_float and of.is_narrow:
        return encode(x, of, saturate=bool(node.attrs["saturate"]))
    if of.is_integer and x.dtype.kind == "f":
        x = _to_integers(x, of)
    return store(x, of)


def _to_integers(x: Traced, of: DType) -> Traced:
    """Round toward 0; NaN gives 0, what is out of range the nearest bound."""
    low, high = (int(limit) for limit in of.range)
    held = carrier(of)
    above, below = x >= float(high) + 1.0, x < float(low)
    inside = jnp.where(above | below | jnp.isnan(x), 0, x).astype(held)
    found = jnp.where(above, held.type(high), inside)
    return jnp.where(below, held.type(low), found)


def _bitcast(node: Node, x: Traced) -> Traced:
    return lax.bitcast_convert_type(x, carrier(output(node).dtype))


def _log_to(base: float) -> Callable[[Traced], Traced]:
    # A Python number, which does not make float32 float64.
    return lambda x: jnp.log(x) * (1.0 / math.log(base))


# Ops that jax.numpy has under the same name, with the same meaning.
_SAME = """
    add subtract multiply divide maximum minimum copysign nextafter negative sign square sqrt cbrt
    exp expm1 log sin cos tan tanh ceil floor trunc conj abs real imag equal
    not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf isfinite signbit where
"""

TABLE: dict[str, Lower] = {
    **{name: plain(getattr(jnp, name)) for name in _SAME.split()},
    "floor_divide": _by(jnp.floor_divide),
    "truncate_divide": _by(lambda x, y: lax.div(*jnp.broadcast_arrays(x, y))),
    "remainder": _by(jnp.remainder),
    "fmod": _by(jnp.fmod),
    "power": _power,
    "atan2": plain(jnp.arctan2),
    "reciprocal": plain(lambda x: 1 / x),
    "rsqrt": plain(lambda x: 1 / jnp.sqrt(x)),
    "log2": plain(_log_to(2.0)),
    "log10": plain(_log_to(10.0)),
    "asin": plain(jnp.arcsin),
    "acos": plain(jnp.arccos),
    "atan": plain(jnp.arctan),
    "asinh": plain(jnp.arcsinh),
    "acosh": plain(jnp.arccosh),
    "erf": plain(lax.erf),
    "round": plain(jnp.rint),
    "complex": _broadcast(lax.complex),
    "sigmoid": plain(lambda x: lax.logistic(x)),
    "shift_left": _shift(lax.shift_left, jnp.zeros_like),
    "shift_right": _shift(_shift_right, _signs),
    "population_count": plain(lax.population_count),
    "cast": _cast,
    "bitcast": _bitcast,
}
