"""Create tensors from attributes, or from one scalar.

Calling an op without operands runs it; ``iota.new(...)`` makes a node.
"""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC, REAL, DType, bool_, float32, int64
from fusewire.ir.dims import Dim, Shape
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops import ranges, symbolic
from fusewire.ops.conversion import cast
from fusewire.ops.declare import FRESH, Family, Kind, Trait, ulps
from fusewire.ops.elementwise import add, divide, maximum, multiply, subtract
from fusewire.ops.inference import axis_of, require, same_dtype
from fusewire.ops.logic import equal
from fusewire.ops.movement import broadcast_to, movement
from fusewire.ops.reduction import reduce_max
from fusewire.ops.sample import bad, draw, given, sample

FAMILY = Family("creation")
NO_OPERANDS = dict.fromkeys(("empty", "scalar", "broadcast"), "has no operands")


def _iota_type(*, shape: Shape, axis: int, dtype: DType = int64) -> TensorType:
    axis_of(axis, len(shape))
    require(dtype in REAL, f"counting needs ints or floats, found {dtype}.")
    return TensorType(dtype, shape)


def _iota(shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    axis %= len(shape)
    counted = np.arange(shape[axis]).astype(dtype.numpy)
    return np.broadcast_to(counted.reshape((-1,) + (1,) * (len(shape) - 1 - axis)), shape)


iota = FAMILY.declare(
    "iota",
    _iota_type,
    doc="Fill with the position along an axis.",
    reference=_iota,
    dtypes=REAL,
    flops=0,
    lacks=NO_OPERANDS,
    kind=Kind.FREE,
    value_range=ranges.counted,
    samples=lambda: [
        sample(shape=(2, 5), axis=1),
        sample(shape=(3, 2), axis=-2, dtype="float16"),
        sample(shape=(0, 2), axis=1, dtype="uint8"),
    ],
    refuses=lambda: [bad("axis 1 is outside a tensor of rank 1", shape=(2,), axis=1)],
)


def _full_type(value: TensorType, *, shape: Shape) -> TensorType:
    require(value.rank == 0, f"the value must be a scalar, found {value}.")
    return value.with_shape(shape)


full = movement(
    FAMILY,
    "full",
    _full_type,
    doc="Repeat a scalar.",
    expand=lambda value, shape: broadcast_to(value, shape=shape),
    lacks={"empty": "its operand is a scalar"},
    samples=lambda: [sample(draw(), shape=(2, 3)), sample(draw(), shape=(0, 2))],
    refuses=lambda: [bad("the value must be a scalar, found float32[1]", "[1]", shape=(2, 3))],
)


def _eye_type(*, rows: Dim, columns: Dim, offset: int = 0, dtype: DType = float32) -> TensorType:
    require(dtype in (bool_, *NUMERIC), f"needs bool or numbers, found {dtype}.")
    return TensorType(dtype, (rows, columns))


def _eye(rows: Dim, columns: Dim, offset: int, dtype: DType) -> Value:
    row = add(iota.new(shape=(rows, 1), axis=0), offset)
    return cast(equal(row, iota.new(shape=(1, columns), axis=1)), dtype=dtype)


eye = FAMILY.declare(
    "eye",
    _eye_type,
    doc="Write ones on a diagonal, ``offset`` places to the right of the main one.",
    expand=_eye,
    dtypes=FLOATS,
    lacks=NO_OPERANDS,
    samples=lambda: [
        sample(rows=3, columns=3),
        sample(rows=3, columns=4, offset=-1, dtype="complex64"),
        sample(rows=2, columns=0, offset=1, dtype="bool"),
    ],
    refuses=lambda: [bad("needs bool or numbers, found None", rows=3, columns=3, dtype=None)],
)


def _arange_type(
    *, count: Dim, start: int | float = 0, step: int | float = 1, dtype: DType = int64
) -> TensorType:
    whole = isinstance(start, int) and isinstance(step, int)
    require(whole or dtype.is_float, f"steps of {step} from {start} need floats, found {dtype}.")
    return _iota_type(shape=(count,), axis=0, dtype=dtype)


def _count(count: Dim, dtype: DType) -> Value:
    """Count in float32 for 16-bit floats, which do not hold all whole numbers."""
    held = float32 if dtype.is_float and dtype.bits == 16 else dtype
    return iota.new(shape=(count,), axis=0, dtype=held)


def _as(x: Value, dtype: DType) -> Value:
    return x if x.tensor.dtype is dtype else cast(x, dtype=dtype)


arange = FAMILY.declare(
    "arange",
    _arange_type,
    doc="Count from a start in equal steps.",
    expand=lambda count, start, step, dtype: _as(
        add(multiply(_count(count, dtype), step), start), dtype
    ),
    dtypes=REAL,
    lacks=NO_OPERANDS,
    value_range=ranges.counted,
    samples=lambda: [
        sample(count=5),
        sample(count=4, start=3, step=-2, dtype="int8"),
        sample(count=4, start=0.5, step=0.25, dtype="float16"),
        sample(count=0, dtype="float32"),
    ],
    refuses=lambda: [
        bad("counting needs ints or floats, found bool", count=5, dtype="bool"),
        bad("steps of None from 0 need floats, found int64", count=5, step=None),
    ],
)


def _linspace_type(
    *, start: float, stop: float, count: Dim, endpoint: bool = True, dtype: DType = float32
) -> TensorType:
    require(dtype in FLOATS, f"needs floats, found {dtype}.")
    return TensorType(dtype, (count,))


def _linspace(start: float, stop: float, count: Dim, endpoint: bool, dtype: DType) -> Value:
    place = _count(count, dtype)
    last = reduce_max(place)
    weight = divide(place, maximum(last if endpoint else add(last, 1.0), 1.0))
    spaced = add(multiply(subtract(1.0, weight), start), multiply(weight, stop))
    return _as(spaced, dtype)


linspace = FAMILY.declare(
    "linspace",
    _linspace_type,
    doc="Space points evenly from start to stop, both included.",
    expand=_linspace,
    dtypes=FLOATS,
    lacks=NO_OPERANDS,
    samples=lambda: [
        sample(start=-1.0, stop=2.0, count=7),
        sample(start=3.0, stop=1.0, count=4, endpoint=False, dtype="float64"),
        sample(start=1.0, stop=2.0, count=1, dtype="bfloat16"),
    ],
    refuses=lambda: [bad("needs floats, found None", start=1.0, stop=2.0, count=1, dtype=None)],
)


def _range_type(
    start: TensorType, stop: TensorType, step: TensorType, *, count: Dim = FRESH
) -> TensorType:
    for operand in (start, stop, step):
        require(operand.rank == 0, f"bounds must be scalars, found {operand}.")
    return TensorType(same_dtype(start, stop, step), (count,))


def _range_length(start: Array, stop: Array, step: Array) -> int:
    # In Python numbers, which neither wrap nor round on the way.
    first, last, by = start.item(), stop.item(), step.item()
    whole = isinstance(first, int)
    found = -((first - last) // by) if whole else int(np.ceil((last - first) / by))
    return max(found, 0)


def _range(start: Array, stop: Array, step: Array, count: int | None) -> Array:
    length = _range_length(start, stop, step)
    places: Array = np.arange(length).astype(start.dtype) * step + start
    return places


range_ = FAMILY.declare(
    "range",
    _range_type,
    doc="Count from start up or down to, not including, stop.",
    reference=_range,
    dtypes=REAL,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS, Trait.COUNTING),
    tolerance=ulps(2),
    flops=2,
    index_operands=("start", "stop", "step"),
    lacks={"empty": "its operands are scalars", "broadcast": "its operands are scalars"},
    value_range=ranges.between,
    output_shapes=lambda start, stop, step, count: [[_range_length(start, stop, step)]],
    symbolic=symbolic.range_,
    samples=lambda: [
        sample(given(1), given(9), given(3)),
        sample(given(9), given(0), given(-4), only=REAL[:8]),
        sample(given(3), given(1), given(1)),
        sample(given(0.25), given(1.9), given(0.5), only=REAL[:4]),
    ],
    refuses=lambda: [
        bad("bounds must be scalars, found float32[1]", "[1]", "[]", "[]"),
        bad("operands must have one dtype, found int8 and float32", "int8[]", "[]", "[]"),
    ],
)
