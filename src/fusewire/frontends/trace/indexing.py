"""Reading and writing by index: slices and single places are views, index arrays make copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import bool_, int64
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.sizes import Size, dim_of
from fusewire.frontends.trace.views import Index, Pick, reshaped
from fusewire.ir.dims import Dim, Shape, is_at_most
from fusewire.ir.graph import Value
from fusewire.ops.conversion import cast
from fusewire.ops.indexing import gather, gather_nd, nonzero
from fusewire.ops.inference import broadcast_shapes
from fusewire.ops.logic import where
from fusewire.ops.movement import broadcast_to, concat, expand_dims, transpose
from fusewire.ops.scatter import scatter_nd
from fusewire.ops.slicing import slice_, slice_size

if TYPE_CHECKING:
    from fusewire.frontends.trace.tracer import Tracer


@dataclass(frozen=True)
class Places:
    """An index array in a key: known, or a value; and the axis it indexes."""

    axis: int
    known: Any
    value: Value | None

    @property
    def shape(self) -> Shape:
        return self.known.shape if self.value is None else self.value.tensor.shape


def read(x: Tracer, key: Any) -> Any:
    """Give ``x[key]``."""
    given = key if isinstance(key, tuple) else (key,)
    has_dots = any(item is Ellipsis for item in given)
    key = _expanded(x, key)
    mask = _whole_mask(x, key)
    if mask is not None and mask.known is None:
        found = gather_nd(x.value, transpose(places_of(mask), perm=(1, 0)))
        return x.recording.wrap(found)
    view, places = _view(x, key)
    if not places:
        scalar = all(dim_of(item) is not None or isinstance(item, _Dynamic) for item in key)
        if not (scalar and len(key) == x.ndim and not has_dots):
            # NumPy gives a view for a scalar index, and a copy for one that is an array of rank 0.
            return view.snapshot() if any(_is_bare(item) for item in given) else view
        known = view.known
        return view.snapshot() if known is None else known[()]
    known = view.known
    if known is not None and all(place.value is None for place in places):
        keys: list[Any] = [slice(None)] * view.ndim
        for place in places:
            keys[place.axis] = place.known
        return x.recording.lift(known[tuple(keys)])
    return x.recording.wrap(_gather(view.value, places, _is_apart(key)))


def write(x: Tracer, key: Any, new: Any) -> None:
    """Do ``x[key] = new``."""
    recording = x.recording
    if x.is_scalar:
        raise refusal("A scalar (here the result of a reduction or of x[i]) cannot be assigned to.")
    key = _expanded(x, key)
    new = recording.array(new, x.dtype if type(new) in (bool, int, float, complex) else None)
    mask = _whole_mask(x, key)
    is_one = mask is not None and (new.ndim <= x.ndim - mask.ndim)
    if mask is not None and (mask.known is None or (is_one and x.known is None)):
        x.assign(recording.wrap(_masked(x, mask, recording.value(new, x.type.dtype))))
        return
    view, places = _view(x, key)
    if not places:
        if (new.cell, new.steps) != (view.cell, view.steps):
            view.assign(new)
        return
    known = view.known
    if known is not None and new.known is not None and all(p.value is None for p in places):
        keys: list[Any] = [slice(None)] * view.ndim
        for place in places:
            keys[place.axis] = place.known
        changed = known.copy()
        changed[tuple(keys)] = new.known
        view.assign(recording.known(changed))
        return
    part = recording.value(new, x.type.dtype)
    view.assign(recording.wrap(scatter(view.value, places, _is_apart(key), part)))


def combine(x: Tracer, key: Any, part: Value, reduction: str) -> bool:
    """Combine elements with a part where index arrays tell; False when the key has none."""
    key = _expanded(x, key)
    view, places = _view(x, key)
    if places:
        view.assign(x.recording.wrap(scatter(view.value, places, _is_apart(key), part, reduction)))
    return bool(places)


class _Dynamic:
    """A scalar index that only the run can tell."""

    def __init__(self, index: Tracer) -> None:
        self.index = index


def _expanded(x: Tracer, key: Any) -> tuple[Any, ...]:
    """Bring a key to one item an axis, besides None for new axes; masks count their own axes."""
    items = [_item(x, item) for item in (key if isinstance(key, tuple) else (key,))]
    used = sum(_axes(item) for item in items)
    if used > x.ndim:
        raise IndexError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed"
        )
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(items)
    return (*items[:at], *[slice(None)] * (x.ndim - used), *items[at + 1 :])


def _is_bare(item: Any) -> bool:
    is_array = isinstance(item, _tracer()) and not item.is_scalar and item.ndim == 0
    return is_array or (isinstance(item, np.ndarray) and item.ndim == 0)


def _axes(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    is_mask = isinstance(item, _tracer()) and item.type.dtype is bool_
    return item.ndim if is_mask else 1


def _item(x: Tracer, item: Any) -> Any:
    """Bring one item of a key to None, Ellipsis, slice, dim, _Dynamic or an array."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if dim_of(item) is not None:
        return item
    array = x.recording.array(item)
    if array.type.dtype is bool_ and array.ndim == 0:
        raise refusal("A single bool is no index here. Use np.where to choose by a condition.")
    if array.known is not None and array.known.size == 0 and isinstance(item, list):
        array = x.recording.known(array.known.astype(np.int64))
    if array.type.dtype is not bool_ and not array.type.dtype.is_integer:
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    if array.ndim == 0:
        return _Dynamic(array) if array.known is None else int(array.known)
    return array


