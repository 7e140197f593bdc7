"""Read and write by index: slices and integers give views, index arrays give copies."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.dtypes import bool_, int64
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.places import Places, Selection, read_mask, unmasked, write_mask
from fusewire.frontends.trace.sizes import dim_of
from fusewire.frontends.trace.views import BasicIndex, Pick
from fusewire.ir.dims import Dim, Shape, is_at_most
from fusewire.ir.graph import Value
from fusewire.ops.conversion import cast
from fusewire.ops.operand import Traced
from fusewire.ops.slicing import slice_size

if TYPE_CHECKING:
    from fusewire.frontends.trace.tracer import Tracer


def read(x: Tracer, key: Any) -> Any:
    """Give ``x[key]``."""
    trace, given = x.recording, key if isinstance(key, tuple) else (key,)
    items = _expanded(x, given)
    mask = _whole_mask(items)
    if mask is not None and mask.known is None:
        return trace.wrap(trace.checked(read_mask, x, mask))
    view, selection = _view(x, items)
    known = view.known
    if not selection.places:
        has_dots = any(item is Ellipsis for item in given)
        if has_dots or len(items) != x.ndim or not all(map(_is_single, items)):
            # NumPy returns a view for a scalar index, and a copy for an index array of rank 0.
            return view.snapshot() if any(map(_is_bare, given)) else view
        return view.snapshot() if known is None else known[()]
    places = selection.key(view.ndim)
    if known is not None and places is not None:
        return trace.lift(known[places])
    return trace.wrap(trace.checked(selection.read, trace, view.value))


def write(x: Tracer, key: Any, new: Any) -> None:
    """Do ``x[key] = new``."""
    trace = x.recording
    if x.is_scalar:
        raise refusal("A scalar (here the result of a reduction or of x[i]) cannot be assigned to.")
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    new = trace.array(new, x.dtype if type(new) in (bool, int, float, complex) else None)
    mask = _whole_mask(items)
    is_one = mask is not None and (new.ndim <= x.ndim - mask.ndim)
    if mask is not None and (mask.known is None or (is_one and x.known is None)):
        part = trace.value(new, x.type.dtype)
        x.assign(trace.wrap(trace.checked(write_mask, x, mask, part)))
        return
    view, selection = _view(x, items)
    if not selection.places:
        if not view.lens.sees_the_same(new.lens):
            view.assign(new)
        return
    known, places = view.known, selection.key(view.ndim)
    if known is not None and new.known is not None and places is not None:
        changed = known.copy()
        changed[places] = new.known
        view.assign(trace.known(changed))
        return
    part = trace.value(new, x.type.dtype)
    view.assign(trace.wrap(trace.checked(selection.write, trace, view.value, part)))


def combine(x: Tracer, key: Any, part: Value, reduction: str) -> bool:
    """Combine elements at index arrays with a part; False if the key has none."""
    view, selection = _view(x, _expanded(x, key if isinstance(key, tuple) else (key,)))
    if not selection.places:
        return False
    trace = x.recording
    found = trace.checked(selection.write, trace, view.value, part, reduction)
    view.assign(trace.wrap(found))
    return True


@dataclass(frozen=True)
class _Dynamic:
    """An integer index that only the run determines."""

    index: Tracer


def _is_mask(item: Any) -> bool:
    is_array = isinstance(item, Traced)
    return is_array and item.dtype == np.bool_


def _is_single(item: Any) -> bool:
    return dim_of(item) is not None or isinstance(item, _Dynamic)


def _is_bare(item: Any) -> bool:
    """Return whether an index is an array of rank 0, not a scalar."""
    is_array = isinstance(item, np.ndarray | Traced)
    return is_array and item.ndim == 0 and not getattr(item, "is_scalar", False)


def _expanded(x: Tracer, key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Expand a key to one item per axis, beside None for new axes; a mask covers its own axes."""
    items = [_item(x, item) for item in key]
    free = (None, Ellipsis)
    used = sum(
        item.ndim if _is_mask(item) else 1 for item in items if not any(item is f for f in free)
    )
    if used > x.ndim:
        raise IndexError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {used} were indexed"
        )
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(items)
    # An ellipsis that covers no axis still separates its neighbours.
    between: list[Any] = [slice(None)] * (x.ndim - used)
    between = between or [Ellipsis] * len(dots)
    return (*items[:at], *between, *items[at + 1 :])


def _item(x: Tracer, item: Any) -> Any:
    """Normalize one item of a key to None, Ellipsis, a slice, a size, _Dynamic or an array."""
    if item is None or item is Ellipsis or isinstance(item, slice) or dim_of(item) is not None:
        return item
    array = x.recording.array(item)
    if array.type.dtype is bool_ and array.ndim == 0:
        raise refusal(
            "A single bool cannot be an index here. Use np.where to choose by a condition."
        )
    if isinstance(item, list) and not item:
        array = x.recording.known(np.zeros(0, np.int64))
    if array.type.dtype is not bool_ and not array.type.dtype.is_integer:
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    if array.ndim == 0:
        return _Dynamic(array) if array.known is None else int(array.known)
    return array


