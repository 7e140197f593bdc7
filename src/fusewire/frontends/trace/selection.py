"""NumPy's functions that choose, look up and write elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import bool_
from fusewire.frontends.trace.location import refusal
from fusewire.frontends.trace.movement import spread
from fusewire.frontends.trace.places import places_of
from fusewire.frontends.trace.reductions import truth
from fusewire.frontends.trace.table import Table, axis_of, is_given, promoted, strong, xp
from fusewire.ops.inference import broadcast_shapes

if TYPE_CHECKING:
    from fusewire.frontends.trace.recording import Recording
    from fusewire.frontends.trace.tracer import Tracer

TABLE = Table()
_NONE: Any = np._NoValue


@TABLE.row(np.where)
def _where(trace: Recording, condition: Any, x: Any = None, y: Any = None, /) -> Any:
    mask = truth(strong(trace, condition))
    if x is None and y is None:
        return xp.nonzero(mask)
    left, right = trace.array(x), trace.array(y)
    of = promoted([left, right])
    made = trace.op(ops.where, mask, trace.value(left, of), trace.value(right, of))
    return trace.like(made, mask, left, right)


@TABLE.row(np.clip)
def _clip(
    trace: Recording,
    a: Any,
    a_min: Any = _NONE,
    a_max: Any = _NONE,
    *,
    min: Any = _NONE,  # noqa: A002
    max: Any = _NONE,  # noqa: A002
    **more: Any,
) -> Any:
    low, high = (new if is_given(new) else old for new, old in ((min, a_min), (max, a_max)))
    x, low, high = (trace.array(v) if is_given(v) else None for v in (a, low, high))
    assert x is not None
    if low is None and high is None:
        return xp.copy(x)
    of = promoted([v for v in (x, low, high) if v is not None])
    if of is bool_ or of.is_complex:
        raise refusal(f"np.clip of {of.name} cannot be traced. Use np.where.")
    values = [None if v is None else trace.value(v, of) for v in (x, low, high)]
    limits = [trace.array(v) for v in (low, high) if v is not None]
    return trace.like(trace.op(ops.clip, *values), trace.array(x), *limits)


@TABLE.row(np.take)
def _take(trace: Recording, a: Any, indices: Any, axis: Any = None, mode: str = "raise") -> Any:
    x, places = strong(trace, a), strong(trace, indices)
    if axis is None:
        x, axis = x.ravel(), 0
    axis = axis_of(axis, x.ndim)
    if places.known is not None and not places.size:
        places = places.astype(np.int64)
    if mode == "wrap":
        places = places % x.shape[axis]
    elif mode == "clip":
        places = xp.clip(places, 0, x.shape[axis] - 1)
    return trace.op(ops.gather, x, places, axis=axis)


def _along(trace: Recording, x: Tracer, places: Tracer, axis: int) -> list[Tracer]:
    """Broadcast an array and indices against each other, except along one axis."""
    flat = [(*v.type.shape[:axis], 1, *v.type.shape[axis + 1 :]) for v in (x, places)]
    shape = trace.checked(broadcast_shapes, *flat)
    wide = [(*shape[:axis], v.type.shape[axis], *shape[axis + 1 :]) for v in (x, places)]
    pairs = zip((x, places), wide, strict=True)
    return [v if v.type.shape == shape else spread(v, shape) for v, shape in pairs]


@TABLE.row(np.take_along_axis)
def _take_along_axis(trace: Recording, arr: Any, indices: Any, axis: Any = -1) -> Any:
    x, places = strong(trace, arr), strong(trace, indices)
    if axis is None:
        return xp.take(x.ravel(), places)
    axis = axis_of(axis, x.ndim)
    return trace.op(ops.gather_elements, *_along(trace, x, places, axis), axis=axis)


@TABLE.row(np.put_along_axis, takes_known=True)
def _put_along_axis(trace: Recording, arr: Any, indices: Any, values: Any, axis: Any) -> None:
    x, places = trace.array(arr), strong(trace, indices)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    _, places = _along(trace, x, places, axis)
    new = xp.broadcast_to(trace.array(values, x.dtype), places.shape)
    part = trace.value(new, x.type.dtype)
    x.assign(trace.op(ops.scatter_elements, x, places, part, axis=axis))


@TABLE.row(np.choose)
def _choose(trace: Recording, a: Any, choices: Any, mode: str = "raise") -> Any:
    place = strong(trace, a)
    rows = xp.broadcast_arrays(place, *choices)[1:]
    stacked = xp.stack(rows)
    if mode != "raise":
        place = place % len(rows) if mode == "wrap" else xp.clip(place, 0, len(rows) - 1)
    place = xp.broadcast_to(place, rows[0].shape)
    return xp.take_along_axis(stacked, place[None], 0)[0]


@TABLE.row(np.piecewise)
def _piecewise(
    trace: Recording, x: Any, condlist: Any, funclist: Any, *args: Any, **more: Any
) -> Any:
    array = strong(trace, x)
    masks = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    if len(funclist) == len(masks) + 1:
        masks.append(~xp.any(xp.stack(xp.broadcast_arrays(*masks)), 0))
    found = xp.zeros_like(array)
    for mask, function in zip(masks, funclist, strict=True):
        part = function(array, *args, **more) if callable(function) else function
        found = xp.where(mask, trace.array(part, array.dtype).astype(array.dtype), found)
    return found


@TABLE.row(np.unravel_index)
def _unravel_index(trace: Recording, indices: Any, shape: Any, order: str = "C") -> Any:
    rest, found = strong(trace, indices), []
    dims = [trace.size(dim) for dim in trace.shape(shape)]
    for dim in dims[::-1] if order == "C" else dims:
        found.append(rest % dim)
        rest = rest // dim
    return tuple(found[::-1] if order == "C" else found)


@TABLE.row(np.ravel_multi_index)
def _ravel_multi_index(
    trace: Recording, multi_index: Any, dims: Any, mode: str = "raise", order: str = "C"
) -> Any:
    total: Any = 0
    pairs = [*zip(multi_index, (trace.size(dim) for dim in trace.shape(dims)), strict=True)]
    for place, dim in pairs if order == "C" else pairs[::-1]:
        total = total * dim + place
    return total


@TABLE.row(np.compress)
def _compress(trace: Recording, condition: Any, a: Any, axis: Any = None) -> Any:
    mask, x = truth(strong(trace, condition)), strong(trace, a)
    if mask.known is None:
        axis = axis if axis is None else axis_of(axis, x.ndim)
        return trace.op(ops.compress, x, mask, axis=axis)
    return xp.take(x, np.nonzero(mask.known)[0], axis)


@TABLE.row(np.nonzero)
def _nonzero(trace: Recording, a: Any) -> tuple[Any, ...]:
    return tuple(trace.wrap(places_of(strong(trace, a))))


@TABLE.row(np.copyto, takes_known=True)
def _copyto(
    trace: Recording, dst: Any, src: Any, casting: str = "same_kind", where: Any = True
) -> None:
    x = trace.array(dst)
    x.assign(src if where is True else xp.where(where, trace.array(src, x.dtype), x))


@TABLE.row(np.putmask, takes_known=True)
def _putmask(trace: Recording, a: Any, mask: Any, values: Any) -> None:
    x, new = trace.array(a), strong(trace, values)
    if new.size != 1 and new.shape != x.shape:
        new = xp.resize(new, x.shape)
    x.assign(xp.where(mask, new.reshape(x.shape if new.size != 1 else ()).astype(x.dtype), x))


@TABLE.row(np.place, takes_known=True)
def _place(trace: Recording, arr: Any, mask: Any, vals: Any) -> None:
    x, new = trace.array(arr), strong(trace, vals).ravel()
    flat = truth(strong(trace, mask)).ravel()
    # The k-th place where the mask holds takes the k-th value, cyclically.
    turn = (xp.cumsum(flat) - 1) % new.shape[0]
    x.assign(xp.where(flat, xp.take(new, turn).astype(x.dtype), x.ravel()).reshape(x.shape))


@TABLE.row(np.put, takes_known=True)
def _put(trace: Recording, a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    x, places = trace.array(a), strong(trace, ind).ravel()
    new = strong(trace, v).ravel()
    if new.shape[0] != 1 and new.shape != places.shape:
        new = xp.resize(new, places.shape)
    if mode != "raise":
        places = places % x.size if mode == "wrap" else xp.clip(places, 0, x.size - 1)
    flat = xp.copy(x.ravel())
    flat[places] = new
    x.assign(flat.reshape(x.shape))


@TABLE.row(np.fill_diagonal, takes_known=True)
def _fill_diagonal(trace: Recording, a: Any, val: Any, wrap: bool = False) -> None:
    x = trace.array(a)
    if wrap or not all(isinstance(dim, int) for dim in x.shape):
        raise refusal("np.fill_diagonal needs known sizes, and cannot wrap. Use np.where.")
    places = np.arange(min(x.shape))
    new = strong(trace, val).ravel()
    x[(places,) * x.ndim] = new[places % new.shape[0]] if new.shape[0] > 1 else new


@TABLE.row(np.isin)
def _isin(
    trace: Recording,
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    x, others = strong(trace, element), strong(trace, test_elements).ravel()
    found = xp.any(x[..., None] == others, -1)
    return ~found if invert else found


@TABLE.row(np.interp)
def _interp(
    trace: Recording,
    x: Any,
    xp_: Any,
    fp: Any,
    left: Any = None,
    right: Any = None,
    period: Any = None,
) -> Any:
    if period is not None:
        raise refusal("np.interp with a period cannot be traced. Use x % period and padded ends.")
    at, ends, heights = (strong(trace, v).astype(np.float64) for v in (x, xp_, fp))
    last = ends.shape[0] - 1
    if last == 0:
        found = xp.broadcast_to(heights[0], at.shape)
    else:
        low = xp.clip(xp.searchsorted(ends, at, side="right") - 1, 0, last - 1)
        x0, x1, y0, y1 = ends[low], ends[low + 1], heights[low], heights[low + 1]
        found = (y1 - y0) / (x1 - x0) * (at - x0) + y0
        found = xp.where(at == ends[last], heights[last], found)
    found = xp.where(at < ends[0], heights[0] if left is None else left, found)
    found = xp.where(at > ends[last], heights[last] if right is None else right, found)
    return xp.where(xp.isnan(at), at, found)
