"""How XLA stores each dtype, and in which dtype a node computes.

Floats of 8 bits or fewer are carried as their bytes, integers under 8 bits as int8 or uint8, so
that moving them is moving bytes and what XLA makes of such types does not matter. Their values
are looked up in tables taken from ml_dtypes: exact, and not fast.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.dtypes import DType
from fusewire.numerics.codes import code_steps, code_values

# An array of jax, or what stands for one while a function is traced.
Traced = Any


def carrier(of: DType) -> np.dtype[Any]:
    """Give the dtype in which XLA holds elements."""
    if not of.is_narrow:
        return of.numpy
    return np.dtype(np.int8 if of.kind == "int" else np.uint8)


def computed(of: DType) -> np.dtype[Any]:
    """Give the dtype in which a node computes: 16 bits and fewer are computed in float32."""
    small = of.is_float and of.bits <= 16
    return np.dtype(np.float32) if small else carrier(of)


def enter(x: Traced, of: DType) -> Traced:
    """Bring what came in over the edge to its carrier: ml_dtypes keeps int4 without its sign."""
    if not (of.is_narrow and of.is_integer):
        return x
    return wrapped(lax.bitcast_convert_type(x, carrier(of)), of)


def leave(x: Traced, of: DType) -> Traced:
    """Undo ``enter``."""
    if not (of.is_narrow and of.is_integer):
        return x
    return lax.bitcast_convert_type(x, np.uint8) & np.uint8(2**of.bits - 1)


def wrapped(x: Traced, of: DType) -> Traced:
    """Drop the bits of an int8 or uint8 above those of a narrower integer."""
    unused = x.dtype.type(8 - of.bits)
    # Shifting back copies the sign of an int8, and zeros into a uint8.
    shift = lax.shift_right_arithmetic if of.kind == "int" else lax.shift_right_logical
    return shift(lax.shift_left(x, unused), unused)


def work(x: Traced, of: DType) -> Traced:
    """Bring an operand to the dtype in which a node computes."""
    if of.is_float and of.is_narrow:
        return jnp.asarray(code_values(of).astype(np.float32))[x]
    return x.astype(computed(of))


def store(x: Traced, of: DType) -> Traced:
    """Round a result to its dtype, and bring it to the carrier."""
    if not of.is_narrow:
        return x.astype(of.numpy)
    return encode(x, of) if of.is_float else wrapped(x.astype(carrier(of)), of)


def encode(x: Traced, of: DType, saturate: bool = False) -> Traced:
    """Round numbers to the bytes of a small float, as ml_dtypes rounds them.

    ``saturate`` gives the nearest finite value for what is beyond it.
    """
    limits, codes, special = code_steps(of, saturate)
    wide = x.astype(np.float64)
    # NaN would be sorted behind all numbers, where there may be a code of another kind.
    known = jnp.where(jnp.isnan(wide), 0.0, wide)
    found = jnp.asarray(codes)[jnp.searchsorted(jnp.asarray(limits), known, side="right")]
    found = jnp.where((wide == 0) & jnp.signbit(wide), special[0], found)
    return jnp.where(jnp.isnan(wide), special[1], found)
