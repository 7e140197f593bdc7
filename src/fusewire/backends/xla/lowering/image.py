"""Image resizing, and sampling at computed places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from fusewire.backends.xla.lowering.signature import Lower, places, shape_of, with_attrs
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Node
from fusewire.ops.image import sample_grid
from fusewire.ops.resampling import COORDINATES, ROUNDINGS, ResizedAxis, taps_of


def _crop(axis: ResizedAxis, at: Traced, start: Traced, end: Traced) -> Traced:
    last = axis.size - 1
    if axis.width == 1:
        return jnp.broadcast_to(0.5 * (start + end) * last, at.shape)
    return start * last + at * (end - start) * last / (axis.width - 1)


def resize(
    x: Traced,
    roi: Traced | None,
    sizes: Sequence[int],
    scales: Sequence[float] | None,
    mode: str,
    coordinates: str,
    rounding: str,
    cubic_a: float,
    antialias: bool,
    exclude_outside: bool,
    extrapolation: float,
) -> Traced:
    """Resize axis by axis; places are computed in float64, as the reference computes them."""
    rank, crops = x.ndim, coordinates == "crop"
    outside = jnp.zeros((), np.bool_)
    for i, (size, count) in enumerate(zip(x.shape, sizes, strict=True)):
        scale = count / max(size, 1) if scales is None else float(scales[i])
        axis = ResizedAxis(size, count, scale)
        if x.size == 0 or (axis.is_same and not crops):
            x = x if axis.is_same else jnp.zeros((*x.shape[:i], count, *x.shape[i + 1 :]), x.dtype)
            continue
        at: Traced = np.arange(count, dtype=np.float64)
        column = (-1,) + (1,) * (rank - 1 - i)
        if crops and roi is not None:
            at = _crop(axis, at, *(roi[j].astype(np.float64) for j in (i, rank + i)))
            outside = outside | ((at < 0) | (at > size - 1)).reshape(column)
        else:
            at = COORDINATES[coordinates](axis, at)
        if mode == "nearest":
            x = jnp.take(x, ROUNDINGS[rounding](at, jnp).astype(np.int64), i, mode="clip")
            continue
        at = jnp.asarray(at)
        taps, weights = taps_of(axis, at, mode, cubic_a, antialias, exclude_outside, jnp)
        parts = zip(taps.T, weights.T.astype(x.dtype), strict=True)
        x = sum(jnp.take(x, t, i, mode="clip") * w.reshape(column) for t, w in parts)
    return jnp.where(outside, x.dtype.type(extrapolation), x) if crops else x


def _resize(node: Node, x: Traced, roi: Traced | None) -> Traced:
    attrs: dict[str, Any] = {**node.attrs, "sizes": shape_of(node)}
    return resize(x, roi, **attrs)


def _roi_taps(
    start: Traced, length: Traced, bins: int, sampling: int, dim: int
) -> tuple[Traced, Traced, Traced]:
    """Give the two neighbours of each sample on one axis, and the weight of the second.

    All are [rois, samples]; the weight is NaN where a sample is too far outside to count.
    """
    step = np.arange(bins * sampling)
    offsets = step // sampling + (step % sampling + 0.5) / sampling
    at = start[:, None] + offsets * length[:, None] / bins
    far = (at < -1) | (at > dim)
    at = jnp.clip(at, 0, dim - 1)
    low = jnp.floor(at).astype(np.int64)
    return low, jnp.minimum(low + 1, dim - 1), jnp.where(far, np.nan, at - low)


def _roi_align(
    x: Traced,
    rois: Traced,
    batches: Traced,
    sizes: tuple[int, int],
    sampling: int,
    scale: float,
    mode: str,
    half_pixel: bool,
) -> Traced:
    boxes = rois.astype(np.float64) * scale - (0.5 if half_pixel else 0.0)
    count = len(rois)
    if count == 0 or x.size == 0:
        return jnp.zeros((count, x.shape[1], *sizes), x.dtype)
    ends = [(boxes[:, 1], boxes[:, 3]), (boxes[:, 0], boxes[:, 2])]
    least = -np.inf if half_pixel else 1.0
    rows, columns = (
        _roi_taps(low, jnp.maximum(high - low, least), bins, sampling, dim)
        for (low, high), bins, dim in zip(ends, sizes, x.shape[2:], strict=True)
    )
    image = jnp.take(x, places(batches, x.shape[0]), 0, mode="clip")
    each = np.arange(count)[:, None, None]
    terms = []
    for i, j in itertools.product((0, 1), (0, 1)):
        part = image[each, :, rows[i][:, :, None], columns[j][:, None, :]]
        down = rows[2] if i else 1 - rows[2]
        across = columns[2] if j else 1 - columns[2]
        weight = jnp.nan_to_num(down[:, :, None] * across[:, None, :]).astype(x.dtype)
        terms.append(part * weight[..., None])
    # ONNX takes the largest of the weighted neighbours, not of their sum.
    whole = sum(terms) if mode == "average" else jnp.max(jnp.stack(terms), 0)
    blocks = whole.reshape(count, sizes[0], sampling, sizes[1], sampling, -1)
    pooled = blocks.mean((2, 4)) if mode == "average" else blocks.max((2, 4))
    return jnp.moveaxis(pooled, -1, 1)


TABLE: dict[str, Lower] = {
    "resize": _resize,
    "grid_sample": with_attrs(partial(sample_grid, jnp)),
    "roi_align": with_attrs(_roi_align),
}
