"""Pooling over sliding windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation has it

from fusewire.backends.torch.lowering.reduction import limit
from fusewire.backends.torch.lowering.signature import (
    Function,
    Lower,
    Sized,
    operand,
    output,
    sized,
)
from fusewire.backends.torch.storage import Tensor, beside
from fusewire.ir.graph import Array, Node
from fusewire.ops.window import Window, known

_MAX = {1: torch.max_pool1d, 2: torch.max_pool2d, 3: torch.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _sliding(node: Node) -> Window:
    keys = ("window", "strides", "padding", "dilations", "ceil")
    window, *rest = (node.attrs[key] for key in keys)
    return Window.of(window, *rest)  # type: ignore[arg-type] # attributes of pooling have these types


def _has_kernel(window: Window) -> bool:
    """Tell whether PyTorch pads so: alike on both sides, by half a window at most."""
    if window.ceil or len(window.sizes) not in _MAX:
        return False
    sides = zip(window.padding, known(window.sizes), strict=True)
    return all(low == high and 0 <= 2 * low <= size for (low, high), size in sides)


def _bordered(window: Window, x: Tensor, fill: Any, places: Sequence[int]) -> Tensor:
    """Pad or crop the spatial axes to exactly the cells that windows touch."""
    extents = known(window.extents)
    borders: list[int] = []
    for axis, (low, _) in enumerate(window.padding):
        dim = x.shape[axis + 2]
        touched = (places[axis] - 1) * window.strides[axis] + extents[axis]
        borders = [low, touched - low - dim if places[axis] else 0, *borders]
    return F.pad(x, borders, value=fill) if any(borders) else x


def _cells(window: Window, x: Tensor, fill: Any, places: Sequence[int]) -> Iterator[Tensor]:
    """Yield, for each offset in the window in row-major order, its element at every place."""
    whole = _bordered(window, x, fill, places)
    for offset in itertools.product(*map(range, known(window.sizes))):
        cut = [slice(None)] * 2
        for o, d, n, s in zip(offset, window.dilations, places, window.strides, strict=True):
            cut.append(slice(o * d, o * d + (n - 1) * s + 1 if n else o * d, s))
        yield whole[tuple(cut)]


def _max_pool(node: Node) -> Function | Sized:
    window, of = _sliding(node), output(node).dtype
    lowest = limit(of, largest=False)
    if of.is_float and _has_kernel(window):
        kernel, inner = _MAX[len(window.sizes)], tuple(low for low, _ in window.padding)
        sizes = known(window.sizes)

        def pooled(x: Tensor, shape: tuple[int, ...]) -> Tensor:
            if 0 in shape:
                return x.new_full(shape, lowest)
            return kernel(x, sizes, window.strides, inner, window.dilations)

        return sized(output(node).shape, pooled)

    def function(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        best = x.new_full(shape, lowest)
        for cell in _cells(window, x, lowest, shape[2:]):
            best = torch.maximum(best, cell)
        return best

    return sized(output(node).shape, function)


def _sum_pool(node: Node) -> Function | Sized:
    window = _sliding(node)
    return sized(output(node).shape, lambda x, shape: _summed(window, x, shape))


def _summed(window: Window, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    total = x.new_zeros(shape)
    for cell in _cells(window, x, 0, shape[2:]):
        total = total + cell
    return total


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


def _average_pool(node: Node) -> Function | Sized:
    window, counts_padding = _sliding(node), bool(node.attrs["count_padding"])
    if _has_kernel(window) and set(window.dilations) == {1}:
        kernel, inner = _AVERAGE[len(window.sizes)], tuple(low for low, _ in window.padding)
        sizes = known(window.sizes)

        def pooled(x: Tensor, shape: tuple[int, ...]) -> Tensor:
            if 0 in shape:
                return x.new_zeros(shape)
            return kernel(x, sizes, window.strides, inner, False, counts_padding)

        return sized(output(node).shape, pooled)

    def function(x: Tensor, shape: tuple[int, ...]) -> Tensor:
        counts = beside(x, _counts(window, tuple(x.shape), counts_padding))
        return _summed(window, x, shape) / counts.to(x.dtype)

    return sized(output(node).shape, function)


def _max_pool_with_indices(node: Node) -> Function | Sized:
    window, lowest = _sliding(node), limit(output(node).dtype, largest=False)
    order: Any = "F" if node.attrs["column_major"] else "C"

    def function(x: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        best = x.new_full(shape, lowest)
        found = x.new_full(shape, -1, dtype=torch.int64)
        spatial = tuple(x.shape[2:])
        plane = int(np.prod(spatial, dtype=np.int64))
        inside = np.ascontiguousarray(np.arange(plane).reshape(spatial, order=order))
        places = _cells(window, beside(x, inside)[None, None], -1, shape[2:])
        for cell, index in zip(_cells(window, x, 0, shape[2:]), places, strict=True):
            # Earlier cells win ties, and NaN wins over numbers.
            better = (found < 0) | (cell > best) | ((cell != cell) & (best == best))
            better = better & (index >= 0)
            best, found = torch.where(better, cell, best), torch.where(better, index, found)
        images = torch.arange(x.shape[0] * x.shape[1], device=x.device) * plane
        images = images.reshape(*x.shape[:2], *[1] * len(spatial))
        return best, torch.where(found < 0, found, found + images)

    return sized(output(node).shape, function)


def _global(reduce: Function) -> Lower:
    def lower(node: Node) -> Function:
        axes = tuple(range(2, operand(node).rank))
        return lambda x: reduce(x, axes, True)

    return lower


TABLE: dict[str, Lower] = {
    "max_pool": _max_pool,
    "sum_pool": _sum_pool,
    "average_pool": _average_pool,
    "max_pool_with_indices": _max_pool_with_indices,
    "global_average_pool": _global(torch.mean),
}
