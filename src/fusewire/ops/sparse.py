"""Sparse matrices as plain tensors: COO (places, values) and CSR (row starts, columns, values).

Places are int64 [count, 2]; entries that name one place twice add up.
"""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import NUMERIC, STORED, DType, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.creation import iota
from fusewire.ops.declare import EXACT, FRESH, LINEAR, Family, Trait
from fusewire.ops.elementwise import multiply, subtract
from fusewire.ops.indexing import gather, gather_nd, nonzero
from fusewire.ops.inference import require, require_dims, same_dtype
from fusewire.ops.movement import broadcast_to, expand_dims, squeeze, stack, transpose
from fusewire.ops.requires import Interval, Operands, Requirement, between, index, ordered
from fusewire.ops.sample import Draw, bad, draw, given, sample
from fusewire.ops.scatter import scatter_nd
from fusewire.ops.slicing import slice_axis
from fusewire.ops.sorting import argsort, searchsorted

FAMILY = Family("sparse")

NO_SCALAR = {"scalar": "a list of places has an axis"}
MATRIX_ONLY = {"scalar": "a matrix has two axes"}


def _check_coo(indices: TensorType, values: TensorType) -> None:
    fits = indices.dtype is int64 and indices.rank == 2 and indices.shape[1] == 2
    require(fits, f"places must be int64 [count, 2], found {indices}.")
    require(values.rank == 1, f"values must have one axis, found {values}.")
    require_dims(indices.shape[0], values.shape[0], "the number of places and of values")


def _check_csr(indptr: TensorType, indices: TensorType, values: TensorType) -> Dim:
    """Refuse what is no CSR matrix; gives its number of rows."""
    for of in (indptr, indices):
        require(of.dtype is int64 and of.rank == 1, f"row starts, columns: int64, found {of}.")
    require(values.rank == 1, f"values must have one axis, found {values}.")
    require_dims(indices.shape[0], values.shape[0], "the number of columns and of values")
    return indptr.shape[0] - 1


def _column(indices: Value, index: int) -> Value:
    return squeeze(slice_axis(indices, 1, slice(index, index + 1)), axes=(1,))


def _zeros(of: DType, *shape: Dim) -> Value:
    return broadcast_to(constant(np.zeros((), of.numpy)), shape=shape)


def _places() -> Draw:
    return given([[0, 1], [2, 0], [2, 3], [0, 1]], "int64")


def _starts() -> tuple[Draw, Draw]:
    """Three rows: columns 1 and 3, none, column 0."""
    return given([0, 2, 2, 3], "int64"), given([1, 3, 0], "int64")


def _coo_matmul_type(
    indices: TensorType, values: TensorType, b: TensorType, *, rows: Dim
) -> TensorType:
    _check_coo(indices, values)
    require(b.rank == 2, f"b must be a matrix, found {b}.")
    return TensorType(same_dtype(values, b), (rows, b.shape[1]))


def _coo_matmul(indices: Value, values: Value, b: Value, rows: Dim) -> Value:
    terms = multiply(gather(b, _column(indices, 1), axis=0), expand_dims(values, axes=(1,)))
    into = _zeros(b.tensor.dtype, rows, b.tensor.shape[1])
    places = slice_axis(indices, 1, slice(0, 1))
    return scatter_nd(into, places, terms, reduction="add")


def _axis(dim: Dim) -> Interval:
    return -dim, dim - 1


def _any(operands: Operands) -> Interval:
    low, high = int64.range
    return int(low), int(high)


def _rows(operands: Operands) -> Interval:
    return _axis(operands.attrs["rows"])


def _columns(operands: Operands) -> Interval:
    return _axis(operands.attrs["columns"])


def _row_starts() -> tuple[Requirement, ...]:
    """Require places of entries, in order, for the starts of rows."""
    count = lambda operands: (0, operands.type("indices").shape[0])  # noqa: E731 - for a declaration
    return between("indptr", count), ordered("indptr")


coo_matmul = FAMILY.declare(
    "coo_matmul",
    _coo_matmul_type,
    doc="Multiply a COO matrix, with a given number of rows, by a dense one.",
    expand=_coo_matmul,
    dtypes=(int64,),
    requires=(between("indices", _rows, lambda operands: _axis(operands.type("b").shape[0])),),
    traits=(Trait.CONTRACTION,),
    tolerance=LINEAR,
    index_operands=("indices",),
    lacks=NO_SCALAR,
    samples=lambda: [
        *(sample(_places(), draw(4, dtype_=of), draw(4, 3, dtype_=of), rows=3) for of in NUMERIC),
        sample(draw(0, 2), draw(0, dtype_="float32"), draw(4, 3, dtype_="float32"), rows=2),
    ],
    refuses=lambda: [
        bad(
            "places must be int64 [count, 2], found int64[]", "[]", "int8[4]", "int8[4, 3]", rows=3
        ),
        bad("values must have one axis, found int8[]", "[4, 2]", "int8[]", "int8[4, 3]", rows=3),
        bad(
            "the number of places and of values must be equal, found 5",
            "[5, 2]",
            "int8[4]",
            "int8[4, 3]",
            rows=3,
        ),
        bad("b must be a matrix, found int8[]", "[4, 2]", "int8[4]", "int8[]", rows=3),
        bad(
            "places must be int64 [count, 2], found int64[4, 3]",
            "[4, 3]",
            "int8[4]",
            "int8[4, 3]",
            rows=3,
        ),
        bad(
            "operands must have one dtype, found bool and int8",
            "[4, 2]",
            "bool[4]",
            "int8[4, 3]",
            rows=3,
        ),
    ],
)


