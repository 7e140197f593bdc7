"""Sums of products: matrix products and everything that is written as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import NUMERIC
from fusewire.ir.dims import Dim, Shape, broadcast_dim, size
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops.declare import LINEAR, Family, Trait
from fusewire.ops.inference import axis_of, broadcast_shapes, require, require_dims, same_dtype
from fusewire.ops.sample import Sample, draw, sample

FAMILY = Family("contraction")

Pairs = tuple[tuple[int, ...], tuple[int, ...]]
NEEDS_MATRIX = "a product of matrices needs an axis to sum over"


def exact_matmul(a: Array, b: Array) -> Array:
    """Multiply as np.matmul; integers go through float64 BLAS where that is exact."""
    if a.dtype.kind not in "iu" or not a.size or not b.size:
        return np.asarray(np.matmul(a, b))
    largest = [max(abs(int(x.max())), abs(int(x.min()))) for x in (a, b)]
    if largest[0] * largest[1] * a.shape[-1] >= 2**53:
        return np.asarray(np.matmul(a, b))
    product = np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)))
    # Through int64, so that what does not fit wraps around as in NumPy.
    return product.astype(np.int64).astype(a.dtype)


def _split_axes(
    rank: int, contract: Sequence[int], batch: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Give the batch, free and contracted axes of one operand of dot_general."""
    summed = [axis_of(axis, rank) for axis in contract]
    shared = [axis_of(axis, rank) for axis in batch]
    used = [*shared, *summed]
    require(len(set(used)) == len(used), f"the axes {used} name an axis twice.")
    return shared, [axis for axis in range(rank) if axis not in used], summed


def _dot_general_type(
    a: TensorType, b: TensorType, *, contract: Pairs, batch: Pairs = ((), ())
) -> TensorType:
    for what, (left, right) in (("contract", contract), ("batch", batch)):
        require(len(left) == len(right), f"{what} must name axes in pairs, found {left}, {right}.")
    a_batch, a_free, a_sum = _split_axes(a.rank, contract[0], batch[0])
    b_batch, b_free, b_sum = _split_axes(b.rank, contract[1], batch[1])
    for i, j in zip(a_batch + a_sum, b_batch + b_sum, strict=True):
        require_dims(a.shape[i], b.shape[j], f"axis {i} of the left and {j} of the right operand")
    shared = [broadcast_dim(a.shape[i], b.shape[j]) for i, j in zip(a_batch, b_batch, strict=True)]
    free = [a.shape[i] for i in a_free] + [b.shape[j] for j in b_free]
    return TensorType(same_dtype(a, b), (*shared, *free))


def _dot_general(a: Array, b: Array, *, contract: Pairs, batch: Pairs) -> Array:
    a_batch, a_free, a_sum = _split_axes(a.ndim, contract[0], batch[0])
    b_batch, b_free, b_sum = _split_axes(b.ndim, contract[1], batch[1])
    shared = tuple(a.shape[i] for i in a_batch)
    a_kept, b_kept = tuple(a.shape[i] for i in a_free), tuple(b.shape[j] for j in b_free)
    summed = int(np.prod([a.shape[i] for i in a_sum], dtype=np.int64))
    rows, columns = (int(np.prod(kept, dtype=np.int64)) for kept in (a_kept, b_kept))
    left = a.transpose(a_batch + a_free + a_sum).reshape(*shared, rows, summed)
    right = b.transpose(b_batch + b_sum + b_free).reshape(*shared, summed, columns)
    product = exact_matmul(left, right) if a_sum else left * right
    return product.reshape(shared + a_kept + b_kept)


def _dot_general_flops(
    inputs: Sequence[Type | None], outputs: Sequence[Type], attrs: Mapping[str, Any]
) -> Dim:
    left = inputs[0]
    assert left is not None
    summed = size([tensor_of(left).shape[axis] for axis in attrs["contract"][0]])
    return tensor_of(outputs[0]).size * summed * 2


def _dot_general_samples() -> list[Sample]:
    return [
        sample(draw(3, 4), draw(4, 5), contract=((1,), (0,))),
        sample(draw(2, 3, 4), draw(4, 2, 5), contract=((-1,), (0,)), batch=((0,), (1,))),
        sample(draw(2, 3, 2, 4), draw(3, 4, 2, 2), contract=((1, 3), (0, 1)), batch=((0,), (3,))),
        sample(draw(3), draw(4), contract=((), ())),
        sample(draw(2, 3), draw(2, 3), contract=((), ()), batch=((0, 1), (0, 1))),
        sample(draw(), draw(4), contract=((), ())),
        sample(draw(3, 0), draw(0, 2), contract=((1,), (0,))),
    ]


dot_general = FAMILY.declare(
    "dot_general",
    _dot_general_type,
    doc="Sum products over paired axes; gives batch axes, then free axes of the left and right.",
    reference=_dot_general,
    dtypes=NUMERIC,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=_dot_general_flops,
    samples=_dot_general_samples,
)


def _matmul_type(a: TensorType, b: TensorType) -> TensorType:
    require(a.rank > 0 and b.rank > 0, "matmul needs operands of rank 1 or more. Use multiply.")
    require_dims(
        a.shape[-1], b.shape[max(b.rank - 2, 0)], "the columns of the left, the rows of the right"
    )
    batch: Shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType(same_dtype(a, b), batch + a.shape[-2:-1] + b.shape[-1:] * (b.rank > 1))


def matmul_flops(
    inputs: Sequence[Type | None], outputs: Sequence[Type], attrs: Mapping[str, Any]
) -> Dim:
    """Count a multiplication and an addition for every term of a product of matrices."""
    left = inputs[0]
    assert left is not None
    return tensor_of(outputs[0]).size * tensor_of(left).shape[-1] * 2


def matmul_samples() -> list[Sample]:
    """Samples of products of stacks of matrices."""
    return [
        sample(draw(3, 4), draw(4, 5)),
        sample(draw(4), draw(4)),
        sample(draw(4), draw(2, 4, 3)),
        sample(draw(2, 3, 4), draw(4)),
        sample(draw(2, 1, 3, 4), draw(3, 4, 2)),
        sample(draw(0, 3, 4), draw(4, 2)),
        sample(draw(3, 0), draw(0, 2)),
    ]


matmul = FAMILY.declare(
    "matmul",
    _matmul_type,
    doc="Multiply stacks of matrices as np.matmul does; an operand of rank 1 is a vector.",
    reference=exact_matmul,
    dtypes=NUMERIC,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=matmul_flops,
    samples=matmul_samples,
    lacks={"scalar": NEEDS_MATRIX},
)
