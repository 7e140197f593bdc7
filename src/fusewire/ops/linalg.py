"""Linear algebra on the last two axes; axes before them are batches.

Decompositions have one answer here: their free signs are fixed. A matrix that has no answer
(singular, or not positive definite) gives NaN, and does not stop the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusewire.dtypes import COMPLEX, FLOATS, NUMERIC
from fusewire.ir.dims import Dim, dim_min
from fusewire.ir.graph import Array, Value
from fusewire.ir.types import TensorType, Type, tensor_of
from fusewire.ops.declare import SCALED, Family, Trait
from fusewire.ops.elementwise import multiply
from fusewire.ops.inference import broadcast_shapes, require, require_dims, same_dtype
from fusewire.ops.layout import diagonal
from fusewire.ops.movement import expand_dims
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.sample import Draw, Sample, bad, draw, given, sample

FAMILY = Family("linalg")

_LACKS = {"scalar": "a matrix has two axes"}


def _matrix(x: TensorType) -> TensorType:
    require(x.rank >= 2, f"a matrix has two axes, found {x}.")
    return x


def _square(x: TensorType) -> TensorType:
    require_dims(_matrix(x).shape[-2], x.shape[-1], "rows and columns of a square matrix")
    return x


def _det_type(x: TensorType) -> TensorType:
    return _square(x).with_shape(x.shape[:-2])


def _square_type(x: TensorType) -> TensorType:
    return _square(x)


def _solve_type(a: TensorType, b: TensorType) -> TensorType:
    _square(a)
    require_dims(a.shape[-1], _matrix(b).shape[-2], "columns of a and rows of b")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return TensorType(same_dtype(a, b), (*batch, *b.shape[-2:]))


def _triangular_type(a: TensorType, b: TensorType, *, lower: bool = True) -> TensorType:
    return _solve_type(a, b)


def _qr_type(x: TensorType) -> tuple[TensorType, ...]:
    *batch, rows, columns = _matrix(x).shape
    inner = dim_min(rows, columns)
    return x.with_shape((*batch, rows, inner)), x.with_shape((*batch, inner, columns))


def _real(x: TensorType) -> TensorType:
    return x.with_dtype(f"float{x.dtype.bits // 2}") if x.dtype.is_complex else x


def _svd_type(x: TensorType) -> tuple[TensorType, ...]:
    left, right = _qr_type(x)
    return left, _real(x).with_shape((*x.shape[:-2], left.shape[-1])), right


def _eigh_type(x: TensorType) -> tuple[TensorType, ...]:
    return _real(_square(x)).with_shape(x.shape[:-1]), x


def _each(function: Callable[..., Any]) -> Callable[..., Any]:
    """Try all matrices at once; when one has no answer, one by one with NaN in its place."""

    def batched(*operands: Array) -> Array:
        try:
            return np.asarray(function(*operands))
        except np.linalg.LinAlgError:
            batch = np.broadcast_shapes(*(x.shape[:-2] for x in operands))
        spread = [np.broadcast_to(x, batch + x.shape[-2:]) for x in operands]
        found = np.full_like(spread[-1], np.nan)
        for place in np.ndindex(batch):
            try:
                found[place] = function(*(x[place] for x in spread))
            except np.linalg.LinAlgError:
                continue
        return found

    return batched


def _phase(x: Array) -> Array:
    """Give what turns each number to the positive real axis; 1 for 0."""
    size = np.abs(x)
    return np.where(size == 0, 1, np.conj(x) / np.where(size == 0, 1, size)).astype(x.dtype)


def _largest(x: Array) -> Array:
    """Take the largest element of each column."""
    if x.shape[-2] == 0:
        return np.ones((*x.shape[:-2], 1, x.shape[-1]), x.dtype)
    return np.take_along_axis(x, np.abs(x).argmax(-2, keepdims=True), -2)


def _of_finite(function: Callable[[Array], tuple[Array, ...]]) -> Callable[[Array], Any]:
    """Factor matrices of finite numbers, and give NaN for the others.

    For a NaN LAPACK finds no factors, or some that are numbers; for an infinity its SVD never ends.
    """

    def factored(x: Array) -> tuple[Array, ...]:
        is_finite: Array = np.asarray(np.isfinite(x).all((-2, -1)))
        if is_finite.all():
            return function(x)
        factors = function(np.where(is_finite[..., None, None], x, 0))
        for factor in factors:
            factor[~is_finite] = np.nan
        return factors

    return factored


@_of_finite
def _qr(x: Array) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x)
    turn = _phase(np.diagonal(r, 0, -2, -1))
    return q * np.conj(turn)[..., None, :], r * turn[..., :, None]


@_of_finite
def _svd(x: Array) -> tuple[Array, Array, Array]:
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    turn = _phase(_largest(u))
    return u * turn, s, vh * np.conj(np.swapaxes(turn, -1, -2))


@_of_finite
def _eigh(x: Array) -> tuple[Array, Array]:
    w, v = np.linalg.eigh(x)
    return w, v * _phase(_largest(v))


def _triangular_solve(a: Array, b: Array, lower: bool) -> Array:
    return np.asarray(_each(np.linalg.solve)(np.tril(a) if lower else np.triu(a), b))


def _cubic(inputs: Sequence[Type | None], outputs: Sequence[Type], attrs: Mapping[str, Any]) -> Dim:
    """Count about as many multiplications and additions as matrix times matrix takes."""
    first = tensor_of(next(t for t in inputs if t is not None))
    last = tensor_of(next(t for t in reversed(inputs) if t is not None))
    return 2 * last.size * dim_min(*first.shape[-2:])


def _definite(rows: int, *batch: int) -> Draw:
    """Give a positive definite matrix, well conditioned, with eigenvalues apart."""
    places = np.arange(rows)
    values = 0.5 ** np.abs(places[:, None] - places) + np.diag(1.0 + places)
    return given(np.broadcast_to(values, (*batch, rows, rows)))


def _square_samples() -> list[Sample]:
    turned = given([[0.0, 2.0, 1.0], [1.0, 0.0, 0.5], [-1.0, 0.5, 3.0]])
    return [sample(_definite(3)), sample(turned), sample(_definite(4, 2)), *_empty_samples()]


def _definite_samples() -> list[Sample]:
    return [sample(_definite(3)), sample(_definite(4, 2, 1)), *_empty_samples()]


def _empty_samples() -> list[Sample]:
    return [sample(draw(0, 3, 3)), sample(draw(2, 0, 0))]


def _solve_samples(**attrs: Any) -> list[Sample]:
    return [
        sample(_definite(3), draw(3, 2), **attrs),
        sample(_definite(4, 2, 1), draw(3, 4, 1), **attrs),
        sample(draw(0, 3, 3), draw(3, 2), **attrs),
        sample(_definite(3), draw(3, 0), **attrs),
    ]


def _any_samples() -> list[Sample]:
    tall = [[1.0, 2.0], [0.5, -3.0], [2.0, 0.25]]
    wide = [[[1.0, 2.0, -1.0], [0.5, -3.0, 0.25]]] * 2
    return [*_definite_samples(), sample(given(tall)), sample(given(wide)), sample(draw(0, 2))]


def _fields(reference: Any, doc: str, samples: Any) -> dict[str, Any]:
    return {
        "reference": reference,
        "doc": doc,
        "samples": samples,
        "dtypes": FLOATS + COMPLEX,
        "tolerance": SCALED,
        "flops": _cubic,
        "lacks": _LACKS,
    }


det = FAMILY.declare(
    "det", _det_type, **_fields(np.linalg.det, "Compute determinants.", _square_samples)
)
inverse = FAMILY.declare(
    "inverse", _square_type, **_fields(_each(np.linalg.inv), "Invert matrices.", _square_samples)
)
solve = FAMILY.declare(
    "solve",
    _solve_type,
    **_fields(_each(np.linalg.solve), "Find x such that a @ x = b.", _solve_samples),
    refuses=lambda: [
        bad("a matrix has two axes, found float32[]", "[]", "[3, 2]"),
        bad("a matrix has two axes, found float32[]", "[3, 3]", "[]"),
        bad("shapes [0] and [2] do not broadcast: aligned at the end", "[0, 3, 3]", "[2, 3, 2]"),
        bad("operands must have one dtype, found float32 and bool", "[3, 3]", "bool[3, 2]"),
    ],
)
triangular_solve = FAMILY.declare(
    "triangular_solve",
    _triangular_type,
    **_fields(
        _triangular_solve,
        "Find x such that a @ x = b, reading one triangle of a.",
        lambda: _solve_samples() + _solve_samples(lower=False),
    ),
)
cholesky = FAMILY.declare(
    "cholesky",
    _square_type,
    **_fields(
        _each(np.linalg.cholesky),
        "Find the lower triangle l such that l @ l^H is the matrix.",
        _definite_samples,
    ),
    refuses=lambda: [
        bad("a matrix has two axes, found float32[]", "[]"),
        bad("rows and columns of a square matrix must be equal, found 4", "[4, 3]"),
    ],
)
qr = FAMILY.declare(
    "qr",
    _qr_type,
    **_fields(
        _qr,
        "Factor into orthonormal columns and an upper triangle with a nonnegative diagonal.",
        _any_samples,
    ),
)
svd = FAMILY.declare(
    "svd",
    _svd_type,
    **_fields(
        _svd,
        "Factor into u, falling singular values, vh; the largest of each column of u is positive.",
        _any_samples,
    ),
)
eigh = FAMILY.declare(
    "eigh",
    _eigh_type,
    **_fields(
        _eigh,
        "Find ascending eigenvalues, and eigenvectors by column; the largest of each is positive.",
        _definite_samples,
    ),
)


def _outer_type(x: TensorType, y: TensorType) -> TensorType:
    require(x.rank == y.rank == 1, f"vectors are needed, found {x} and {y}.")
    return TensorType(same_dtype(x, y), (*x.shape, *y.shape))


def _outer(x: Value, y: Value) -> Value:
    return multiply(expand_dims(x, axes=(1,)), expand_dims(y, axes=(0,)))


outer = FAMILY.declare(
    "outer",
    _outer_type,
    doc="Multiply every element of x with every element of y.",
    expand=_outer,
    dtypes=NUMERIC,
    traits=(Trait.LINEAR,),
    samples=lambda: [sample(draw(3), draw(4)), sample(draw(0), draw(2))],
    refuses=lambda: [
        bad("vectors are needed, found float32[] and float32[4]", "[]", "[4]"),
        bad("operands must have one dtype, found int8 and float32", "int8[3]", "[4]"),
    ],
    lacks={"scalar": "its operands are vectors"},
)


def _trace_type(x: TensorType, *, offset: int = 0) -> TensorType:
    return x.with_shape(_matrix(x).shape[:-2])


def _trace(x: Value, offset: int) -> Value:
    return reduce_sum(diagonal(x, offset=offset, axis1=-2, axis2=-1), axes=(-1,))


trace = FAMILY.declare(
    "trace",
    _trace_type,
    doc="Add up a diagonal of the last two axes.",
    expand=_trace,
    dtypes=NUMERIC,
    traits=(Trait.REDUCTION, Trait.LINEAR),
    samples=lambda: [
        sample(draw(3, 3)),
        sample(draw(2, 3, 4), offset=1),
        sample(draw(3, 4), offset=-2),
        sample(draw(0, 3)),
    ],
    lacks=_LACKS,
)
