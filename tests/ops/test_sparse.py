"""Sparse matrices against SciPy."""

import numpy as np
import scipy.sparse

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType

RNG = np.random.default_rng(11)
DENSE = RNG.normal(size=(7, 5)) * (RNG.random((7, 5)) < 0.4)
OTHER = RNG.normal(size=(5, 3))


def test_a_matrix_goes_through_all_forms_and_back() -> None:
    places, values = ops.dense_to_coo(DENSE)
    assert np.array_equal(ops.coo_to_dense(places, values, rows=7, columns=5), DENSE)
    starts, columns, entries = ops.dense_to_csr(DENSE)
    exact = scipy.sparse.csr_matrix(DENSE)
    assert np.array_equal(starts, exact.indptr)
    assert np.array_equal(columns, exact.indices)
    assert np.array_equal(entries, exact.data)
    assert np.array_equal(ops.csr_to_coo(starts, columns), places)
    assert np.array_equal(ops.csr_to_dense(starts, columns, entries, columns=5), DENSE)


def test_products_are_those_of_dense_matrices() -> None:
    places, values = ops.dense_to_coo(DENSE)
    np.testing.assert_allclose(ops.coo_matmul(places, values, OTHER, rows=7), DENSE @ OTHER)
    starts, columns, entries = ops.dense_to_csr(DENSE)
    np.testing.assert_allclose(ops.csr_matmul(starts, columns, entries, OTHER), DENSE @ OTHER)


def test_unordered_and_repeated_places_add_up() -> None:
    places = np.array([[2, 1], [0, 3], [2, 1], [0, 0]])
    values = np.array([1.0, 2.0, 3.0, 4.0])
    exact = scipy.sparse.coo_matrix((values, places.T), (3, 4))
    assert np.array_equal(ops.coo_to_dense(places, values, rows=3, columns=4), exact.toarray())
    csr = ops.coo_to_csr(places, values, rows=3)
    assert np.array_equal(ops.csr_to_dense(*csr, columns=4), exact.toarray())


def test_the_number_of_entries_is_known_after_the_run() -> None:
    places, values = ops.dense_to_coo(Value(TensorType(float32, (7, 5)), "x"))
    assert places.tensor.shape[0] == values.tensor.shape[0]
    assert str(values.tensor.shape[0]).startswith("?")
