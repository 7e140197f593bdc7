"""Movement of elements: shape, order, parts, padding; reads and writes at computed places.

Elements come in their carrier (storage.py), so any dtype is moved bit for bit.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.signature import (
    Lower,
    output,
    places,
    shape_of,
    with_attrs,
)
from fusewire.backends.xla.storage import Traced, carrier
from fusewire.dtypes import DType
from fusewire.ir.graph import Array, Node
from fusewire.ops.inference import axis_of
from fusewire.ops.slicing import pad_positions, slice_size


def _broadcast_to(node: Node, x: Traced) -> Traced:
    return jnp.broadcast_to(x, shape_of(node))


def _concat(*xs: Traced, axis: int) -> Traced:
    return lax.concatenate(xs, axis_of(axis, xs[0].ndim))


def _slice(x: Traced, starts: Any, limits: Any, strides: Any) -> Traced:
    """Slice forwards, and then turn the axes whose stride is negative."""
    first, last, turned = [], [], []
    for axis, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        count = slice_size(start, limit, stride)
        ends = (start, start + (count - 1) * stride)
        first.append(min(ends) if count else 0)
        last.append(max(ends) + 1 if count else 0)
        if count and stride < 0:
            turned.append(axis)
    found = lax.slice(x, first, last, [abs(stride) for stride in strides])
    return lax.rev(found, turned) if turned else found


def zero(of: DType) -> Array:
    """Give what pads: 0 as it is carried. (float8_e8m0fnu has no 0, and gives NaN.)"""
    found: Array = np.zeros((), np.int8).astype(of.numpy)
    return found.view(carrier(of)) if of.is_float else found.astype(carrier(of))


def _pad(node: Node, x: Traced, value: Traced | None) -> Traced:
    padding: Any = node.attrs["padding"]
    mode = str(node.attrs["mode"])
    if mode == "constant":
        fill = zero(output(node).dtype) if value is None else value
        return lax.pad(x, fill, [(low, high, 0) for low, high in padding])
    # What is negative is cut off first; what is left is what modes repeat.
    x = lax.pad(x, np.zeros((), x.dtype), [(min(a, 0), min(b, 0), 0) for a, b in padding])
    for axis, (low, high) in enumerate(padding):
        if max(low, high) > 0:
            at = pad_positions(x.shape[axis], max(low, 0), max(high, 0), mode)
            x = jnp.take(x, at, axis, mode="clip")
    return x


def _iota(node: Node) -> Traced:
    shape, of = shape_of(node), output(node).dtype
    counted = np.int64 if of.is_integer else np.float64
    axis = axis_of(node.attrs["axis"], len(shape))  # type: ignore[arg-type] # it is an int
    return lax.broadcasted_iota(counted, shape, axis).astype(carrier(of))


def _gather(x: Traced, indices: Traced, axis: int) -> Traced:
    return jnp.take(x, places(indices, x.shape[axis]), axis, mode="clip")


def _along(x: Traced, indices: Traced, axis: int) -> tuple[Traced, ...]:
    """Index each element at its own place, but for one axis, where indices tell."""
    found: list[Traced] = list(np.indices(indices.shape, np.int32, sparse=True))
    found[axis] = places(indices, x.shape[axis])
    return tuple(found)


def _gather_elements(x: Traced, indices: Traced, axis: int) -> Traced:
    return x.at[_along(x, indices, axis)].get(mode="clip")


def _parts(x: Traced, indices: Traced, first: int = 0) -> list[Traced]:
    """Split the last axis of indices, whose elements name places on axes from ``first`` on."""
    depth = indices.shape[-1]
    return [places(indices[..., i], x.shape[first + i]) for i in range(depth)]


def _gather_nd(x: Traced, indices: Traced, batch_dims: int) -> Traced:
    outer = indices.shape[:-1]
    found = [
        *np.indices(outer, np.int32, sparse=True)[:batch_dims],
        *_parts(x, indices, batch_dims),
    ]
    if not found:
        return jnp.broadcast_to(x, (*outer, *x.shape))
    return x.at[tuple(found)].get(mode="clip")


def _write(x: Traced, at: tuple[Traced, ...], updates: Traced, reduction: str) -> Traced:
    if updates.size == 0:
        return x
    return getattr(x.at[at], reduction)(updates, mode="drop")


def _scatter_elements(
    x: Traced, indices: Traced, updates: Traced, axis: int, reduction: str
) -> Traced:
    return _write(x, _along(x, indices, axis), updates, reduction)


def _scatter_nd(x: Traced, indices: Traced, updates: Traced, reduction: str) -> Traced:
    return _write(x, tuple(_parts(x, indices)), updates, reduction)


def _dynamic_update_slice(node: Node, x: Traced, update: Traced, starts: Traced) -> Traced:
    room = [whole - part for whole, part in zip(x.shape, update.shape, strict=True)]
    at = [jnp.clip(starts[i].astype(np.int64), 0, most) for i, most in enumerate(room)]
    return lax.dynamic_update_slice(x, update, at) if at else update


def _shape_of(node: Node, x: Traced) -> Traced:
    return jnp.asarray(np.array(x.shape, np.int64))


TABLE: dict[str, Lower] = {
    "reshape": lambda node, x: jnp.reshape(x, shape_of(node)),
    "transpose": with_attrs(lambda x, perm: lax.transpose(x, perm)),
    "broadcast_to": _broadcast_to,
    "concat": with_attrs(_concat),
    "slice": with_attrs(_slice),
    "pad": _pad,
    "iota": _iota,
    "gather": with_attrs(_gather),
    "gather_elements": with_attrs(_gather_elements),
    "gather_nd": with_attrs(_gather_nd),
    "scatter_elements": with_attrs(_scatter_elements),
    "scatter_nd": with_attrs(_scatter_nd),
    "dynamic_update_slice": _dynamic_update_slice,
    "shape_of": _shape_of,
}