def _csr_to_coo_type(indptr: TensorType, indices: TensorType) -> TensorType:
    _check_csr(indptr, indices, indices)
    return TensorType(int64, (indices.shape[0], 2))


def _csr_to_coo(indptr: Value, indices: Value) -> Value:
    entry = iota.new(shape=indices.tensor.shape, axis=0)
    # The row of an entry is the last that starts at or before it.
    rows = subtract(searchsorted(indptr, entry, right=True), 1)
    return stack(rows, indices, axis=1)


csr_to_coo = FAMILY.declare(
    "csr_to_coo",
    _csr_to_coo_type,
    doc="List the indices of the entries of a CSR matrix.",
    expand=_csr_to_coo,
    dtypes=(int64,),
    requires=_row_starts(),
    index_operands=("indptr",),
    tolerance=EXACT,
    lacks=NO_SCALAR,
    samples=lambda: [sample(*_starts()), sample(given([0, 0, 0]), draw(0, dtype_="int64"))],
    refuses=lambda: [bad("row starts, columns: int64, found int64[]", "[]", "[3]")],
)


def _csr_matmul_type(
    indptr: TensorType, indices: TensorType, values: TensorType, b: TensorType
) -> TensorType:
    rows = _check_csr(indptr, indices, values)
    require(b.rank == 2, f"b must be a matrix, found {b}.")
    return TensorType(same_dtype(values, b), (rows, b.shape[1]))


def _csr_matmul(indptr: Value, indices: Value, values: Value, b: Value) -> Value:
    rows = indptr.tensor.shape[0] - 1
    return coo_matmul(csr_to_coo(indptr, indices), values, b, rows=rows)


csr_matmul = FAMILY.declare(
    "csr_matmul",
    _csr_matmul_type,
    doc="Multiply a CSR matrix by a dense one.",
    expand=_csr_matmul,
    dtypes=(int64,),
    requires=(index("indices", of="b", axis=0), *_row_starts()),
    traits=(Trait.CONTRACTION,),
    tolerance=LINEAR,
    index_operands=("indptr", "indices"),
    lacks=NO_SCALAR,
    samples=lambda: [
        *(sample(*_starts(), draw(3, dtype_=of), draw(4, 2, dtype_=of)) for of in NUMERIC),
        sample(given([0, 0]), draw(0), draw(0, dtype_="float32"), draw(4, 2, dtype_="float32")),
    ],
    refuses=lambda: [
        bad("values must have one axis, found int8[]", "[4]", "[3]", "int8[]", "int8[4, 2]"),
        bad(
            "the number of columns and of values must be equal, found 4",
            "[4]",
            "[4]",
            "int8[3]",
            "int8[4, 2]",
        ),
        bad("b must be a matrix, found int8[]", "[4]", "[3]", "int8[3]", "int8[]"),
        bad(
            "operands must have one dtype, found bool and int8",
            "[4]",
            "[3]",
            "bool[3]",
            "int8[4, 2]",
        ),
    ],
)


def _coo_to_dense_type(
    indices: TensorType, values: TensorType, *, rows: Dim, columns: Dim
) -> TensorType:
    _check_coo(indices, values)
    return values.with_shape((rows, columns))


def _coo_to_dense(indices: Value, values: Value, rows: Dim, columns: Dim) -> Value:
    into = _zeros(values.tensor.dtype, rows, columns)
    return scatter_nd(into, indices, values, reduction="add")


coo_to_dense = FAMILY.declare(
    "coo_to_dense",
    _coo_to_dense_type,
    doc="Make a dense matrix from a COO matrix.",
    expand=_coo_to_dense,
    dtypes=(int64,),
    requires=(between("indices", _rows, _columns),),
    tolerance=LINEAR,
    index_operands=("indices",),
    lacks=NO_SCALAR,
    samples=lambda: [
        *(sample(_places(), draw(4, dtype_=of), rows=3, columns=4) for of in NUMERIC),
        sample(draw(0, 2), draw(0, dtype_="float32"), rows=2, columns=3),
    ],
    refuses=lambda: [
        bad("places must be int64 [count, 2], found int64[]", "[]", "int8[4]", rows=3, columns=4)
    ],
)


