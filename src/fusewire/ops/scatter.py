"""Write elements at indices given by operands. Negative indices count from the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import NUMERIC, REAL, int64
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops import ranges
from fusewire.ops.conversion import cast
from fusewire.ops.creation import iota
from fusewire.ops.declare import LINEAR, Family, Kind, Op, Trait
from fusewire.ops.elementwise import add, remainder
from fusewire.ops.indexing import along_axis, require_indices
from fusewire.ops.inference import axis_of, fits, require, require_dims, same_dtype, within
from fusewire.ops.movement import ANY, movement, reshape
from fusewire.ops.requires import Interval, Operands, between, coordinates, index
from fusewire.ops.sample import bad, draw, given, sample
from fusewire.ops.shape import dim_of

FAMILY = Family("scatter")
# What is done with the element that is there already; the dtypes that it makes sense for.
REDUCTIONS: dict[str, tuple[Any, Sequence[Any]]] = {
    "set": (None, ANY),
    "add": (np.add, NUMERIC),
    "multiply": (np.multiply, NUMERIC),
    "max": (np.maximum, REAL),
    "min": (np.minimum, REAL),
}


def _check(x: TensorType, indices: TensorType, updates: TensorType, reduction: str) -> None:
    require_indices(indices)
    same_dtype(x, updates)
    known = reduction in REDUCTIONS
    require(known, f"reduction must be one of {', '.join(REDUCTIONS)}, found {reduction!r}.")
    allowed = x.dtype in REDUCTIONS[reduction][1]
    require(allowed, f"reduction {reduction} does not take {x.dtype}.")


def _write(x: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    out = np.array(x)
    combine = REDUCTIONS[reduction][0]
    if combine is None:
        out[places] = updates
    else:
        combine.at(out, places, updates)
    return out


def _scatter(name: str, rule: Any, **fields: Any) -> Op[Value]:
    def flops(inputs: Sequence[Type | None], _: Sequence[Type], attrs: Mapping[str, Any]) -> Dim:
        updates = inputs[2]
        assert isinstance(updates, TensorType)
        return updates.size

    return FAMILY.declare(
        name,
        rule,
        dtypes=ANY,
        tolerance=LINEAR,
        traits=(Trait.READS_ONCE, Trait.REPLACES),
        index_operands=("indices",),
        value_range=ranges.written,
        flops=flops,
        lacks={"scalar": "a scalar has no axis to index"},
        **fields,
    )


def _scatter_elements_type(
    x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, reduction: str = "set"
) -> TensorType:
    _check(x, indices, updates, reduction)
    axis_of(axis, x.rank)
    equal = indices.rank == updates.rank == x.rank
    require(equal, f"ranks must be equal, found {x}, {indices} and {updates}.")
    for i, (a, b) in enumerate(zip(indices.shape, updates.shape, strict=True)):
        require_dims(a, b, f"dims {i} of indices and updates")
    return x


scatter_elements = _scatter(
    "scatter_elements",
    _scatter_elements_type,
    requires=(index("indices", of="x"),),
    doc="Write each update at its own place, with the place along one axis given by indices.",
    reference=lambda x, indices, updates, axis, reduction: _write(
        x, along_axis(indices, axis), updates, reduction
    ),
    samples=lambda: [
        sample(draw(4, 3), given([[0, 1, -1]], "int64"), draw(1, 3), axis=0),
        *(
            sample(
                draw(3, 4),
                given([[0, 0, -1], [1, 1, 1]], "int32"),
                draw(2, 3),
                axis=1,
                reduction=name,
                only=dtypes,
            )
            for name, (_, dtypes) in REDUCTIONS.items()
            if name != "set"
        ),
        sample(draw(3, 4), draw(0, 4, dtype_="int64"), draw(0, 4), axis=0),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[4, 3]", "bool[1, 3]", "[1, 3]", axis=0),
        bad(
            "operands must have one dtype, found bool and float32",
            "bool[4, 3]",
            "int64[1, 3]",
            "[1, 3]",
            axis=0,
        ),
        bad(
            "reduction must be one of set, add, multiply, max, min",
            "[4, 3]",
            "int64[1, 3]",
            "[1, 3]",
            axis=0,
            reduction="odd",
        ),
        bad("axis 0 is outside a tensor of rank 0", "[]", "int64[1, 3]", "[1, 3]", axis=0),
        bad(
            "ranks must be equal, found float32[4, 3], int64[] and",
            "[4, 3]",
            "int64[]",
            "[1, 3]",
            axis=0,
        ),
        bad(
            "dims 0 of indices and updates must be equal, found 2 and 1",
            "[4, 3]",
            "int64[2, 3]",
            "[1, 3]",
            axis=0,
        ),
        bad(
            "reduction add does not take bool",
            "bool[3]",
            "int64[1]",
            "bool[1]",
            axis=0,
            reduction="add",
        ),
    ],
)


def _scatter_nd_type(
    x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str = "set"
) -> TensorType:
    _check(x, indices, updates, reduction)
    depth = indices.shape[-1] if indices.rank else 0
    if not isinstance(depth, int) or not 0 < depth <= x.rank:
        require(False, f"the last dim of the indices must count axes of {x}, found {depth}.")
        return x
    wanted = indices.shape[:-1] + x.shape[depth:]
    require(updates.rank == len(wanted), f"updates must have rank {len(wanted)}, found {updates}.")
    for i, (a, b) in enumerate(zip(wanted, updates.shape, strict=True)):
        require_dims(a, b, f"dims {i} of what the indices name and of the updates")
    return x


scatter_nd = _scatter(
    "scatter_nd",
    _scatter_nd_type,
    requires=(coordinates("indices", of="x"),),
    doc="Write updates where the last axis of the indices names elements or slices.",
    reference=lambda x, indices, updates, reduction: _write(
        x, tuple(np.moveaxis(indices.astype(np.int64), -1, 0)), updates, reduction
    ),
    samples=lambda: [
        sample(draw(4, 3), given([[0], [-1]], "int64"), draw(2, 3)),
        *(
            sample(
                draw(3, 4),
                given([[0, 0], [2, 3], [0, 0]], "int64"),
                draw(3),
                reduction=name,
                only=dtypes,
            )
            for name, (_, dtypes) in REDUCTIONS.items()
            if name != "set"
        ),
        sample(draw(3, 4), draw(0, 1, dtype_="int64"), draw(0, 4)),
    ],
    refuses=lambda: [
        bad(
            "operands must have one dtype, found bool and float32",
            "bool[4, 3]",
            "int64[2, 1]",
            "[2, 3]",
        ),
        bad(
            "the last dim of the indices must count axes of float32[]",
            "[]",
            "int64[2, 1]",
            "[2, 3]",
        ),
        bad("updates must have rank 2, found float32[]", "[4, 3]", "int64[2, 1]", "[]"),
        bad(
            "the last dim of the indices must count axes of float32[4",
            "[4, 3]",
            "int64[]",
            "[2, 3]",
        ),
        bad(
            "dims 1 of what the indices name and of the updates must be",
            "[4, 4]",
            "int64[2, 1]",
            "[2, 3]",
        ),
    ],
)


def _update_type(x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
    same_dtype(x, update)
    require_indices(starts)
    require(fits(starts, x.rank), f"one start an axis needed, found {starts} for {x}.")
    require(update.rank == x.rank, f"ranks must be equal, found {x} and {update}.")
    for part, whole in zip(update.shape, x.shape, strict=True):
        require(within(part, whole), f"an update of {part} does not fit into {whole}.")
    return x


def _update(x: Array, update: Array, starts: Array) -> Array:
    out = np.array(x)
    places: list[Any] = []
    for start, part, whole in zip(starts.tolist(), update.shape, x.shape, strict=True):
        start = min(max(start, 0), whole - part)
        places.append(np.s_[start : start + part])
    out[(*places, ...)] = update
    return out


dynamic_update_slice = movement(
    FAMILY,
    "dynamic_update_slice",
    _update_type,
    doc="Write a block at a start given by an operand, moved to fit inside.",
    traits=(Trait.MOVEMENT, Trait.REPLACES),
    reference=_update,
    index_operands=("starts",),
    kind=Kind.MAP,
    samples=lambda: [
        sample(draw(4, 5), draw(2, 3), given([1, 4], "int64")),
        sample(draw(4, 5), draw(4, 1), given([-3, 2], "int32")),
        sample(draw(), draw(), draw(0, dtype_="int64")),
        sample(draw(3, 0), draw(1, 0), given([1, 0], "int64")),
    ],
    refuses=lambda: [
        bad("indices must be ints, found bool", "[]", "[]", "bool[0]"),
        bad("operands must have one dtype, found bool and float32", "bool[]", "[]", "int64[0]"),
        bad("one start an axis needed, found int64[] for float32[]", "[]", "[]", "int64[]"),
        bad("ranks must be equal, found float32[] and float32[1]", "[]", "[1]", "int64[0]"),
        bad("an update of 2 does not fit into 1", "[1, 5]", "[2, 3]", "int64[2]"),
    ],
)


def _tensor_scatter_type(
    x: TensorType,
    update: TensorType,
    starts: TensorType | None = None,
    *,
    axis: int = -2,
    circular: bool = False,
) -> TensorType:
    same_dtype(x, update)
    require(update.rank == x.rank, f"ranks must be equal, found {x} and {update}.")
    axis = axis_of(axis, x.rank)
    require(axis > 0, "axis 0 is the batch, so another must be written along.")
    for i, (a, b) in enumerate(zip(update.shape, x.shape, strict=True)):
        if i != axis:
            require_dims(a, b, f"dims {i}")
    require(within(update.shape[axis], x.shape[axis]), "the update does not fit.")
    if starts is not None:
        require_indices(starts)
        require(starts.rank == 1, f"starts must have rank 1, found {starts}.")
        require_dims(starts.shape[0], x.shape[0], "the number of starts and the batch")
    return x


def _tensor_scatter(
    x: Value, update: Value, starts: Value | None, axis: int, circular: bool
) -> Value:
    shape = update.tensor.shape
    places = iota.new(shape=shape, axis=axis)
    if starts is not None:
        batch = reshape(cast(starts, dtype=int64), shape=(shape[0], *(1 for _ in shape[1:])))
        places = add(places, batch)
    if circular:
        places = remainder(places, dim_of(x, axis_of(axis, len(shape))))
    return scatter_elements(x, places, update, axis=axis)


def _fitting_starts(operands: Operands) -> Interval:
    """Starts from which the update fits; all of them where it goes on at the beginning."""
    if operands.attrs["circular"]:
        return -(2**63), 2**63 - 1
    axis = operands.attrs["axis"]
    return 0, operands.type("x").shape[axis] - operands.type("update").shape[axis]


tensor_scatter = movement(
    FAMILY,
    "tensor_scatter",
    _tensor_scatter_type,
    doc="Write steps into a cache along an axis, each batch entry from its own start.",
    traits=(Trait.MOVEMENT, Trait.REPLACES),
    expand=_tensor_scatter,
    index_operands=("starts",),
    requires=(between("starts", _fitting_starts),),
    lacks={"scalar": "a cache has a batch axis"},
    samples=lambda: [
        sample(draw(2, 5, 3), draw(2, 2, 3), given([3, 1], "int64")),
        sample(draw(2, 5, 3), draw(2, 2, 3), given([4, 1], "int64"), axis=1, circular=True),
        sample(draw(2, 4, 3), draw(2, 1, 3)),
        sample(draw(2, 4, 0), draw(2, 1, 0), given([3, 1], "int64")),
    ],
    refuses=lambda: [
        bad("operands must have one dtype, found bool and float32", "bool[2, 4, 3]", "[2, 1, 3]"),
        bad("ranks must be equal, found float32[] and float32[2, 1, 3]", "[]", "[2, 1, 3]"),
        bad(
            "axis 0 is the batch, so another must be written along",
            "[2, 4, 3]",
            "[2, 1, 3]",
            axis=0,
        ),
        bad("the update does not fit", "[2, 0, 3]", "[2, 1, 3]"),
        bad("starts must have rank 1, found int64[]", "[2, 5, 3]", "[2, 2, 3]", "int64[]"),
        bad("dims 0 must be equal, found 2 and 3", "[3, 4, 3]", "[2, 1, 3]"),
        bad("indices must be ints, found bool", "[2, 5, 3]", "[2, 2, 3]", "bool[2]"),
        bad(
            "the number of starts and the batch must be equal, found 3",
            "[2, 5, 3]",
            "[2, 2, 3]",
            "int64[3]",
        ),
        bad("axis 3 is outside a tensor of rank 3", "[2, 4, 3]", "[2, 1, 3]", axis=3),
    ],
)