def _tracer() -> type[Tracer]:
    from fusewire.frontends.trace.tracer import Tracer

    return Tracer


def _whole_mask(x: Tracer, key: tuple[Any, ...]) -> Tracer | None:
    """Find the mask in ``x[mask]`` where it covers leading axes and nothing else is indexed."""
    first, *rest = key or (None,)
    is_mask = isinstance(first, _tracer()) and first.type.dtype is bool_
    full = all(isinstance(item, slice) and item == slice(None) for item in rest)
    return first if is_mask and full else None


def places_of(mask: Tracer) -> Value:
    """List where a mask holds; once a mask, so that what it selects has one length."""
    kept, value = mask.recording.scope.places, mask.value
    if value not in kept:
        kept[value] = nonzero(value)
    mask.recording.stamp(kept[value])
    return kept[value]


def _masked(x: Tracer, mask: Tracer, part: Value) -> Value:
    """Give x with elements written where a mask holds."""
    whole = x.value
    inner = whole.tensor.rank - mask.ndim
    if part.tensor.rank <= inner or (part.tensor.rank == inner + 1 and part.tensor.shape[0] == 1):
        # One for all places: no need to list them.
        part = reshaped(part, part.tensor.shape[-inner:] if inner else ())
        shape = (*mask.type.shape, *(1 for _ in range(inner)))
        return where(reshaped(mask.value, shape), part, whole)
    places = transpose(places_of(mask), perm=(1, 0))
    rows = (places.tensor.shape[0], *whole.tensor.shape[mask.ndim :])
    if part.tensor.shape != rows:
        part = broadcast_to(part, shape=rows)
    return scatter_nd(whole, places, part)


def _view(x: Tracer, key: tuple[Any, ...]) -> tuple[Tracer, list[Places]]:
    """Take the slices and single places as a view, and list what index arrays remain on it."""
    starts: list[Dim] = []
    limits: list[Dim] = []
    strides: list[int] = []
    layout: list[bool | None] = []
    shape: list[Dim] = []
    picks: list[tuple[int, Tracer]] = []
    places: list[Places] = []
    arrays = any(isinstance(item, _tracer()) for item in key)
    dims = iter(x.type.shape)
    for item in key:
        if item is None:
            layout.append(None)
            shape.append(1)
            continue
        is_mask = isinstance(item, _tracer()) and item.type.dtype is bool_
        for found in _unmasked(item) if is_mask else [item]:
            dim = next(dims)
            # Beside index arrays a single place is one of them, broadcast as they are.
            if arrays and (place := dim_of(found)) is not None:
                found = Places(-1, np.array(place), None) if isinstance(place, int) else found
            start, limit, stride = 0, dim, 1
            kept = not isinstance(found, int | np.integer | Size)
            if isinstance(found, slice):
                start, limit, stride = _bounds(x, found, dim)
            elif isinstance(found, Places):
                places.append(Places(len(shape), found.known, found.value))
            elif isinstance(found, _Dynamic):
                if arrays:
                    places.append(Places(len(shape), None, found.index.value))
                else:
                    picks.append((len(shape), found.index))
            elif isinstance(found, _tracer()):
                value = found.value if found.known is None else None
                places.append(Places(len(shape), found.known, value))
            else:
                start = _place(found, dim)
                limit = start + 1
            starts.append(start)
            limits.append(limit)
            strides.append(stride)
            layout.append(kept)
            if kept:
                shape.append(slice_size(start, limit, stride))
    step = Index(tuple(shape), tuple(starts), tuple(limits), tuple(strides), tuple(layout))
    view = x.see(step) if _changes(step, x.type.shape) else x.see()
    for dropped, (axis, index) in enumerate(picks):
        axis -= dropped
        rest = view.type.shape[:axis] + view.type.shape[axis + 1 :]
        view = view.see(Pick(rest, axis, cast(index.value, dtype=int64)))
    return view, places


def _changes(step: Index, shape: Shape) -> bool:
    full = step.limits == shape and all(stride == 1 for stride in step.strides)
    return not (full and step.shape == shape)


def _unmasked(mask: Tracer) -> list[Any]:
    """Turn a mask into an index array an axis."""
    if mask.known is not None:
        return [Places(-1, place, None) for place in np.nonzero(mask.known)]
    found = places_of(mask)
    count = found.tensor.shape[1]
    rows = []
    for axis in range(mask.ndim):
        row = slice_(found, starts=(axis, 0), limits=(axis + 1, count), strides=(1, 1))
        rows.append(Places(-1, None, reshaped(row, (count,))))
    return rows