def _csr_to_dense_type(
    indptr: TensorType, indices: TensorType, values: TensorType, *, columns: Dim
) -> TensorType:
    return values.with_shape((_check_csr(indptr, indices, values), columns))


def _csr_to_dense(indptr: Value, indices: Value, values: Value, columns: Dim) -> Value:
    rows = indptr.tensor.shape[0] - 1
    return coo_to_dense(csr_to_coo(indptr, indices), values, rows=rows, columns=columns)


csr_to_dense = FAMILY.declare(
    "csr_to_dense",
    _csr_to_dense_type,
    doc="Make a dense matrix from a CSR matrix.",
    expand=_csr_to_dense,
    dtypes=(int64,),
    requires=(between("indices", _columns), *_row_starts()),
    tolerance=LINEAR,
    index_operands=("indptr", "indices"),
    lacks=NO_SCALAR,
    samples=lambda: [
        *(sample(*_starts(), draw(3, dtype_=of), columns=4) for of in NUMERIC),
        sample(given([0, 0]), draw(0), draw(0, dtype_="float32"), columns=3),
    ],
)


def _coo_to_csr_type(
    indices: TensorType, values: TensorType, *, rows: Dim
) -> tuple[TensorType, ...]:
    _check_coo(indices, values)
    shape = indices.shape[:1]
    return TensorType(int64, (rows + 1,)), TensorType(int64, shape), values.with_shape(shape)


def _coo_to_csr(indices: Value, values: Value, rows: Dim) -> tuple[Value, ...]:
    row = _column(indices, 0)
    order = argsort(row, axis=0)
    starts = searchsorted(gather(row, order, axis=0), iota.new(shape=(rows + 1,), axis=0))
    return starts, gather(_column(indices, 1), order, axis=0), gather(values, order, axis=0)


coo_to_csr = FAMILY.declare(
    "coo_to_csr",
    _coo_to_csr_type,
    doc="Order entries by rows: returns row starts, columns and values; duplicates stay.",
    expand=_coo_to_csr,
    dtypes=(int64,),
    requires=(between("indices", lambda operands: (0, operands.attrs["rows"] - 1), _any),),
    index_operands=("indices",),
    tolerance=EXACT,
    lacks=NO_SCALAR,
    samples=lambda: [
        *(sample(_places(), draw(4, dtype_=of), rows=4) for of in STORED),
        sample(draw(0, 2), draw(0, dtype_="float32"), rows=2),
    ],
    refuses=lambda: [
        bad("places must be int64 [count, 2], found int64[]", "[]", "bool[4]", rows=4)
    ],
)


def _dense_to_coo_type(x: TensorType, *, count: Dim = FRESH) -> tuple[TensorType, ...]:
    require(x.rank == 2, f"a matrix has two axes, found {x}.")
    return TensorType(int64, (count, 2)), x.with_shape((count,))


def _dense_to_coo(x: Value, count: Dim) -> tuple[Value, ...]:
    places = transpose(nonzero(x, count=count), perm=(1, 0))
    return places, gather_nd(x, places)


def _dense() -> Draw:
    return given([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])


dense_to_coo = FAMILY.declare(
    "dense_to_coo",
    _dense_to_coo_type,
    doc="List the nonzero elements of a matrix.",
    expand=_dense_to_coo,
    dtypes=STORED,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    tolerance=EXACT,
    lacks=MATRIX_ONLY,
    samples=lambda: [sample(_dense()), sample(draw(0, 3)), sample(given([[0, 0]]))],
    refuses=lambda: [bad("a matrix has two axes, found float32[]", "[]")],
)


def _dense_to_csr_type(x: TensorType, *, count: Dim = FRESH) -> tuple[TensorType, ...]:
    _, values = _dense_to_coo_type(x, count=count)
    return TensorType(int64, (x.shape[0] + 1,)), TensorType(int64, (count,)), values


def _dense_to_csr(x: Value, count: Dim) -> tuple[Value, ...]:
    return coo_to_csr(*dense_to_coo(x, count=count), rows=x.tensor.shape[0])


dense_to_csr = FAMILY.declare(
    "dense_to_csr",
    _dense_to_csr_type,
    doc="Make a CSR matrix from the nonzero elements of a dense one.",
    expand=_dense_to_csr,
    dtypes=STORED,
    traits=(Trait.UNBACKED, Trait.DISCONTINUOUS),
    tolerance=EXACT,
    lacks=MATRIX_ONLY,
    samples=lambda: [sample(_dense()), sample(draw(0, 3)), sample(given([[0, 0]]))],
)
