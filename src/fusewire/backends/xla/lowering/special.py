"""Functions that XLA computes too inaccurately (jaxlib 0.10.2, units in the last place).

lgamma: thousands near its zeros at 1 and 2; digamma: NaN at 0. Both are computed as the
reference computes them, in float64. exp2, sinh and cosh: 12 to 340 for large operands; erfc: 33 in
float32 far out; log1p, and so atanh: 120 in float64 between -0.5 and -0.35.
"""

from __future__ import annotations

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import Lower, plain
from fusewire.backends.xla.storage import Traced
from fusewire.ops import special
from fusewire.ops.decompose import Formula


def _exp2(x: Traced) -> Traced:
    x = jnp.clip(x, -1200.0, 1200.0)
    whole = jnp.rint(x)
    return jnp.ldexp(jnp.exp((x - whole) * math.log(2.0)), whole.astype(np.int32))


def _log1p(x: Traced) -> Traced:
    return jnp.where(x < -0.3, jnp.log(1.0 + x), jnp.log1p(x))


def _atanh(x: Traced) -> Traced:
    size = jnp.abs(x)
    return jnp.copysign(0.5 * _log1p(2.0 * size / (1.0 - size)), x)


def _in_float64(formula: Formula) -> Lower:
    return plain(lambda x: formula(jnp, x.astype(np.float64)))


TABLE: dict[str, Lower] = {
    "exp2": plain(_exp2),
    "sinh": plain(partial(special.sinh, jnp)),
    "cosh": plain(partial(special.cosh, jnp)),
    "log1p": plain(_log1p),
    "atanh": plain(_atanh),
    "erfc": plain(lambda x: lax.erfc(x.astype(np.float64))),
    "lgamma": _in_float64(special.lgamma),
    "digamma": _in_float64(special.digamma),
}
