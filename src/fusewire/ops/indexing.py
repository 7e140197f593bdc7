"""Read elements at indices given by operands. Negative indices count from the end."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import INTEGERS, STORED, bool_, int64
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import FRESH, Family, Kind, Trait
from fusewire.ops.elementwise import add, negative, subtract
from fusewire.ops.inference import axis_of, fits, require, require_dims
from fusewire.ops.logic import equal, less, logical_or, where
from fusewire.ops.movement import expand_dims, movement, reshape, transpose
from fusewire.ops.requires import Operands, coordinates, index, none_from, up_to
from fusewire.ops.sample import bad, draw, given, sample
from fusewire.ops.slicing import flip, slice_axis

FAMILY = Family("indexing")
INDICES = ("indices",)
SELECTS = (Trait.MOVEMENT, Trait.UNBACKED)


def require_indices(indices: TensorType) -> None:
    """Refuse indices that are not ints."""
    require(indices.dtype in INTEGERS, f"indices must be ints, found {indices.dtype}.")


def _gather_type(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    require_indices(indices)
    axis = axis_of(axis, x.rank)
    return x.with_shape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


gather = movement(
    FAMILY,
    "gather",
    _gather_type,
    doc="Take slices of an axis by index; the axes of the indices replace that axis.",
    reference=lambda x, indices, axis: np.take(x, indices.astype(np.int64), axis),
    index_operands=INDICES,
    requires=(index("indices", of="x"),),
    lacks={"scalar": "a scalar has no axis to index"},
    kind=Kind.MAP,
    samples=lambda: [
        sample(draw(4, 3), given([[0, -1], [3, 2]], "int64"), axis=0),
        sample(draw(4, 3), given(1, "int32"), axis=-1),
        sample(draw(2, 3), draw(0, dtype_="int64"), axis=1),
    ],
)
embedding = movement(
    FAMILY,
    "embedding",
    lambda weight, indices: _gather_type(weight, indices, axis=0),
    doc="Look up rows of a table.",
    expand=lambda weight, indices: gather(weight, indices, axis=0),
    index_operands=INDICES,
    requires=(index("indices", of="weight", axis=0),),
    lacks={"scalar": "a table has rows"},
    samples=lambda: [
        sample(draw(5, 3), given([[0, 4], [2, 2]], "int32")),
        sample(draw(5, 3), draw(0, dtype_="int64")),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[5, 3]", "bool[0]"),
        bad("axis 0 is outside a tensor of rank 0", "[]", "int64[0]"),
    ],
)


def _gather_elements_type(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    require_indices(indices)
    axis_of(axis, x.rank)
    require(indices.rank == x.rank, f"indices must have rank {x.rank}, found {indices}.")
    return x.with_shape(indices.shape)


def along_axis(indices: Array, axis: int) -> tuple[Array, ...]:
    """Index each element at its own place, but for one axis, where indices tell."""
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[axis] = indices.astype(np.int64)
    return tuple(places)


gather_elements = movement(
    FAMILY,
    "gather_elements",
    _gather_elements_type,
    doc="Take the element at each place, with the place along one axis given by indices.",
    reference=lambda x, indices, axis: x[along_axis(indices, axis)],
    index_operands=INDICES,
    requires=(index("indices", of="x"),),
    lacks={"scalar": "a scalar has no axis to index"},
    kind=Kind.MAP,
    samples=lambda: [
        sample(draw(4, 3), given([[0, -1], [3, 2]], "int64"), axis=0),
        sample(draw(2, 3), given([[2], [-3]], "int32"), axis=-1),
        sample(draw(2, 3), draw(2, 0, dtype_="int64"), axis=1),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[4, 3]", "bool[2, 2]", axis=0),
        bad("axis 0 is outside a tensor of rank 0", "[]", "int64[2, 2]", axis=0),
        bad("indices must have rank 2, found int64[]", "[4, 3]", "int64[]", axis=0),
    ],
)


def _gather_nd_type(x: TensorType, indices: TensorType, *, batch_dims: int = 0) -> TensorType:
    require_indices(indices)
    require(0 <= batch_dims < indices.rank, f"batch_dims {batch_dims} is not below the rank.")
    require(batch_dims <= x.rank, f"{x} has fewer than {batch_dims} batch axes.")
    for i in range(batch_dims):
        require_dims(x.shape[i], indices.shape[i], f"batch dims {i}")
    depth = indices.shape[-1]
    if not isinstance(depth, int) or depth + batch_dims > x.rank:
        require(False, f"the last dim of the indices must count axes of {x}, found {depth}.")
        return x
    return x.with_shape(indices.shape[:-1] + x.shape[batch_dims + depth :])


def _gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    outer = indices.shape[:-1]
    places = [*np.indices(outer, sparse=True)[:batch_dims]]
    places += list(np.moveaxis(indices.astype(np.int64), -1, 0))
    return x[tuple(places)] if places else np.broadcast_to(x, (*outer, *x.shape))


gather_nd = movement(
    FAMILY,
    "gather_nd",
    _gather_nd_type,
    doc="Take the elements or slices named by the last axis of the indices, after batch axes.",
    reference=_gather_nd,
    index_operands=INDICES,
    requires=(coordinates("indices", of="x", skipped="batch_dims"),),
    kind=Kind.MAP,
    samples=lambda: [
        sample(draw(2, 3, 4), given([[0, -1], [1, 2]], "int64")),
        sample(draw(2, 3, 4), given([[[0], [2]], [[1], [-1]]], "int64"), batch_dims=1),
        sample(draw(2, 2), given([[0, 1], [1, 0]], "int32")),
        sample(draw(), draw(2, 0, dtype_="int64")),
        sample(draw(3, 2), draw(0, 1, dtype_="int64")),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[]", "bool[2, 0]"),
        bad("batch_dims 0 is not below the rank", "[]", "int64[]"),
        bad("float32[] has fewer than 1 batch axes", "[]", "int64[2, 0]", batch_dims=1),
        bad("the last dim of the indices must count axes of float32[]", "[]", "int64[2]"),
        bad("batch dims 0 must be equal, found 3 and 0", "[3, 2]", "int64[0, 1]", batch_dims=1),
        bad(
            "the last dim of the indices must count axes of float32[2",
            "[2, 2]",
            "int32[2, 2]",
            batch_dims=1,
        ),
    ],
)


def _one_hot_type(
    indices: TensorType, values: TensorType, *, depth: Dim, axis: int = -1
) -> TensorType:
    require(fits(values, 2), f"values must be [off, on], found {values}.")
    axis = axis_of(axis, indices.rank + 1)
    return values.with_shape((*indices.shape[:axis], depth, *indices.shape[axis:]))


def _one_hot(indices: Value, values: Value, depth: Dim, axis: int) -> Value:
    shape = indices.tensor.shape
    axis = axis_of(axis, len(shape) + 1)
    at = expand_dims(cast(indices, dtype=int64), axes=(axis,))
    place = iota.new(shape=(depth, *(1 for _ in shape[axis:])), axis=0)
    from_end = negative(add(flip(place, axes=(0,)), 1))
    off, on = (reshape(slice_axis(values, 0, slice(i, i + 1)), shape=()) for i in (0, 1))
    return where(logical_or(equal(at, place), equal(at, from_end)), on, off)


one_hot = FAMILY.declare(
    "one_hot",
    _one_hot_type,
    doc="Write ``on`` at the index along a new axis, and ``off`` elsewhere.",
    expand=_one_hot,
    dtypes=INTEGERS,
    index_operands=INDICES,
    samples=lambda: [
        sample(given([0, 2, 1]), given([0.0, 1.0], "float32"), depth=3),
        sample(given([[0, 4], [-1, -4]], "int32"), given([5, 9], "int8"), depth=3, axis=0),
        sample(given([[0, 4], [1, 1]]), given([False, True], "bool"), depth=3, axis=1),
        sample(given(1), given([0.0, 1.0], "float32"), depth=3),
        sample(draw(0, low=0), given([0.0, 1.0], "float16"), depth=2),
    ],
    refuses=lambda: [
        bad("values must be [off, on], found float32[]", "[]", "float32[]", depth=3),
        bad("axis 1 is outside a tensor of rank 1", "[]", "bool[2]", depth=3, axis=1),
    ],
)


def _reverse_sequence_type(
    x: TensorType, lengths: TensorType, *, batch_axis: int, time_axis: int
) -> TensorType:
    require_indices(lengths)
    batch, time = axis_of(batch_axis, x.rank), axis_of(time_axis, x.rank)
    require(batch != time, f"batch and time must be different axes, found {batch} twice.")
    require(lengths.rank == 1, f"lengths must have rank 1, found {lengths}.")
    require_dims(lengths.shape[0], x.shape[batch], "the number of lengths and the batch")
    return x


def _reverse_sequence(x: Value, lengths: Value, batch_axis: int, time_axis: int) -> Value:
    shape = x.tensor.shape
    batch = axis_of(batch_axis, len(shape))
    length = cast(lengths, dtype=int64)
    length = reshape(length, shape=tuple(d if i == batch else 1 for i, d in enumerate(shape)))
    time = iota.new(shape=shape, axis=time_axis)
    turned = where(less(time, length), subtract(subtract(length, 1), time), time)
    return gather_elements(x, turned, axis=time_axis)


reverse_sequence = movement(
    FAMILY,
    "reverse_sequence",
    _reverse_sequence_type,
    doc="Reverse the first steps of each sequence of a batch, as many as its length.",
    expand=_reverse_sequence,
    index_operands=("lengths",),
    requires=(up_to("lengths", of="x", axis="time_axis"),),
    lacks={"scalar": "needs a batch axis and a time axis"},
    samples=lambda: [
        sample(draw(4, 3, 2), given([4, 0, 2], "int64"), batch_axis=1, time_axis=0),
        sample(draw(2, 4), given([1, 3], "int64"), batch_axis=0, time_axis=-1),
        sample(draw(0, 4), draw(0, dtype_="int64"), batch_axis=0, time_axis=1),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[0, 4]", "bool[0]", batch_axis=0, time_axis=1),
        bad(
            "batch and time must be different axes, found 0 twice",
            "[4]",
            "int64[2]",
            batch_axis=0,
            time_axis=-1,
        ),
        bad(
            "lengths must have rank 1, found int64[]",
            "[0, 4]",
            "int64[]",
            batch_axis=0,
            time_axis=1,
        ),
        bad(
            "the number of lengths and the batch must be equal, found 3",
            "[3, 2]",
            "int64[3]",
            batch_axis=1,
            time_axis=0,
        ),
        bad("axis 1 is outside a tensor of rank 0", "[]", "int64[3]", batch_axis=1, time_axis=0),
    ],
)


def _nonzero_type(x: TensorType, *, count: Dim = FRESH) -> TensorType:
    return TensorType(int64, (x.rank, count))


def _nonzero(x: Array, count: int | None) -> Array:
    return np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(bool(x))), np.int64)


nonzero = FAMILY.declare(
    "nonzero",
    _nonzero_type,
    doc="List the indices of nonzero elements in row-major order, one per column.",
    reference=_nonzero,
    dtypes=STORED,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    flops=1,
    value_range=ranges.places_of_axes,
    samples=lambda: [
        sample(given([[0, 1, 0], [1, 0, 1]])),
        sample(given(1)),
        sample(draw(0, 2)),
        sample(given([0, 0])),
    ],
)


def _mask_type(x: TensorType, mask: TensorType, *, count: Dim = FRESH) -> TensorType:
    require(mask.dtype is bool_, f"the mask must be bool, found {mask.dtype}.")
    require(mask.rank <= x.rank, f"the mask has more axes than {x}: {mask}.")
    for i, dim in enumerate(mask.shape):
        require_dims(dim, x.shape[i], f"dims {i} of mask and operand")
    return x.with_shape((count, *x.shape[mask.rank :]))


boolean_mask = movement(
    FAMILY,
    "boolean_mask",
    _mask_type,
    doc="Keep the elements where a mask over the leading axes holds.",
    expand=lambda x, mask, count: gather_nd(x, transpose(nonzero(mask, count=count), perm=(1, 0))),
    traits=SELECTS,
    steady=("mask",),
    samples=lambda: [
        sample(draw(3, 2), given([True, False, True], "bool")),
        sample(draw(2, 2), given([[True, False], [True, True]], "bool")),
        sample(draw(), given(True, "bool")),
        sample(draw(0, 2), draw(0, dtype_="bool")),
    ],
    refuses=lambda: [
        bad("the mask must be bool, found int8", "[]", "int8[]"),
        bad("the mask has more axes than float32[]: bool[3]", "[]", "bool[3]"),
        bad("dims 0 of mask and operand must be equal, found 3 and 2", "[2]", "bool[3]"),
    ],
)


def _compress_type(
    x: TensorType, condition: TensorType, *, axis: int | None = None, count: Dim = FRESH
) -> TensorType:
    require(condition.dtype is bool_ and condition.rank == 1, f"needs bools, found {condition}.")
    if axis is None:
        return x.with_shape((count,))
    axis = axis_of(axis, x.rank)
    return x.with_shape((*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _compress(x: Value, condition: Value, axis: int | None, count: Dim) -> Value:
    kept = reshape(nonzero(condition, count=count), shape=(count,))
    if axis is None:
        return gather(reshape(x, shape=(size(x.tensor.shape),)), kept, axis=0)
    return gather(x, kept, axis=axis)


def _compressed(operands: Operands) -> Dim:
    """Return how many slices there are to keep."""
    axis, shape = operands.attrs["axis"], operands.type("x").shape
    return size(shape) if axis is None else shape[axis]


compress = movement(
    FAMILY,
    "compress",
    _compress_type,
    doc="Keep the slices of an axis (or of the flattened tensor) where a list holds.",
    expand=_compress,
    traits=SELECTS,
    steady=("condition",),
    requires=(none_from("condition", _compressed),),
    samples=lambda: [
        sample(draw(3, 2), given([False, True, True], "bool"), axis=0),
        sample(draw(3, 2), given([False, True, False, True], "bool")),
        sample(draw(2, 3), given([True], "bool"), axis=-1),
        sample(draw(), given([True], "bool")),
        sample(draw(0, 2), draw(0, dtype_="bool"), axis=0),
    ],
    refuses=lambda: [
        bad("needs bools, found bool[]", "[]", "bool[]"),
        bad("axis 0 is outside a tensor of rank 0", "[]", "bool[3]", axis=0),
    ],
)
