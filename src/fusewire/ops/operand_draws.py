"""Draw operands of any size as the samples of an op do, with the structure of what those give.

Samples draw most operands, and give others element by element: knots in order, permutations,
indices. What all of them have in common is kept: the order of rows, that rows are permutations, the
range. If they have nothing in common, nobody knows what the op allows at another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusewire.dtypes import DType
from fusewire.ir.graph import Array
from fusewire.ops.declare import Op
from fusewire.ops.sample import Draw

# What samples give beyond this is drawn up to it, so that a range of it is a number.
_MOST = 1e300


@dataclass(frozen=True)
class OperandDraw:
    """How one operand is drawn: as a sample does, and with what given rows have in common.

    ``is_known`` tells whether the op is known to allow what is drawn.
    """

    draw: Draw
    is_sorted: bool = False
    is_distinct: bool = False
    is_permutation: bool = False
    is_known: bool = True

    def make(self, shape: tuple[int, ...], of: DType, rng: np.random.Generator) -> Array:
        """Make an operand of a size."""
        if self.is_permutation and shape:
            rows = np.broadcast_to(np.arange(shape[-1]), shape)
            mixed = rows if self.is_sorted else rng.permuted(rows, axis=-1)
            return np.array(mixed.astype(of.numpy))
        own = replace(self.draw, shape=shape, dtype=of)
        if self.is_distinct and of.is_integer and shape:
            array = _distinct_integers(own, shape, rng).astype(of.numpy)
        else:
            array = own.make(of, rng)
        return np.sort(array, axis=-1) if self.is_sorted and shape else array


def _distinct_integers(draw: Draw, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Draw rows without repetition; a range that is too small for that grows."""
    low = int(np.ceil(draw.low))
    count = max(int(np.floor(draw.high)) - low + 1, shape[-1])
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    drawn = [low + rng.choice(count, shape[-1], replace=False) for _ in range(rows)]
    return np.array(drawn, np.int64).reshape(shape)


def operand_draws(op: Op[Any], count: int) -> list[OperandDraw]:
    """Find how samples draw each operand; the last of them stands for all that follow."""
    found: dict[int, list[Draw]] = {}
    for sample in op.samples():
        for place, drawn in enumerate(sample.operands):
            if drawn is not None and not drawn.sequence:
                found.setdefault(place, []).append(drawn)
    last = found[max(found)] if found else [Draw(())]
    return [_operand_draw(found.get(place, last)) for place in range(count)]


def _operand_draw(draws: Sequence[Draw]) -> OperandDraw:
    free = next((drawn for drawn in draws if drawn.values is None), None)
    if free is not None:
        return OperandDraw(free)
    given = [np.asarray(drawn.values) for drawn in draws]
    if any(x.dtype.kind not in "biuf" for x in given):
        return OperandDraw(replace(draws[0], values=None), is_known=False)
    known = np.concatenate([x.reshape(-1).astype(np.float64) for x in given])
    # Of infinities and NaN, nothing could be drawn, and nothing compared.
    known = np.clip(known[np.isfinite(known)], -_MOST, _MOST)
    draw = replace(draws[0], values=None)
    if known.size:
        draw = replace(draw, low=float(known.min()), high=float(known.max()))
    rows = [x for x in given if x.ndim and x.shape[-1] > 1]
    steps = [np.diff(x.astype(np.float64), axis=-1) for x in rows]
    is_sorted = bool(rows) and all(bool((step >= 0).all()) for step in steps)
    is_distinct = bool(rows) and all(bool((step > 0).all()) for step in steps)
    is_permutation = bool(rows) and all(map(_is_permutation, rows))
    # Without rows there is no structure but a range.
    is_known = not rows or is_sorted or is_permutation
    return OperandDraw(draw, is_sorted, is_sorted and is_distinct, is_permutation, is_known)


def _is_permutation(rows: Array) -> bool:
    is_whole = rows.dtype.kind in "iu"
    return is_whole and bool((np.sort(rows, axis=-1) == np.arange(rows.shape[-1])).all())
