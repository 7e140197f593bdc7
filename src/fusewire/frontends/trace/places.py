"""Index arrays and masks in a key: read and write the elements that they select."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import int64
from fusewire.frontends.trace.views import reshaped, widened
from fusewire.ir.dims import Shape
from fusewire.ir.graph import Array, Value
from fusewire.ops.conversion import cast
from fusewire.ops.indexing import gather, gather_nd, nonzero
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.logic import where
from fusewire.ops.movement import concat, expand_dims, transpose
from fusewire.ops.scatter import scatter_nd
from fusewire.ops.slicing import slice_

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer


@dataclass(frozen=True)
class Places:
    """An index array, known or a value, and the axis it indexes once that is decided."""

    known: Array | None
    value: Value | None
    axis: int = -1

    @staticmethod
    def of(index: Tracer) -> Places:
        """Wrap an index array."""
        known = index.known
        return Places(known, index.value if known is None else None)

    @property
    def shape(self) -> Shape:
        if self.value is not None:
            return self.value.tensor.shape
        assert self.known is not None
        return tuple(self.known.shape)

    def on(self, axis: int) -> Places:
        """Set the axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class Selection:
    """All index arrays of a key; their axes come first if something separates them."""

    places: tuple[Places, ...]
    is_apart: bool

    @property
    def shape(self) -> Shape:
        """The broadcast shape of the arrays."""
        return broadcast_shapes(*(place.shape for place in self.places))

    def key(self, rank: int) -> tuple[Any, ...] | None:
        """Return a key for real arrays, if everything is known."""
        keys: list[Any] = [slice(None)] * rank
        for place in self.places:
            keys[place.axis] = place.known
        return None if any(place.known is None for place in self.places) else tuple(keys)

    def perm(self, rank: int) -> tuple[int, ...]:
        """Bring indexed axes to the front."""
        indexed = [place.axis for place in self.places]
        return (*indexed, *(axis for axis in range(rank) if axis not in indexed))

    def stacked(self, trace: Recording) -> Any:
        """Broadcast the arrays and stack them along a new last axis."""
        shape: Any = self.shape
        rows: list[Any] = []
        for place in self.places:
            if place.known is not None and all(isinstance(dim, int) for dim in shape):
                rows.append(np.broadcast_to(place.known.astype(np.int64), shape)[..., None])
                continue
            value = trace.value(place.known) if place.value is None else place.value
            wide = widened(cast(value, dtype=int64), shape, trace.measure)
            rows.append(expand_dims(wide, axes=(-1,)))
        is_real = all(isinstance(row, np.ndarray) for row in rows)
        return np.concatenate(rows, -1) if is_real else concat(*rows, axis=-1)

    def read(self, trace: Recording, x: Value) -> Value:
        """Read the selected elements."""
        if len(self.places) == 1:
            (place,) = self.places
            return gather(x, place.known if place.value is None else place.value, axis=place.axis)
        rank, first = x.tensor.rank, 0 if self.is_apart else self.places[0].axis
        found = gather_nd(_ordered(x, self.perm(rank)), self.stacked(trace))
        outer = found.tensor.rank - rank + len(self.places)
        back = (*range(outer, outer + first), *range(outer))
        return _ordered(found, (*back, *range(len(back), found.tensor.rank)))

    def write(self, trace: Recording, x: Value, part: Value, reduction: str = "set") -> Value:
        """Return the whole with the selected elements overwritten by a part."""
        rank, outer = x.tensor.rank, self.shape
        perm = self.perm(rank)
        rest = [x.tensor.shape[axis] for axis in perm[len(self.places) :]]
        first = 0 if self.is_apart else self.places[0].axis
        wanted = (*rest[:first], *outer, *rest[first:])
        extra = max(part.tensor.rank - len(wanted), 0)
        part = widened(reshaped(part, part.tensor.shape[extra:]), wanted, trace.measure)
        back = (*range(first, first + len(outer)), *range(first))
        part = _ordered(part, (*back, *range(len(back), len(wanted))))
        front = _ordered(x, perm)
        found = scatter_nd(front, self.stacked(trace), part, reduction=reduction)
        return _ordered(found, tuple(sorted(range(rank), key=perm.__getitem__)))


def _ordered(value: Value, perm: tuple[int, ...]) -> Value:
    return value if perm == tuple(range(len(perm))) else transpose(value, perm=perm)


def places_of(mask: Tracer) -> Value:
    """List where a mask holds; once per mask, so that its selections have one length."""
    kept, value = mask.recording.scope.places, mask.value
    if value not in kept:
        kept[value] = nonzero(value)
    mask.recording.stamp(kept[value])
    return kept[value]


def unmasked(mask: Tracer) -> list[Places]:
    """Turn a mask into one index array per axis."""
    if mask.known is not None:
        return [Places(place, None) for place in np.nonzero(mask.known)]
    found = places_of(mask)
    count = found.tensor.shape[1]
    rows = []
    for axis in range(mask.ndim):
        row = slice_(found, starts=(axis, 0), limits=(axis + 1, count), strides=(1, 1))
        rows.append(Places(None, reshaped(row, (count,))))
    return rows


def read_mask(x: Tracer, mask: Tracer) -> Value:
    """Read the elements where a mask of leading axes holds."""
    return gather_nd(x.value, transpose(places_of(mask), perm=(1, 0)))


def write_mask(x: Tracer, mask: Tracer, part: Value) -> Value:
    """Return x with elements overwritten where a mask of leading axes holds."""
    whole = x.value
    inner = whole.tensor.rank - mask.ndim
    if part.tensor.rank <= inner or (part.tensor.rank == inner + 1 and part.tensor.shape[0] == 1):
        # One value for all places: no need to list them.
        part = reshaped(part, part.tensor.shape[-inner:] if inner else ())
        shape = (*mask.type.shape, *(1 for _ in range(inner)))
        return where(reshaped(mask.value, shape), part, whole)
    places = transpose(places_of(mask), perm=(1, 0))
    rows = (places.tensor.shape[0], *whole.tensor.shape[mask.ndim :])
    return scatter_nd(whole, places, widened(part, rows, x.recording.measure))
