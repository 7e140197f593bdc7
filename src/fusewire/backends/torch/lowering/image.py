"""Image resizing, and sampling at computed places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation has it

from fusewire.backends.torch.lowering.signature import Function, Lower, Sized, output, sized
from fusewire.backends.torch.storage import Tensor, beside
from fusewire.ir.graph import Array, Node
from fusewire.ops.resampling import COORDINATES, ROUNDINGS, ResizedAxis, taps_of

_GRID = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


# Arrays are kept, not tensors: an export would leave there what stands for one.


@lru_cache(maxsize=256)
def _nearest(axis: ResizedAxis, coordinates: str, rounding: str) -> Array:
    at = COORDINATES[coordinates](axis, np.arange(axis.count, dtype=np.float64))
    found = ROUNDINGS[rounding](at).astype(np.int64)
    return np.clip(found, 0, axis.size - 1)


@lru_cache(maxsize=256)
def _taps(
    axis: ResizedAxis, coordinates: str, mode: str, cubic_a: float, antialias: bool, inside: bool
) -> tuple[tuple[Array, Array], ...]:
    """List pairs of the places of a tap and its weights."""
    at = COORDINATES[coordinates](axis, np.arange(axis.count, dtype=np.float64))
    taps, weights = taps_of(axis, at, mode, cubic_a, antialias, inside)
    taps = np.clip(taps, 0, axis.size - 1)
    return tuple((t.copy(), w.copy()) for t, w in zip(taps.T, weights.T, strict=True))


def _resized(x: Tensor, attrs: Any, sizes: Sequence[int]) -> Tensor:
    """Resize axis by axis; places are computed in float64, as the reference computes them."""
    scales, mode, coordinates = attrs["scales"], attrs["mode"], attrs["coordinates"]
    for i, (size, count) in enumerate(zip(tuple(x.shape), sizes, strict=True)):
        scale = count / max(size, 1) if scales is None else float(scales[i])
        axis = ResizedAxis(size, count, scale)
        if axis.is_same:
            continue
        if not x.numel():
            x = x.new_zeros((*x.shape[:i], count, *x.shape[i + 1 :]))
            continue
        if mode == "nearest":
            nearest = _nearest(axis, coordinates, attrs["rounding"])
            x = torch.index_select(x, i, beside(x, nearest))
            continue
        how = mode, attrs["cubic_a"], attrs["antialias"], attrs["exclude_outside"]
        column = (-1,) + (1,) * (x.dim() - 1 - i)
        parts = [
            torch.index_select(x, i, beside(x, tap)) * beside(x, weight).reshape(column)
            for tap, weight in _taps(axis, coordinates, *how)
        ]
        x = sum(parts[1:], parts[0])
    return x


def _resize(node: Node) -> Function | Sized:
    attrs = node.attrs
    return sized(output(node).shape, lambda x, roi, sizes: _resized(x, attrs, sizes))


def _dynamic_resize(node: Node) -> Function:
    listed = node.inputs[2]
    constant = None if listed is None else listed.constant
    scales = None if constant is None else constant.array.tolist()
    attrs = {**node.attrs, "scales": scales}
    return lambda x, sizes, scales, roi: _resized(x, attrs, sizes.tolist())


def _grid_sample(node: Node) -> Function:
    attrs: Any = node.attrs
    mode, padding = _GRID[attrs["mode"]], attrs["padding"]
    corners = attrs["align_corners"]

    def function(x: Tensor, grid: Tensor) -> Tensor:
        if not x.numel() or not grid.numel():
            return x.new_zeros((*x.shape[:2], *grid.shape[1:-1]))
        found = F.grid_sample(x, grid.to(x.dtype), mode, padding, corners)
        if mode == "nearest":
            return found
        # Some of its kernels take NaN for a place, and reflect infinity to one (2.13).
        lost = ~grid.isfinite() if padding == "reflection" else grid.isnan()
        return torch.where(lost.any(-1)[:, None], torch.nan, found)

    return function


TABLE: dict[str, Lower] = {
    "resize": _resize,
    "dynamic_resize": _dynamic_resize,
    "grid_sample": _grid_sample,
}
