"""Functions that XLA has and does not compute well enough (jaxlib 0.10.2, units in the last place).

lgamma: thousands near its zeros at 1 and 2; digamma: NaN at 0. Both are computed here as the
reference computes them, in float64. exp2, sinh and cosh: 12 to 340 for large operands; erfc: 33 in
float32 far out; log1p, and so atanh: 120 in float64 between -0.5 and -0.35.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import Lower, plain
from fusewire.backends.xla.storage import Traced
from fusewire.ops.special import DIGAMMA, FAR_DIGAMMA, FAR_LOG_GAMMA, LOG_GAMMA


def _exp2(x: Traced) -> Traced:
    x = jnp.clip(x, -1200.0, 1200.0)
    whole = jnp.rint(x)
    return jnp.ldexp(jnp.exp((x - whole) * math.log(2.0)), whole.astype(np.int32))


def _halves(x: Traced) -> tuple[Traced, Traced]:
    """Give half of e^|x| and of e^-|x|; the first is finite wherever sinh and cosh are."""
    root = jnp.exp(jnp.abs(x) * 0.5)
    return 0.5 * root * root, 0.5 / root / root


def _cosh(x: Traced) -> Traced:
    return sum(_halves(x))


def _sinh(x: Traced) -> Traced:
    rising, falling = _halves(x)
    return jnp.where(jnp.abs(x) < 1.0, jnp.sinh(x), jnp.copysign(rising - falling, x))


def _log1p(x: Traced) -> Traced:
    return jnp.where(x < -0.3, jnp.log(1.0 + x), jnp.log1p(x))


def _atanh(x: Traced) -> Traced:
    size = jnp.abs(x)
    return jnp.copysign(0.5 * _log1p(2.0 * size / (1.0 - size)), x)


def _polynomial(x: Traced, factors: Sequence[float]) -> Traced:
    total = jnp.full_like(x, factors[0])
    for factor in factors[1:]:
        total = total * x + factor
    return total


def _to_two(x: Traced) -> tuple[Traced, Traced, Traced]:
    """Step by ones from 0.5..10 to 1.5..2.5, as ``ops.special`` does and explains."""
    x = jnp.minimum(x, 10.0)
    up = x < 1.5
    distance = jnp.where(up, x - 1.0, x - 2.0)
    quotient, total = jnp.where(up, x - 1.0, 1.0), jnp.where(up, -1.0 / x, 0.0)
    for _ in range(8):
        down = distance > 0.5
        distance = jnp.where(down, distance - 1.0, distance)
        quotient = jnp.where(down, quotient * (distance + 2.0), quotient)
        total = jnp.where(down, total + 1.0 / (distance + 2.0), total)
    return distance, quotient, total


def _lgamma(x: Traced) -> Traced:
    wide = x.astype(np.float64)
    mirrored = wide < 0.5
    right = jnp.where(mirrored, 1.0 - wide, wide)
    distance, quotient, _ = _to_two(right)
    step = jnp.where(right < 1.5, -jnp.log1p(quotient), jnp.log(quotient))
    near = step + _polynomial(distance, LOG_GAMMA)
    far = jnp.maximum(right, 10.0)
    series = _polynomial(1.0 / (far * far), FAR_LOG_GAMMA) / far
    stirling = (far - 0.5) * jnp.log(far) - far + 0.5 * np.log(2.0 * np.pi) + series
    found = jnp.where(right < 10.0, near, stirling)
    sine = jnp.abs(jnp.sin(np.pi * (wide - jnp.round(wide))))
    found = jnp.where(mirrored, jnp.log(np.pi / sine) - found, found)
    return jnp.where(jnp.isinf(wide), np.inf, found)


def _digamma(x: Traced) -> Traced:
    wide = x.astype(np.float64)
    mirrored = wide < 0.5
    right = jnp.where(mirrored, 1.0 - wide, wide)
    distance, _, total = _to_two(right)
    far = jnp.maximum(right, 10.0)
    square = 1.0 / (far * far)
    distant = jnp.log(far) - 0.5 / far - square * _polynomial(square, FAR_DIGAMMA)
    found = jnp.where(right < 10.0, total + _polynomial(distance, DIGAMMA), distant)
    turn = wide - jnp.round(wide)
    found = jnp.where(mirrored, found - np.pi / jnp.tan(np.pi * turn), found)
    pole = (wide < 0.0) & (turn == 0.0)
    return jnp.where(pole, np.nan, jnp.where(wide == np.inf, np.inf, found))


TABLE: dict[str, Lower] = {
    "exp2": plain(_exp2),
    "sinh": plain(_sinh),
    "cosh": plain(_cosh),
    "log1p": plain(_log1p),
    "atanh": plain(_atanh),
    "erfc": plain(lambda x: lax.erfc(x.astype(np.float64))),
    "lgamma": plain(_lgamma),
    "digamma": plain(_digamma),
}
