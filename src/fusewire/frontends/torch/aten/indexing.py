"""Reading and writing at indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.dtypes import bool_, int64
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall, at_least_1d, axis_in
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ops import (
    creation,
    elementwise,
    indexing,
    logic,
    movement,
    scatter,
    slicing,
)
from fusewire.ops.conversion import cast
from fusewire.ops.inference import broadcast_types

ROWS = Rows()

_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "multiply",
    "multiply": "multiply",
    "amax": "max",
    "amin": "min",
}


@ROWS.add("embedding", ops="embedding")
def _embedding(call: AtenCall, weight: Value, indices: Value, *rest: Any) -> Value:
    return indexing.embedding(weight, indices)


@ROWS.add("index_select", ops="gather")
def _index_select(call: AtenCall, x: Value, dim: int, index: Value) -> Value:
    rank = x.tensor.rank
    y = indexing.gather(at_least_1d(x), at_least_1d(index), axis=axis_in(dim, rank))
    return movement.reshape(y, shape=()) if rank == 0 else y


@ROWS.add("gather", ops="gather_elements")
def _gather(call: AtenCall, x: Value, dim: int, index: Value, *rest: Any) -> Value:
    axis = axis_in(dim, x.tensor.rank)
    row, places = at_least_1d(x), at_least_1d(index)
    row = _cut(row, places, axis)
    return _shaped(call, indexing.gather_elements(row, places, axis=axis))


def _shaped(call: AtenCall, y: Value) -> Value:
    return y if y.tensor.shape == call.shape else movement.reshape(y, shape=call.shape)


def _cut(x: Value, like: Value, axis: int) -> Value:
    """Cut the other axes to the size of the indices: PyTorch allows smaller ones."""
    shape = like.tensor.shape
    limits = tuple(d if i == axis else shape[i] for i, d in enumerate(x.tensor.shape))
    if limits == x.tensor.shape:
        return x
    zeros, ones = (0,) * len(limits), (1,) * len(limits)
    return slicing.slice_(x, starts=zeros, limits=limits, strides=ones)


@ROWS.add("take_along_dim", ops="gather_elements")
def _take_along(call: AtenCall, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        x, index, dim = (
            movement.reshape(x, shape=(x.tensor.size,)),
            movement.reshape(index, shape=(index.tensor.size,)),
            0,
        )
    axis = dim % x.tensor.rank
    shape = list(call.shape)
    shape[axis] = x.tensor.shape[axis]
    whole = movement.broadcast_to(x, shape=tuple(shape))
    places = movement.broadcast_to(index, shape=call.shape)
    return indexing.gather_elements(whole, places, axis=axis)


@ROWS.add("take", ops="gather")
def _take(call: AtenCall, x: Value, index: Value) -> Value:
    return indexing.gather(movement.reshape(x, shape=(x.tensor.size,)), index, axis=0)


# Advanced indexing.


def _indices(call: AtenCall, x: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    """List one index for each axis from the front; masks of booleans become places."""
    found: list[Value | None] = []
    for index in indices:
        if index is None or index.tensor.dtype.kind != "bool":
            found.append(index)
            continue
        places = indexing.nonzero(index)
        for axis in range(index.tensor.rank):
            row = slicing.slice_axis(places, 0, slice(axis, axis + 1))
            found.append(movement.squeeze(row, axes=(0,)))
    return found


def _together(indices: Sequence[Value]) -> list[Value]:
    """Broadcast indices to one shape."""
    shape = indices[0].tensor
    for index in indices[1:]:
        shape = broadcast_types(shape.with_dtype(int64), index.tensor.with_dtype(int64))
    return [_broadcast(cast_index(i), shape.shape) for i in indices]


def _broadcast(x: Value, shape: tuple[Dim, ...]) -> Value:
    """Broadcast what has another shape: a size that only a run can tell cannot be asked for."""
    return x if x.tensor.shape == shape else movement.broadcast_to(x, shape=shape)


def cast_index(index: Value) -> Value:
    """Make an index int64."""
    return index if index.tensor.dtype is int64 else cast(index, dtype=int64)


@ROWS.add("index.Tensor", "_unsafe_index.Tensor", ops="gather, gather_nd, boolean_mask")
def _index(call: AtenCall, x: Value, indices: Sequence[Value | None]) -> Value:
    if len(indices) == 1 and indices[0] is not None and indices[0].tensor.dtype is bool_:
        return indexing.boolean_mask(x, indices[0])
    places = _indices(call, x, indices)
    axes = [axis for axis, index in enumerate(places) if index is not None]
    given = [index for index in places if index is not None]
    if len(given) == 1:
        return indexing.gather(x, cast_index(given[0]), axis=axes[0])
    together = _together(given)
    front = [*axes, *(axis for axis in range(x.tensor.rank) if axis not in axes)]
    turned = movement.transpose(x, perm=tuple(front)) if front != sorted(front) else x
    y = indexing.gather_nd(turned, movement.stack(*together, axis=together[0].tensor.rank))
    return _in_place(y, axes, together[0].tensor.rank)


def _in_place(y: Value, axes: Sequence[int], count: int) -> Value:
    """Move the axes of indices from the front to where the indexed axes were neighbours."""
    if not _are_neighbours(axes) or axes[0] == 0:
        return y
    rank, before = y.tensor.rank, axes[0]
    perm = (*range(count, count + before), *range(count), *range(count + before, rank))
    return movement.transpose(y, perm=perm)


def _are_neighbours(axes: Sequence[int]) -> bool:
    return list(axes) == list(range(axes[0], axes[0] + len(axes)))


@ROWS.add("index_put", "_unsafe_index_put", ops="scatter_nd")
def _index_put(
    call: AtenCall,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    if (
        len(indices) == 1
        and indices[0] is not None
        and indices[0].tensor.dtype is bool_
        and values.tensor.size == 1
        and not accumulate
    ):
        mask = indices[0]
        ones = (1,) * (x.tensor.rank - mask.tensor.rank)
        wide = movement.reshape(mask, shape=(*mask.tensor.shape, *ones))
        return logic.where(wide, movement.reshape(call.value(values), shape=()), x)
    places = _indices(call, x, indices)
    axes = [axis for axis, index in enumerate(places) if index is not None]
    together = _together([index for index in places if index is not None])
    front = [*axes, *(axis for axis in range(x.tensor.rank) if axis not in axes)]
    turned = movement.transpose(x, perm=tuple(front))
    count = together[0].tensor.rank
    rest = turned.tensor.shape[len(axes) :]
    updates = _updates(call.value(values), axes, together[0].tensor.shape, rest)
    written = scatter.scatter_nd(
        turned,
        movement.stack(*together, axis=count),
        updates,
        reduction="add" if accumulate else "set",
    )
    return movement.transpose(written, perm=tuple(front.index(axis) for axis in range(len(front))))


def _updates(
    values: Value, axes: Sequence[int], places: tuple[Dim, ...], rest: tuple[Dim, ...]
) -> Value:
    """Broadcast what is written to the places and the axes that are not indexed."""
    before = axes[0] if _are_neighbours(axes) else 0
    whole = _broadcast(values, (*rest[:before], *places, *rest[before:]))
    if before == 0:
        return whole
    count, rank = len(places), len(places) + len(rest)
    perm = (*range(before, before + count), *range(before), *range(before + count, rank))
    return movement.transpose(whole, perm=perm)


# Writing along an axis.


@ROWS.add("scatter.src", "scatter.value", ops="scatter_elements")
def _scatter(call: AtenCall, x: Value, dim: int, index: Value, source: Any) -> Value:
    return _scattered(call, x, dim, index, source, "set")


@ROWS.add("scatter_add", ops="scatter_elements")
def _scatter_add(call: AtenCall, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(call, x, dim, index, source, "add")


@ROWS.add("scatter.reduce", "scatter.value_reduce", ops="scatter_elements")
def _scatter_reduced(
    call: AtenCall, x: Value, dim: int, index: Value, source: Any, reduce: str
) -> Value:
    return _scattered(call, x, dim, index, source, _REDUCTIONS[reduce])


@ROWS.add("scatter_reduce.two", ops="scatter_elements")
def _scatter_reduce(
    call: AtenCall,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    include_self: bool = True,
) -> Value:
    if reduce not in _REDUCTIONS:
        raise call.refusal(f"reduce={reduce!r} is not known. Use sum, prod, amax or amin.")
    if not include_self:
        raise call.refusal("include_self=False is not known. Start from the neutral element.")
    return _scattered(call, x, dim, index, source, _REDUCTIONS[reduce])


def _scattered(
    call: AtenCall, x: Value, dim: int, index: Value, source: Any, combine: str
) -> Value:
    row, places = at_least_1d(x), at_least_1d(index)
    if isinstance(source, Value):
        updates = call.value(at_least_1d(source))
        updates = _corner(updates, places)
    else:
        updates = creation.full(call.value(source), shape=places.tensor.shape)
    axis = axis_in(dim, x.tensor.rank)
    written = scatter.scatter_elements(
        row, cast_index(places), updates, axis=axis, reduction=combine
    )
    return _shaped(call, written)


def _corner(x: Value, like: Value) -> Value:
    """Cut to the size of the indices: PyTorch allows sources that are larger."""
    shape = like.tensor.shape
    if shape == x.tensor.shape:
        return x
    zeros, ones = (0,) * len(shape), (1,) * len(shape)
    return slicing.slice_(x, starts=zeros, limits=shape, strides=ones)


@ROWS.add("index_add", ops="scatter_nd, scatter_elements")
def _index_add(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1
) -> Value:
    added = source if alpha == 1 else elementwise.multiply(source, call.value(alpha))
    return _written_slices(call, x, dim, index, added, "add")


@ROWS.add("index_copy", ops="scatter_nd, scatter_elements")
def _index_copy(call: AtenCall, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _written_slices(call, x, dim, index, source, "set")


@ROWS.add("index_fill.int_Scalar", "index_fill.int_Tensor", ops="scatter_nd")
def _index_fill(call: AtenCall, x: Value, dim: int, index: Value, value: Any) -> Value:
    row, places = at_least_1d(x), at_least_1d(index)
    axis = axis_in(dim, x.tensor.rank)
    shape = list(row.tensor.shape)
    shape[axis] = places.tensor.shape[0]
    updates = creation.full(call.value(value), shape=tuple(shape))
    return _written_slices(call, x, dim, index, updates, "set")


def _written_slices(
    call: AtenCall, x: Value, dim: int, index: Value, source: Value, combine: str
) -> Value:
    row, places, updates = at_least_1d(x), at_least_1d(index), at_least_1d(source)
    axis, rank = axis_in(dim, x.tensor.rank), row.tensor.rank
    if axis == 0:
        column = movement.expand_dims(cast_index(places), axes=(1,))
        return _shaped(call, scatter.scatter_nd(row, column, updates, reduction=combine))
    # Not by transposes, which would copy a whole cache of keys for each token.
    others = tuple(i for i in range(rank) if i != axis)
    along = movement.expand_dims(cast_index(places), axes=others)
    whole = movement.broadcast_to(along, shape=updates.tensor.shape)
    written = scatter.scatter_elements(row, whole, updates, axis=axis, reduction=combine)
    return _shaped(call, written)


@ROWS.add("slice_scatter", ops="concat, scatter_nd")
def _slice_scatter(
    call: AtenCall,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    axis = dim % x.tensor.rank
    first, _, _ = slicing.normalize_slice(slice(start, end, step), x.tensor.shape[axis])
    source = movement.broadcast_to(
        call.value(source),
        shape=(*x.tensor.shape[:axis], source.tensor.shape[axis], *x.tensor.shape[axis + 1 :]),
    )
    if step == 1:
        before = slicing.slice_axis(x, axis, slice(0, first))
        after = slicing.slice_axis(x, axis, slice(first + source.tensor.shape[axis], None))
        parts = [p for p in (before, source, after) if p.tensor.shape[axis] != 0]
        return parts[0] if len(parts) == 1 else movement.concat(*parts, axis=axis)
    places = creation.arange.new(
        count=source.tensor.shape[axis], start=first, step=step, dtype=int64
    )
    return _written_slices(call, x, axis, places, source, "set")


@ROWS.add("select_scatter", ops="concat")
def _select_scatter(call: AtenCall, x: Value, source: Value, dim: int, index: Any) -> Value:
    axis = dim % x.tensor.rank
    if isinstance(index, int) and index < 0:
        index = x.tensor.shape[axis] + index
    part = movement.expand_dims(call.value(source), axes=(axis,))
    return _slice_scatter(call, x, part, axis, index, index + 1)


@ROWS.add("diagonal_scatter", ops="where")
def _diagonal_scatter(
    call: AtenCall, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    rank = x.tensor.rank
    one, two = dim1 % rank, dim2 % rank
    shape = x.tensor.shape
    rows = creation.iota.new(shape=shape, axis=one, dtype=int64)
    columns = creation.iota.new(shape=shape, axis=two, dtype=int64)
    is_on = logic.equal(elementwise.add(rows, offset), columns)
    # The diagonal is the last axis of the source: put it along the first of the two.
    order = iter(range(rank - 2))
    perm = [next(order) if i not in (one, two) else rank - 2 for i in range(rank) if i != two]
    turned = movement.expand_dims(movement.transpose(source, perm=tuple(perm)), axes=(two,))
    low = max(0, -offset)
    span = turned.tensor.shape[one]
    edges: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    edges[one] = (low, shape[one] - span - low)
    wide = slicing.pad(turned, padding=tuple(edges))
    return logic.where(is_on, wide, x)


@ROWS.add("masked_scatter", ops="gather, where")
def _masked_scatter(call: AtenCall, x: Value, mask: Value, source: Value) -> Value:
    """Take the elements of the source in order where the mask holds."""
    from fusewire.ops.cumulative import cumsum

    shape = call.shape
    whole = _broadcast(call.value(mask, bool_), shape)
    flat = cast(movement.reshape(whole, shape=(whole.tensor.size,)), dtype=int64)
    order = elementwise.subtract(cumsum(flat, axis=0), 1)
    flat_source = movement.reshape(source, shape=(source.tensor.size,))
    last = call.measure(source.tensor.size)
    places = elementwise.clip(order, call.value(0, int64), elementwise.subtract(last, 1))
    taken = indexing.gather(flat_source, places, axis=0)
    return logic.where(whole, movement.reshape(taken, shape=shape), _broadcast(x, shape))


@ROWS.add("one_hot", ops="equal")
def _one_hot(call: AtenCall, x: Value, classes: int = -1) -> Value:
    if classes == -1:
        raise call.refusal("the number of classes depends on the elements. Give num_classes.")
    wide = movement.expand_dims(x, axes=(x.tensor.rank,))
    places = creation.iota.new(shape=(classes,), axis=0, dtype=int64)
    return cast(logic.equal(wide, places), dtype=int64)


@ROWS.add("bucketize.Tensor", "searchsorted.Tensor", ops="searchsorted")
def _searchsorted(call: AtenCall, first: Value, second: Value, *rest: Any) -> Value:
    from fusewire.ops.sorting import searchsorted

    is_bucketize = call.name.startswith("aten.bucketize")
    row, x = (second, first) if is_bucketize else (first, second)
    if row.tensor.rank != 1 or (not is_bucketize and (rest[2] is not None or rest[3] is not None)):
        raise call.refusal("the sorted numbers must be one row. Use one row, in order.")
    right = rest[1]
    of = call.common_dtype()
    return call.value(searchsorted(call.value(row, of), call.value(x, of), right=bool(right)))


@ROWS.add("nonzero", ops="nonzero")
def _nonzero(call: AtenCall, x: Value) -> Value:
    return movement.transpose(indexing.nonzero(x), perm=(1, 0))


@ROWS.add("masked_select", ops="boolean_mask")
def _masked_select(call: AtenCall, x: Value, mask: Value) -> Value:
    shape = broadcast_types(x.tensor, mask.tensor.with_dtype(x.tensor.dtype)).shape
    whole = movement.broadcast_to(x, shape=shape)
    return indexing.boolean_mask(whole, movement.broadcast_to(mask, shape=shape))
