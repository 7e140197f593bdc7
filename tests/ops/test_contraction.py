"""Products against NumPy: every shape of matmul, integers that wrap, equations of einsum."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.errors import TypeRuleError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("largest", [100, 2**31 - 1])
def test_products_of_integers_wrap_as_in_numpy(dtype: str, largest: int) -> None:
    high = min(largest, int(np.iinfo(dtype).max))
    a = RNG.integers(high // 2, high, (5, 70)).astype(dtype)
    b = RNG.integers(high // 2, high, (70, 3)).astype(dtype)
    assert np.array_equal(ops.matmul(a, b), a @ b)


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij, jk", (3, 4), (4, 5)),
    ("ba", (2, 3)),
    ("ii", (3, 3)),
    ("iii->i", (3, 3, 3)),
    ("iijj->ij", (2, 2, 3, 3)),
    ("...ii->...i", (2, 3, 3)),
    ("...ii", (2, 3, 3)),
    ("b...->...b", (4, 2, 3)),
    ("...ij,...jk->...ik", (2, 3, 4), (3, 1, 4, 5)),
    ("i...,j...->ij...", (2, 3), (4, 3)),
    ("ij,...", (2, 3), (4,)),
    ("ij,ij->j", (1, 3), (2, 3)),
    ("i,i->", (1,), (4,)),
    (",i->i", (), (2,)),
    ("xyz,zyx", (2, 3, 4), (4, 3, 2)),
    ("a,b,c,d->dcba", (2,), (3,), (4,), (2,)),
    ("ij,jk,i->", (2, 3), (3, 4), (2,)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
]


@pytest.mark.parametrize(("equation", "shapes"), [(e, s) for e, *s in EQUATIONS], ids=str)
def test_equations_mean_what_they_mean_in_numpy(
    equation: str, shapes: list[tuple[int, ...]]
) -> None:
    xs = [RNG.normal(size=shape) for shape in shapes]
    np.testing.assert_allclose(
        ops.einsum(*xs, equation=equation), np.einsum(equation, *xs), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("equation", ["ij->ii", "ij->k", "i...->i", "ij,jk", "i1->i", "ijk->i"])
def test_equations_that_mean_nothing_are_refused(equation: str) -> None:
    with pytest.raises(TypeRuleError):
        ops.einsum(np.ones((3, 3)), equation=equation)


def test_einsum_of_unknown_sizes_is_one_product() -> None:
    batch, heads, left, right = (symbol(name) for name in "bhst")
    q = Value(TensorType(float32, (batch, heads, left, 8)), "q")
    k = Value(TensorType(float32, (batch, heads, right, 8)), "k")
    made = ops.einsum(q, k, equation="bhsd,bhtd->bhst")
    assert made.type == TensorType(float32, (batch, heads, left, right))
    assert [node.op for node in ops.einsum.expansion(made.node).nodes] == ["dot_general"]


def test_kron_and_tensordot_are_those_of_numpy() -> None:
    a, b = RNG.normal(size=(2, 1, 3)), RNG.normal(size=(3, 2))
    np.testing.assert_allclose(ops.kron(a, b), np.kron(a, b))
    found = ops.tensordot(a, b, axes=((2,), (0,)))
    np.testing.assert_allclose(found, np.tensordot(a, b, ((2,), (0,))))


@pytest.mark.parametrize("big", [2**25 + 1, 2**31 + 1, -(2**40) - 1, 2**53 + 1, 2**62 + 1])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_large_integers_are_exact(big: int, turned: bool) -> None:
    left, right = np.array([[big, 1]]), np.array([[1], [2]])
    if turned:
        left, right = right.T, left.T
    wanted = big * 1 + 2 if not turned else big + 2
    assert ops.matmul(left, right).tolist() == [[wanted]]
    assert ops.dot_general(left, right, contract=((1,), (0,))).tolist() == [[wanted]]
