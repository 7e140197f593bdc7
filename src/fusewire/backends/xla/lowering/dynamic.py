"""Ops whose shape is an operand, if the type determines the shape anyway.

The operand is then only needed for what the shape does not tell: where a slice starts, on which
side of an axis the padding is.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.image import resize
from fusewire.backends.xla.lowering.movement import zero
from fusewire.backends.xla.lowering.order import top_k
from fusewire.backends.xla.lowering.signature import Lower, output, shape_of
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Node


def _reshape(node: Node, x: Traced, shape: Traced) -> Traced:
    return jnp.reshape(x, shape_of(node))


def _broadcast(node: Node, x: Traced, shape: Traced) -> Traced:
    return jnp.broadcast_to(x, shape_of(node))


def _tile(node: Node, x: Traced, repeats: Traced) -> Traced:
    sizes = zip(shape_of(node), x.shape, strict=True)
    return jnp.tile(x, [whole // max(part, 1) for whole, part in sizes])


def _slice(node: Node, x: Traced, starts: Traced, limits: Traced, strides: Traced | None) -> Traced:
    axes: Any = node.attrs["axes"]
    sizes = shape_of(node)
    chosen = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    for place, axis in enumerate(chosen):
        dim, start = x.shape[axis], starts[place].astype(np.int64)
        if sizes[axis] == 0 or dim == 0:
            return jnp.zeros(sizes, x.dtype)
        start = jnp.where(start < 0, start + dim, start)
        if strides is None:
            x = lax.dynamic_slice_in_dim(x, jnp.maximum(start, 0), sizes[axis], axis)
            continue
        stride = strides[place].astype(np.int64)
        start = jnp.clip(start, jnp.where(stride > 0, 0, -1), jnp.where(stride > 0, dim, dim - 1))
        x = jnp.take(x, start + np.arange(sizes[axis]) * stride, axis, mode="clip")
    return x


def _positions(count: Traced, at: Traced, mode: str) -> Traced:
    """Find where each element of a padded axis comes from, as ``slicing.pad_positions``."""
    if mode == "edge":
        return jnp.clip(at, 0, jnp.maximum(count - 1, 0))
    if mode == "wrap":
        return at % jnp.maximum(count, 1)
    period = 2 * count if mode == "symmetric" else 2 * count - 2
    period = jnp.maximum(period, 1)
    at = at % period
    return jnp.minimum(at, period - at - (mode == "symmetric"))


def _pad(node: Node, x: Traced, padding: Traced, value: Traced | None) -> Traced:
    sizes, mode = shape_of(node), str(node.attrs["mode"])
    if 0 in sizes:
        return jnp.zeros(sizes, x.dtype)
    fill = zero(output(node).dtype) if value is None else value
    inside = jnp.ones((), np.bool_)
    for axis, size in enumerate(sizes):
        low, high = (padding[i].astype(np.int64) for i in (axis, axis + x.ndim))
        dim, first = x.shape[axis], jnp.maximum(-low, 0)
        if dim == 0:
            return jnp.full(sizes, fill)
        at = np.arange(size) - jnp.maximum(low, 0)
        count = dim + jnp.minimum(high, 0) - first
        if mode == "constant":
            column = (-1,) + (1,) * (x.ndim - 1 - axis)
            inside = inside & ((at >= 0) & (at < count)).reshape(column)
        else:
            at = _positions(count, at, mode)
        x = jnp.take(x, at + first, axis, mode="clip")
    return jnp.where(inside, x, fill)


def _range(node: Node, start: Traced, stop: Traced, step: Traced) -> Traced:
    return jnp.arange(shape_of(node)[0]).astype(start.dtype) * step + start


def _resize(node: Node, x: Traced, sizes: Traced, scales: Traced | None, roi: Any) -> Traced:
    given = node.inputs[2]
    listed = None if given is None or given.constant is None else given.constant.array.tolist()
    attrs: Any = {key: attr for key, attr in node.attrs.items() if key != "dims"}
    return resize(x, roi, shape_of(node), listed, **attrs)


def _top_k(node: Node, x: Traced, k: Traced) -> tuple[Traced, Traced]:
    axis: Any = node.attrs["axis"]
    return top_k(x, shape_of(node)[axis], axis, bool(node.attrs["largest"]))


def _nonzero(node: Node, x: Traced) -> Traced:
    count = shape_of(node)[1]
    if x.ndim == 0:
        return jnp.zeros((0, count), np.int64)
    return jnp.stack(jnp.nonzero(x, size=count)).astype(np.int64)


TABLE: dict[str, Lower] = {
    "dynamic_reshape": _reshape,
    "dynamic_broadcast_to": _broadcast,
    "dynamic_full": _broadcast,
    "dynamic_tile": _tile,
    "dynamic_slice": _slice,
    "dynamic_pad": _pad,
    "dynamic_resize": _resize,
    "dynamic_top_k": _top_k,
    "range": _range,
    "nonzero": _nonzero,
}
