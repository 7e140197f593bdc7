"""Resizing, and sampling images at computed places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fusewire.backends.xla.lowering.signature import Lower, places, shape_of, with_attrs
from fusewire.backends.xla.storage import Traced
from fusewire.ir.graph import Node
from fusewire.ops.resampling import COORDINATES, ROUNDINGS, ResizedAxis

_ROUNDINGS = {
    "half_down": lambda at: jnp.ceil(at - 0.5),
    "half_up": lambda at: jnp.floor(at + 0.5),
    "floor": jnp.floor,
    "ceil": jnp.ceil,
}
assert _ROUNDINGS.keys() == ROUNDINGS.keys()


def _weight(distance: Traced, a: float | None) -> Traced:
    """Weigh by closeness, or by the cubic convolution kernel of Keys."""
    d = jnp.abs(distance)
    if a is None:
        return jnp.maximum(1 - d, 0.0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return jnp.where(d <= 1, near, jnp.where(d < 2, far, 0.0))


def _crop(axis: ResizedAxis, at: Traced, start: Traced, end: Traced) -> Traced:
    last = axis.size - 1
    if axis.width == 1:
        return jnp.broadcast_to(0.5 * (start + end) * last, at.shape)
    return start * last + at * (end - start) * last / (axis.width - 1)


def _taps(
    axis: ResizedAxis, at: Traced, cubic_a: float | None, antialias: bool, exclude_outside: bool
) -> tuple[Traced, Traced]:
    """Find for each place the elements that count, and their weights: two [count, taps]."""
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    first = int(np.floor(-(1 if cubic_a is None else 2) / stretch)) + 1
    left = jnp.ceil(at) - 1
    steps = np.arange(first, 2 - first)
    weights = _weight((steps - (at - left)[:, None]) * stretch, cubic_a)
    taps = left[:, None].astype(np.int64) + steps
    if exclude_outside:
        weights = jnp.where((taps < 0) | (taps >= axis.size), 0.0, weights)
    if antialias or exclude_outside:
        total = weights.sum(1, keepdims=True)
        weights = weights / jnp.where(total == 0, 1.0, total)
    return taps, weights


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
            x = jnp.take(x, _ROUNDINGS[rounding](at).astype(np.int64), i, mode="clip")
            continue
        kernel = cubic_a if mode == "cubic" else None
        taps, weights = _taps(axis, jnp.asarray(at), kernel, antialias, exclude_outside)
        parts = zip(taps.T, weights.T.astype(x.dtype), strict=True)
        x = sum(jnp.take(x, t, i, mode="clip") * w.reshape(column) for t, w in parts)
    return jnp.where(outside, x.dtype.type(extrapolation), x) if crops else x


def _resize(node: Node, x: Traced, roi: Traced | None) -> Traced:
    attrs: dict[str, Any] = {**node.attrs, "sizes": shape_of(node)}
    return resize(x, roi, **attrs)


def _reflect(at: Traced, low: float, high: float) -> Traced:
    """Fold back at both borders until inside."""
    span = high - low
    folded = jnp.mod(at - low, 2 * span) if span > 0 else jnp.zeros_like(at)
    return low + jnp.minimum(folded, 2 * span - folded)


_STEPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def _grid_taps(
    at: Traced, dim: int, mode: str, padding: str, align: bool
) -> list[tuple[Traced, Traced]]:
    """Find the elements of one axis that count at normalised places, and their weights."""
    low, high = (0.0, dim - 1.0) if align else (-0.5, dim - 0.5)
    at = (at + 1) / 2 * (dim - 1) if align else ((at + 1) * dim - 1) / 2
    at = jnp.rint(at) if mode == "nearest" else at
    beyond = (at < low) | (at > high)
    if padding == "border":
        at = jnp.where(beyond, jnp.clip(at, 0, dim - 1), at)
    elif padding == "reflection":
        at = jnp.where(beyond, _reflect(at, low, high), at)
    left = jnp.trunc(at) if mode == "nearest" else jnp.floor(at)
    found = []
    for step in _STEPS[mode]:
        tap = jnp.nan_to_num(left + step)
        weight = jnp.ones_like(at)
        if mode != "nearest":
            weight = _weight(step - (at - left), -0.75 if mode == "cubic" else None)
        if padding == "zeros":
            weight = jnp.where((tap < 0) | (tap > dim - 1), 0, weight)
        elif padding == "reflection":
            tap = _reflect(tap, low, high)
        found.append((jnp.clip(tap, 0, dim - 1).astype(np.int64), weight))
    return found


def _grid_sample(x: Traced, grid: Traced, mode: str, padding: str, align_corners: bool) -> Traced:
    batch, channels, *dims = x.shape
    shape = (batch, channels, *grid.shape[1:-1])
    if x.size == 0 or grid.size == 0:
        return jnp.zeros(shape, x.dtype)
    flat = x.reshape(batch, channels, -1)
    at = grid.reshape(batch, -1, len(dims))
    # The last element of a place is its row on the first axis.
    axes = [
        _grid_taps(at[..., -1 - i], dim, mode, padding, align_corners) for i, dim in enumerate(dims)
    ]
    out: Traced = 0
    for taps in itertools.product(*axes):
        index: Traced = 0
        weight: Traced = 1
        for dim, (tap, part) in zip(dims, taps, strict=True):
            index, weight = index * dim + tap, weight * part
        out = out + jnp.take_along_axis(flat, index[:, None], 2) * weight[:, None]
    return out.reshape(shape)


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
    "grid_sample": with_attrs(_grid_sample),
    "roi_align": with_attrs(_roi_align),
}
