"""Windows that slide over the spatial axes of NC+spatial tensors: sizes, cells, coverage.

Convolution and pooling share the arithmetic; padding is given as (low, high) pairs, and negative
padding crops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fusewire.ir.dims import Dim, Shape, dim_min, evaluate, floordiv
from fusewire.ir.graph import Array
from fusewire.ops.inference import require

Sizes = tuple[int, ...]
Padding = tuple[tuple[int, int], ...]


def known(dims: Sequence[Dim]) -> Sizes:
    """Give sizes as ints, which they are when a reference runs."""
    return tuple(evaluate(dim, {}) for dim in dims)


@dataclass(frozen=True)
class Window:
    """How a window slides; ``of`` fills in what attributes leave out."""

    sizes: tuple[Dim, ...]
    strides: Sizes
    padding: Padding
    dilations: Sizes
    ceil: bool = False

    @staticmethod
    def of(
        sizes: Sequence[Dim],
        strides: Sizes | None,
        padding: Padding | None,
        dilations: Sizes | None,
        ceil: bool = False,
    ) -> Window:
        """Complete the attributes: strides and dilations default to 1, padding to none."""
        rank = len(sizes)
        found = Window(
            tuple(sizes),
            strides or (1,) * rank,
            padding or ((0, 0),) * rank,
            dilations or (1,) * rank,
            ceil,
        )
        lengths = {len(found.strides), len(found.padding), len(found.dilations)}
        require(lengths == {rank}, f"strides, padding and dilations need {rank} entries each.")
        require(
            all(n > 0 for n in (*found.strides, *found.dilations, *sizes) if isinstance(n, int)),
            f"sizes of windows, strides and dilations must be at least 1, found {found}.",
        )
        return found

    @property
    def extents(self) -> Shape:
        """Cells from the first to the last that a window touches."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.sizes, self.dilations, strict=True))

    def output(self, spatial: Shape) -> Shape:
        """Count the places of the window on each axis."""
        require(
            len(spatial) == len(self.sizes),
            f"a window over {len(self.sizes)} axes needs as many spatial axes, "
            f"found {len(spatial)}.",
        )
        return tuple(self._count(axis, dim) for axis, dim in enumerate(spatial))

    def _count(self, axis: int, dim: Dim) -> Dim:
        stride, (low, high) = self.strides[axis], self.padding[axis]
        extent = self.extents[axis]
        room = dim + low + high - extent
        places = floordiv(room, stride) + 1
        if self.ceil:
            places = floordiv(room + stride - 1, stride) + 1
            # A window that would start in the high padding does not count.
            if not (isinstance(extent, int) and high + stride <= extent):
                places = dim_min(places, floordiv(dim + low + stride - 1, stride))
        require(
            not isinstance(places, int) or places >= 0,
            f"a window of {extent} does not fit into {dim} padded by {low} and {high}.",
        )
        return places

    def padded(self, x: Array, fill: float) -> Array:
        """Pad or crop the spatial axes to exactly the cells that windows touch."""
        places, extents = self.places(x), known(self.extents)
        cut: list[slice] = [slice(None)] * 2
        grown = [(0, 0)] * 2
        for axis, (low, _) in enumerate(self.padding):
            dim = x.shape[axis + 2]
            touched = (places[axis] - 1) * self.strides[axis] + extents[axis]
            high = touched - low - dim if places[axis] else 0
            cut.append(slice(max(-low, 0), max(dim - max(-high, 0), 0)))
            grown.append((max(low, 0), max(high, 0)))
        return np.pad(x[tuple(cut)], grown, constant_values=fill)

    def places(self, x: Array) -> Sizes:
        """Count the places of the window in an array."""
        return known(self.output(x.shape[2:]))

    def cells(self, x: Array, fill: float) -> Iterator[Array]:
        """Yield, for each offset in the window in row-major order, its element at every place."""
        places, padded = self.places(x), self.padded(x, fill)
        for offset in itertools.product(*map(range, known(self.sizes))):
            cut = [slice(None)] * 2
            for o, d, n, s in zip(offset, self.dilations, places, self.strides, strict=True):
                cut.append(slice(o * d, o * d + (n - 1) * s + 1 if n else o * d, s))
            yield padded[tuple(cut)]