def _place(index: Any, dim: Dim) -> Dim:
    place = dim_of(index)
    assert place is not None
    if isinstance(place, int):
        if isinstance(dim, int) and not -dim <= place < dim:
            raise IndexError(f"index {place} is out of bounds for axis with size {dim}")
        return place if place >= 0 else dim + place
    return dim + place if is_at_most(place, 0) else place


def _bounds(x: Tracer, key: slice, dim: Dim) -> tuple[Dim, Dim, int]:
    """Bring a slice to start, limit and stride; where a size is open, it is taken to be inside."""
    start, stop, step = (
        None if end is None else x.recording.dim(end) for end in (key.start, key.stop, key.step)
    )
    stride = 1 if step is None else step
    if not isinstance(stride, int) or stride == 0:
        raise ValueError("slice step must be a number and not zero")
    if all(end is None or isinstance(end, int) for end in (start, stop, dim)):
        first, last, _ = slice(start, stop, stride).indices(int(dim))  # type: ignore[arg-type]
        count = len(range(first, last, stride))
        if not count:
            return 0, 0, 1
        return first, max(first + count * stride, -1) if stride < 0 else last, stride

    def inside(end: Dim | None, default: Dim) -> Dim:
        if end is None:
            return default
        negative = end < 0 if isinstance(end, int) else is_at_most(end, 0)
        return dim + end if negative else end

    low, high = (0, dim) if stride > 0 else (dim - 1, -1)
    return inside(start, low), inside(stop, high), stride


def _is_apart(key: Sequence[Any]) -> bool:
    """Tell whether a slice stands between index arrays: then their axes come first."""
    arrays = any(isinstance(item, _tracer()) for item in key)
    kinds = [not (item is None or isinstance(item, slice)) for item in key]
    at = [i for i, indexed in enumerate(kinds) if indexed]
    return arrays and len(at) != at[-1] - at[0] + 1


def _stacked(places: Sequence[Places]) -> Any:
    """Join index arrays, broadcast against each other, along a new last axis."""
    shape = broadcast_shapes(*(place.shape for place in places))
    if all(place.value is None for place in places):
        arrays = [np.broadcast_to(place.known.astype(np.int64), shape) for place in places]
        return np.stack(arrays, axis=-1)
    rows: list[Any] = []
    for place in places:
        if place.value is None:
            rows.append(np.broadcast_to(place.known.astype(np.int64), shape)[..., None])
            continue
        value = cast(place.value, dtype=int64)
        if value.tensor.shape != shape:
            value = broadcast_to(value, shape=shape)
        rows.append(expand_dims(value, axes=(-1,)))
    return concat(*rows, axis=-1)


def _order(rank: int, places: Sequence[Places]) -> tuple[int, ...]:
    """Bring indexed axes to the front."""
    indexed = [place.axis for place in places]
    return (*indexed, *(axis for axis in range(rank) if axis not in indexed))


def _moved(count: int, first: int, rank: int) -> tuple[int, ...]:
    """Find the axes that bring ``count`` leading axes to start at ``first``."""
    return (*range(count, count + first), *range(count), *range(count + first, rank))


def _gather(x: Value, places: Sequence[Places], apart: bool) -> Value:
    if len(places) == 1:
        (place,) = places
        return gather(x, place.known if place.value is None else place.value, axis=place.axis)
    perm = _order(x.tensor.rank, places)
    front = x if perm == tuple(range(len(perm))) else transpose(x, perm=perm)
    joined = _stacked(places)
    found = gather_nd(front, joined)
    count = found.tensor.rank - x.tensor.rank + len(places)
    if apart or places[0].axis == 0:
        return found
    return transpose(found, perm=_moved(count, places[0].axis, found.tensor.rank))


def scatter(
    x: Value, places: Sequence[Places], apart: bool, part: Value, reduction: str = "set"
) -> Value:
    """Write a part over what index arrays name."""
    rank = x.tensor.rank
    perm = _order(rank, places)
    in_front = perm == tuple(range(rank))
    outer = broadcast_shapes(*(place.shape for place in places))
    rest = [x.tensor.shape[axis] for axis in perm[len(places) :]]
    first = 0 if apart else places[0].axis
    wanted = (*rest[:first], *outer, *rest[first:])
    if len(part.tensor.shape) > len(wanted):
        part = reshaped(part, part.tensor.shape[len(part.tensor.shape) - len(wanted) :])
    if part.tensor.shape != wanted:
        part = broadcast_to(part, shape=wanted)
    if first:
        back = (*range(first, first + len(outer)), *range(first))
        part = transpose(part, perm=(*back, *range(len(back), len(wanted))))
    front = x if in_front else transpose(x, perm=perm)
    found = scatter_nd(front, _stacked(places), part, reduction=reduction)
    if in_front:
        return found
    return transpose(found, perm=tuple(sorted(range(rank), key=perm.__getitem__)))
