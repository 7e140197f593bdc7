"""Sums of products: matrix products and what can be written as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import FLOATS, NUMERIC
from fusewire.ir.dims import Dim, Shape, size
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import LINEAR, Family, Kind, Trait, ulps
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.inference import (
    axis_of,
    broadcast_shapes,
    require,
    require_dims,
    same_dim,
    same_dtype,
)
from fusewire.ops.movement import reshape
from fusewire.ops.sample import Sample, bad, draw, sample

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
    joined = [
        same_dim(a.shape[i], b.shape[j], f"axis {i} of the left and {j} of the right operand")
        for i, j in zip(a_batch + a_sum, b_batch + b_sum, strict=True)
    ]
    shared = joined[: len(a_batch)]
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


def _dot_general_flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    summed = size([inputs[0].shape[axis] for axis in attrs["contract"][0]])
    return size(outputs[0].shape) * summed * 2


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
    doc="Sum products over paired axes; returns batch axes, then free axes of left and right.",
    reference=_dot_general,
    dtypes=NUMERIC,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    flops=_dot_general_flops,
    kind=Kind.CONTRACT,
    samples=_dot_general_samples,
    refuses=lambda: [
        bad(
            "the axes [1, 1] name an axis twice",
            "[2, 3]",
            "[2, 3]",
            contract=((), ()),
            batch=((1, 1), (0, 1)),
        ),
        bad("contract must name axes in pairs, found (0,), ()", "[]", "[4]", contract=((0,), ())),
        bad("axis 1 is outside a tensor of rank 0", "[]", "[4, 5]", contract=((1,), (0,))),
        bad(
            "axis 0 is outside a tensor of rank 0",
            "[]",
            "[2, 3]",
            contract=((), ()),
            batch=((0, 1), (0, 1)),
        ),
        bad(
            "axis 1 of the left and 0 of the right operand must be",
            "[3, 4]",
            "[5]",
            contract=((1,), (0,)),
        ),
        bad(
            "operands must have one dtype, found int8 and float32",
            "int8[]",
            "[4]",
            contract=((), ()),
        ),
    ],
)


def _matmul_type(a: TensorType, b: TensorType) -> TensorType:
    require(a.rank > 0 and b.rank > 0, "matmul needs operands of rank 1 or more. Use multiply.")
    require_dims(
        a.shape[-1], b.shape[max(b.rank - 2, 0)], "the columns of the left, the rows of the right"
    )
    batch: Shape = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType(same_dtype(a, b), batch + a.shape[-2:-1] + b.shape[-1:] * (b.rank > 1))


def _matmul_flops(inputs: Any, outputs: Any, attrs: Any) -> Dim:
    return size((*outputs[0].shape, inputs[0].shape[-1], 2))


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
    flops=_matmul_flops,
    kind=Kind.CONTRACT,
    samples=matmul_samples,
    refuses=lambda: [
        bad("matmul needs operands of rank 1 or more", "[]", "[4]"),
        bad("the columns of the left, the rows of the right must be", "[5]", "[4]"),
        bad("matmul needs operands of rank 1 or more", "[4]", "[]"),
        bad("shapes [0] and [2] do not broadcast: aligned at the end", "[0, 3, 4]", "[2, 4, 2]"),
        bad("operands must have one dtype, found int8 and float32", "int8[4]", "[4]"),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _linear_type(x: TensorType, w: TensorType, bias: TensorType | None = None) -> TensorType:
    require(w.rank == 2, f"w must be a matrix (outputs, inputs), found {w}.")
    require(x.rank > 0, "x needs an axis of inputs.")
    require_dims(x.shape[-1], w.shape[1], "the last axis of x and the inputs of w")
    count = w.shape[0]
    if bias is not None:
        require(bias.rank == 1, f"bias must have one axis, found {bias}.")
        count = same_dim(bias.shape[0], count, "the size of bias and the outputs of w")
    return TensorType(same_dtype(x, w, bias), (*x.shape[:-1], count))


def _linear(x: Value, w: Value, bias: Value | None) -> Value:
    product = dot_general(x, w, contract=((x.tensor.rank - 1,), (1,)))
    return product if bias is None else add(product, bias)


linear = FAMILY.declare(
    "linear",
    _linear_type,
    doc="Apply a dense layer: x times w transposed, plus bias.",
    expand=_linear,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    samples=lambda: [
        sample(draw(2, 3, 4), draw(5, 4), draw(5)),
        sample(draw(4), draw(5, 4), None),
        sample(draw(0, 4), draw(5, 4), draw(5)),
    ],
    refuses=lambda: [
        bad("w must be a matrix (outputs, inputs), found float32[]", "[4]", "[]"),
        bad("x needs an axis of inputs", "[]", "[5, 4]"),
        bad("the last axis of x and the inputs of w must be equal, found", "[5]", "[5, 4]"),
        bad("bias must have one axis, found float32[]", "[4]", "[5, 4]", "[]"),
        bad("the size of bias and the outputs of w must be equal, found", "[4]", "[5, 4]", "[4]"),
        bad("operands must have one dtype, found float32 and bool", "[4]", "bool[5, 4]"),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _gemm_type(
    a: TensorType,
    b: TensorType,
    c: TensorType | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> TensorType:
    require(a.rank == 2 and b.rank == 2, f"a and b must be matrices, found {a} and {b}.")
    rows, inner = a.shape[::-1] if transpose_a else a.shape
    other, columns = b.shape[::-1] if transpose_b else b.shape
    require_dims(inner, other, "the columns of a and the rows of b")
    found = (rows, columns)
    if c is not None:
        wide = broadcast_shapes(found, c.shape)
        require(wide == found, f"c must broadcast to [{rows}, {columns}], found {c}.")
    return TensorType(same_dtype(a, b, c), found)


def _gemm(a: Value, b: Value, c: Value | None, **attrs: Any) -> Value:
    axes = ((0 if attrs["transpose_a"] else 1,), (1 if attrs["transpose_b"] else 0,))
    product = dot_general(a, b, contract=axes)
    if attrs["alpha"] != 1.0:
        product = multiply(product, attrs["alpha"])
    if c is None or attrs["beta"] == 0.0:
        return product
    return add(product, c if attrs["beta"] == 1.0 else multiply(c, attrs["beta"]))


gemm = FAMILY.declare(
    "gemm",
    _gemm_type,
    doc="Compute alpha times the product of two matrices plus beta times c.",
    expand=_gemm,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION,),
    samples=lambda: [
        sample(draw(3, 4), draw(4, 5), draw(5)),
        sample(draw(4, 3), draw(4, 5), draw(3, 1), alpha=0.5, beta=2.0, transpose_a=True),
        sample(draw(3, 4), draw(5, 4), None, alpha=-1.5, transpose_b=True),
        sample(draw(4, 3), draw(5, 4), draw(), transpose_a=True, transpose_b=True),
        sample(draw(0, 4), draw(4, 5), draw(1, 5), beta=0.0),
    ],
    refuses=lambda: [
        bad("a and b must be matrices, found float32[] and float32[4, 5]", "[]", "[4, 5]", "[5]"),
        bad("the columns of a and the rows of b must be equal, found 5", "[3, 5]", "[4, 5]", "[5]"),
        bad(
            "shapes [3, 6] and [5] do not broadcast: aligned at the end", "[3, 4]", "[4, 6]", "[5]"
        ),
        bad("c must broadcast to [3, 1], found float32[5]", "[3, 4]", "[4, 1]", "[5]"),
        bad("operands must have one dtype, found float32 and bool", "[3, 4]", "bool[4, 5]", "[5]"),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _tensordot_type(a: TensorType, b: TensorType, *, axes: Pairs) -> TensorType:
    return _dot_general_type(a, b, contract=axes)


tensordot = FAMILY.declare(
    "tensordot",
    _tensordot_type,
    doc="Sum products over paired axes, as np.tensordot.",
    expand=lambda a, b, axes: dot_general(a, b, contract=axes),
    dtypes=NUMERIC,
    traits=(Trait.CONTRACTION, Trait.LINEAR),
    tolerance=LINEAR,
    samples=lambda: [
        sample(draw(2, 3, 4), draw(4, 3, 2), axes=((1, 2), (1, 0))),
        sample(draw(), draw(2), axes=((), ())),
        sample(draw(0, 3), draw(3, 2), axes=((-1,), (0,))),
    ],
)


def _kron_type(a: TensorType, b: TensorType) -> TensorType:
    left, right = _aligned(a.shape, b.shape)
    return TensorType(same_dtype(a, b), tuple(m * n for m, n in zip(left, right, strict=True)))


def _aligned(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    rank = max(len(a), len(b))
    return (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b


def _kron(a: Value, b: Value) -> Value:
    left, right = _aligned(a.tensor.shape, b.tensor.shape)
    spread = reshape(a, shape=tuple(d for dim in left for d in (dim, 1)))
    repeated = reshape(b, shape=tuple(d for dim in right for d in (1, dim)))
    return reshape(multiply(spread, repeated), shape=_kron_type(a.tensor, b.tensor).shape)


kron = FAMILY.declare(
    "kron",
    _kron_type,
    doc="Replace each element of the left operand by its product with the right one.",
    expand=_kron,
    dtypes=NUMERIC,
    traits=(Trait.LINEAR,),
    tolerance=ulps(1),
    samples=lambda: [
        sample(draw(2, 3), draw(3, 2)),
        sample(draw(), draw(3)),
        sample(draw(2, 1, 2), draw(3, 2)),
        sample(draw(0, 2), draw(2, 2)),
    ],
    refuses=lambda: [bad("operands must have one dtype, found int8 and float32", "int8[]", "[3]")],
)