def _whole_mask(items: tuple[Any, ...]) -> Tracer | None:
    """Find the mask in ``x[mask]`` where it covers leading axes and nothing else is indexed."""
    first, *rest = items or (None,)
    whole = (slice(None), Ellipsis)
    full = all(isinstance(item, slice | EllipsisType) and item in whole for item in rest)
    return first if _is_mask(first) and full else None


@dataclass
class _Cut:
    """The view step of a key's slices and integers, under construction."""

    shape: list[Dim] = field(default_factory=list)
    ends: list[tuple[Dim, Dim, int]] = field(default_factory=list)
    layout: list[bool | None] = field(default_factory=list)
    picks: list[tuple[int, Tracer]] = field(default_factory=list)
    places: list[Places] = field(default_factory=list)

    def new_axis(self) -> None:
        self.layout.append(None)
        self.shape.append(1)

    def axis(self, start: Dim, limit: Dim, stride: int = 1, is_kept: bool = True) -> None:
        self.ends.append((start, limit, stride))
        self.layout.append(is_kept)
        if is_kept:
            self.shape.append(slice_size(start, limit, stride))

    def view(self, x: Tracer) -> Tracer:
        starts, limits, strides = zip(*self.ends, strict=True) if self.ends else ((), (), ())
        step = BasicIndex(tuple(self.shape), starts, limits, strides, tuple(self.layout))
        full = limits == x.type.shape and all(stride == 1 for stride in strides)
        view = x.see() if full and step.shape == x.type.shape else x.see(step)
        for dropped, (axis, index) in enumerate(self.picks):
            rest: Shape = view.type.shape
            rest = rest[: axis - dropped] + rest[axis - dropped + 1 :]
            view = view.see(Pick(rest, axis - dropped, cast(index.value, dtype=int64)))
        return view


def _view(x: Tracer, items: tuple[Any, ...]) -> tuple[Tracer, Selection]:
    """Apply the slices and integers as a view, and list the index arrays that remain."""
    has_arrays = any(isinstance(item, Traced) for item in items)
    cut, dims = _Cut(), iter(x.type.shape)
    for item in items:
        if item is None:
            cut.new_axis()
        if item is None or item is Ellipsis:
            continue
        for found in unmasked(item) if _is_mask(item) else [item]:
            dim = next(dims)
            if isinstance(found, slice):
                cut.axis(*_bounds(x, found, dim))
                continue
            place = _places(found, has_arrays)
            if place is not None:
                cut.places.append(place.on(len(cut.shape)))
                cut.axis(0, dim)
            elif isinstance(found, _Dynamic):
                cut.picks.append((len(cut.shape), found.index))
                cut.axis(0, dim)
            else:
                start = _start(found, dim)
                cut.axis(start, start + 1, is_kept=False)
    return cut.view(x), Selection(tuple(cut.places), has_arrays and _is_apart(items))


def _places(item: Any, has_arrays: bool) -> Places | None:
    """Return the index array of an item; beside arrays, an integer is one too."""
    if isinstance(item, Places):
        return item
    is_array = isinstance(item, Traced)
    if is_array:
        return Places.of(item)
    if has_arrays and isinstance(item, _Dynamic):
        return Places(None, item.index.value)
    place = dim_of(item)
    return Places(np.array(place), None) if has_arrays and isinstance(place, int) else None


def _is_apart(items: tuple[Any, ...]) -> bool:
    """Return whether a slice, a new axis or an ellipsis separates index arrays."""
    between = slice | None | EllipsisType
    at = [i for i, item in enumerate(items) if not isinstance(item, between)]
    return len(at) != at[-1] - at[0] + 1


def _start(index: Any, dim: Dim) -> Dim:
    place = dim_of(index)
    assert place is not None
    if isinstance(place, int):
        if isinstance(dim, int) and not -dim <= place < dim:
            raise IndexError(f"index {place} is out of bounds for axis with size {dim}")
        return place if place >= 0 else dim + place
    return dim + place if is_at_most(place, 0) else place


def _bounds(x: Tracer, key: slice, dim: Dim) -> tuple[Dim, Dim, int]:
    """Normalize a slice to start, limit and stride; at an open size it is assumed to be inside."""
    ends = (
        None if end is None else x.recording.dim(end) for end in (key.start, key.stop, key.step)
    )
    start, stop, step = ends
    stride = 1 if step is None else step
    if not isinstance(stride, int) or stride == 0:
        raise ValueError("slice step must be a number and not zero")
    if all(end is None or isinstance(end, int) for end in (start, stop, dim)):
        numbers: Any = (start, stop, stride)
        size: Any = dim
        chosen = range(size)[slice(*numbers)]
        if not chosen:
            return 0, 0, 1
        return chosen.start, max(chosen.stop, -1), stride

    def inside(end: Dim | None, default: Dim) -> Dim:
        if end is None:
            return default
        is_negative = end < 0 if isinstance(end, int) else is_at_most(end, 0)
        return dim + end if is_negative else end

    low, high = (0, dim) if stride > 0 else (dim - 1, -1)
    return inside(start, low), inside(stop, high), stride
