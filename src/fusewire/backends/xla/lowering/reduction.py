"""Reductions over axes, positions of extremes, running reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import Lower, shape_of, with_attrs
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of


def limit(of: np.dtype[Any], largest: bool) -> Any:
    """Give the largest or the smallest value of a dtype."""
    if of.kind == "b":
        return np.bool_(largest)
    if of.kind == "f":
        return of.type(np.inf if largest else -np.inf)
    info = np.iinfo(of)
    return of.type(info.max if largest else info.min)


def _extreme(reduce: Callable[..., Traced], largest: bool) -> Lower:
    def lower(x: Traced, axes: Any, keepdims: bool) -> Traced:
        return reduce(x, axes, keepdims=keepdims, initial=limit(x.dtype, not largest))

    return with_attrs(lower)


def _summed(reduce: Callable[..., Traced]) -> Lower:
    return with_attrs(lambda x, axes, keepdims: reduce(x, axes, x.dtype, keepdims=keepdims))


def _position(find: Callable[..., Traced]) -> Lower:
    def lower(node: Node, x: Traced) -> Traced:
        attrs: Any = node.attrs
        axis, keepdims = attrs["axis"], attrs["keepdims"]
        terms = x.shape[axis]
        if terms == 0:
            return jnp.zeros(shape_of(node), np.int64)
        if x.dtype == np.bool_:
            x = x.astype(np.uint8)
        found = find(jnp.flip(x, axis) if attrs["last"] else x, axis, keepdims=keepdims)
        return terms - 1 - found if attrs["last"] else found

    return lower


def _running(accumulate: Callable[..., Traced], start: Callable[[np.dtype[Any]], Any]) -> Lower:
    def lower(x: Traced, axis: int, exclusive: bool, reverse: bool) -> Traced:
        axis = axis_of(axis, x.ndim)
        if exclusive and x.shape[axis] > 0:
            # Drop what comes last and begin with the neutral element.
            border = [(0, 0, 0)] * x.ndim
            border[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
            x = lax.pad(x, start(x.dtype), border)
        return accumulate(x, axis=axis, reverse=reverse)

    return with_attrs(lower)


TABLE: dict[str, Lower] = {
    "reduce_sum": _summed(jnp.sum),
    "reduce_prod": _summed(jnp.prod),
    "reduce_max": _extreme(jnp.max, largest=True),
    "reduce_min": _extreme(jnp.min, largest=False),
    "reduce_any": with_attrs(lambda x, axes, keepdims: jnp.any(x, axes, keepdims=keepdims)),
    "reduce_all": with_attrs(lambda x, axes, keepdims: jnp.all(x, axes, keepdims=keepdims)),
    "argmax": _position(jnp.argmax),
    "argmin": _position(jnp.argmin),
    "cumsum": _running(lax.cumsum, lambda of: of.type(0)),
    "cumprod": _running(lax.cumprod, lambda of: of.type(1)),
    "cummax": _running(lax.cummax, lambda of: limit(of, largest=False)),
    "cummin": _running(lax.cummin, lambda of: limit(of, largest=True)),
    "cumlogsumexp": _running(lax.cumlogsumexp, lambda of: of.type(-np.inf)),
}
