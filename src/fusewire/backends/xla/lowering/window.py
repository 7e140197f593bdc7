"""Matrix products, convolutions and sliding windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fusewire.backends.xla.lowering.reduction import limit
from fusewire.backends.xla.lowering.signature import PRECISION, Lower, shape_of, with_attrs
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Array, Node
from fusewire.ops.window import Sizes, Window, known


def _dot_general(a: Traced, b: Traced, contract: Any, batch: Any) -> Traced:
    pairs = tuple(
        (tuple(i % a.ndim for i in left), tuple(i % b.ndim for i in right))
        for left, right in (contract, batch)
    )
    return lax.dot_general(a, b, pairs, precision=PRECISION, preferred_element_type=a.dtype)


def _matmul(a: Traced, b: Traced) -> Traced:
    return jnp.matmul(a, b, precision=PRECISION, preferred_element_type=a.dtype)


def _conv(node: Node, x: Traced, w: Traced, bias: Traced | None) -> Traced:
    attrs: Any = node.attrs
    window = Window.of(w.shape[2:], attrs["strides"], attrs["padding"], attrs["dilations"])
    rank = len(window.sizes)
    if x.size == 0 or w.size == 0 or 0 in shape_of(node):
        y = jnp.zeros(shape_of(node), x.dtype)
    else:
        y = lax.conv_general_dilated(
            x,
            w,
            window.strides,
            window.padding,
            attrs["input_dilations"],
            window.dilations,
            feature_group_count=attrs["groups"],
            precision=PRECISION,
            preferred_element_type=x.dtype,
        )
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def _sliding(node: Node) -> Window:
    keys = ("window", "strides", "padding", "dilations", "ceil")
    window, *rest = (node.attrs[key] for key in keys)
    return Window.of(window, *rest)  # type: ignore[arg-type] # attributes of pooling have these types


def _padded(window: Window, x: Traced, fill: Any) -> Traced:
    """Pad or crop the spatial axes to exactly the cells that windows touch."""
    places, extents = window.places(x), known(window.extents)
    borders = [(0, 0, 0), (0, 0, 0)]
    for axis, (low, _) in enumerate(window.padding):
        dim = x.shape[axis + 2]
        touched = (places[axis] - 1) * window.strides[axis] + extents[axis]
        borders.append((low, touched - low - dim, 0))
    return lax.pad(x, np.asarray(fill, x.dtype), borders)


def _reduced(node: Node, x: Traced, start: Any, step: Any) -> Traced:
    if 0 in shape_of(node):
        return jnp.zeros(shape_of(node), x.dtype)
    window = _sliding(node)
    return lax.reduce_window(
        _padded(window, x, start),
        np.asarray(start, x.dtype),
        step,
        (1, 1, *known(window.sizes)),
        (1, 1, *window.strides),
        "VALID",
        window_dilation=(1, 1, *window.dilations),
    )


def _max_pool(node: Node, x: Traced) -> Traced:
    return _reduced(node, x, limit(x.dtype, largest=False), lax.max)


def _sum_pool(node: Node, x: Traced) -> Traced:
    return _reduced(node, x, 0, lax.add)


def _counts(window: Window, shape: tuple[int, ...], count_padding: bool) -> Array:
    """Count the cells that each place of the window averages over, 1 at least."""
    counts: Array = np.ones(())
    for axis, (low, high) in enumerate(window.padding):
        dim, places = shape[axis + 2], known(window.output(shape[2:]))[axis]
        offsets = np.arange(known(window.sizes)[axis]) * window.dilations[axis]
        cells = np.arange(places)[:, None] * window.strides[axis] - low + offsets
        # What a cut last window lacks beyond the padding never counts.
        first, last = (-low, dim + high) if count_padding else (0, dim)
        counts = counts[..., None] * ((cells >= first) & (cells < last)).sum(axis=1)
    return np.maximum(counts, 1)


def _average_pool(node: Node, x: Traced) -> Traced:
    counts = _counts(_sliding(node), x.shape, bool(node.attrs["count_padding"]))
    return _sum_pool(node, x) / counts.astype(x.dtype)


def _cells(window: Window, x: Traced, fill: Any, places: Sizes) -> Iterator[Traced]:
    """Yield, for each offset in the window in row-major order, its element at every place."""
    padded = _padded(window, x, fill)
    for offset in itertools.product(*map(range, known(window.sizes))):
        starts = [o * d for o, d in zip(offset, window.dilations, strict=True)]
        steps = zip(starts, places, window.strides, strict=True)
        limits = [start + (n - 1) * stride + 1 for start, n, stride in steps]
        yield lax.slice(
            padded, (0, 0, *starts), (*padded.shape[:2], *limits), (1, 1, *window.strides)
        )


def _max_pool_with_indices(node: Node, x: Traced) -> tuple[Traced, Traced]:
    shape, window = shape_of(node), _sliding(node)
    best = jnp.full(shape, limit(x.dtype, largest=False))
    found = jnp.full(shape, -1, np.int64)
    if 0 in shape:
        return best, found
    plane = int(np.prod(x.shape[2:], dtype=np.int64))
    order: Any = "F" if node.attrs["column_major"] else "C"
    inside = jnp.asarray(np.arange(plane).reshape(x.shape[2:], order=order)[None, None])
    cells = _cells(window, x, 0, shape[2:]), _cells(window, inside, -1, shape[2:])
    for cell, index in zip(*cells, strict=True):
        # Earlier cells win ties, and NaN wins over numbers.
        better = (found < 0) | (cell > best) | ((cell != cell) & (best == best))
        better &= index >= 0
        best, found = jnp.where(better, cell, best), jnp.where(better, index, found)
    offsets = np.arange(x.shape[0] * x.shape[1]) * plane
    offsets = offsets.reshape(*x.shape[:2], *[1] * (x.ndim - 2))
    return best, jnp.where(found < 0, found, found + offsets)


TABLE: dict[str, Lower] = {
    "dot_general": with_attrs(_dot_general),
    "matmul": lambda node, a, b: _matmul(a, b),
    "conv": _conv,
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "average_pool": _average_pool,
    "max_pool_with_indices": _max_pool_with_indices,
}
