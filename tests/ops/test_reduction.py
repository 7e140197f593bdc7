"""Reductions against NumPy and SciPy, with nothing to reduce, with symbols and at extremes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from fusewire import ops
from fusewire.dtypes import float16, float32
from fusewire.errors import TypeRuleError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret

X = np.random.default_rng(5).normal(size=(3, 4, 5))
ORACLES: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum,
    "reduce_prod": np.prod,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_mean": np.mean,
    "variance": np.var,
    "standard_deviation": np.std,
    "logsumexp": scipy.special.logsumexp,
    "norm_l1": lambda x, **at: np.abs(x).sum(**at),
    "norm_l2": lambda x, **at: np.sqrt((x * x).sum(**at)),
    "sum_square": lambda x, **at: (x * x).sum(**at),
    "log_sum": lambda x, **at: np.log(x.sum(**at)),
}


@pytest.mark.parametrize("axes", [None, (), (-1,), (0, 2)], ids=str)
@pytest.mark.parametrize("name", ORACLES)
def test_reductions_are_those_of_numpy(name: str, axes: tuple[int, ...] | None) -> None:
    x = np.abs(X) if name == "log_sum" else X
    if name == "logsumexp" and axes == ():
        axes = (1,)  # scipy takes no empty tuple
    found = getattr(ops, name)(x, axes=axes, keepdims=True)
    np.testing.assert_allclose(found, ORACLES[name](x, axis=axes, keepdims=True), 1e-13, 1e-15)


def test_variance_takes_a_correction() -> None:
    np.testing.assert_allclose(ops.variance(X, axes=(1,), correction=1), X.var(1, ddof=1))
    assert np.isnan(ops.variance(np.ones((2, 1)), axes=(1,), correction=1)).all()


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("reduce_sum", "int8", 0),
        ("reduce_prod", "int8", 1),
        ("reduce_max", "int8", -128),
        ("reduce_max", "float32", -np.inf),
        ("reduce_max", "bool", False),
        ("reduce_min", "uint8", 255),
        ("reduce_min", "float16", np.inf),
        ("reduce_min", "bool", True),
        ("reduce_any", "bool", False),
        ("reduce_all", "bool", True),
        ("reduce_mean", "float32", np.nan),
        ("logsumexp", "float64", -np.inf),
    ],
)
def test_nothing_reduces_to_the_neutral_element(name: str, dtype: str, expected: Any) -> None:
    found = getattr(ops, name)(np.zeros((2, 0), dtype), axes=(1,))
    assert found.dtype == dtype
    assert np.array_equal(found, [expected] * 2, equal_nan=True)


def test_integers_keep_their_dtype_and_wrap() -> None:
    assert ops.reduce_sum(np.full(3, 100, np.int8)).tolist() == 300 - 256
    assert ops.cumsum(np.full(3, 100, np.int8), axis=0).tolist() == [100, -56, 44]


def test_half_precision_means_do_not_overflow() -> None:
    x = np.full((4, 2000), 100.0, np.float16)
    assert ops.reduce_mean(x, axes=(1,)).tolist() == [100.0] * 4
    assert ops.norm_l2(x[:, :400], axes=(1,)).tolist() == [2000.0] * 4


def test_logsumexp_survives_infinities() -> None:
    inf = np.inf
    x = np.array([[1000.0, 1000.0], [-inf, -inf], [inf, 1.0], [np.nan, 1.0], [-inf, 2.0]])
    exact = [1000 + np.log(2), -inf, inf, np.nan, 2.0]
    np.testing.assert_allclose(ops.logsumexp(x, axes=(1,)), exact)


@pytest.mark.parametrize("size", [4, 5])
def test_median_is_that_of_numpy(size: int) -> None:
    x = X[:, :, :size].copy()
    np.testing.assert_array_equal(ops.median(x, axis=2), np.median(x, 2))
    x[0, 0, 0] = np.nan
    np.testing.assert_array_equal(ops.median(x, axis=-1), np.median(x, 2))
    with pytest.raises(TypeRuleError, match="no median of nothing"):
        ops.median(np.zeros((2, 0)), axis=1)


def test_positions_of_extremes() -> None:
    x = np.array([[1, 3, 3], [2, 2, 2]])
    assert ops.argmax(x, axis=1).tolist() == [1, 0]
    assert ops.argmax(x, axis=1, last=True).tolist() == [2, 2]
    assert ops.argmin(x, axis=0, keepdims=True).tolist() == [[0, 1, 1]]
    assert ops.argmax(np.array([1.0, np.nan, 9.0]), axis=0) == 1
    assert ops.argmax(np.zeros((2, 0)), axis=1).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "step", "start"),
    [
        ("cumsum", np.add, 0),
        ("cumprod", np.multiply, 1),
        ("cummax", np.maximum, -np.inf),
        ("cummin", np.minimum, np.inf),
        ("cumlogsumexp", np.logaddexp, -np.inf),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_reductions_see_what_came_before(
    name: str, step: Callable[..., Array], start: float, reverse: bool, exclusive: bool
) -> None:
    row = X[0, 0]
    expected = []
    for i in range(5):
        seen = row[i + exclusive :] if reverse else row[: i + 1 - exclusive]
        total: Any = start
        for item in seen:
            total = step(total, item)
        expected.append(total)
    found = getattr(ops, name)(row, axis=0, reverse=reverse, exclusive=exclusive)
    np.testing.assert_allclose(found, expected, 1e-14)


@pytest.mark.parametrize("name", ["reduce_mean", "variance", "logsumexp", "standard_deviation"])
@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_symbolic_sizes_are_counted_at_run_time(name: str, dtype: Any) -> None:
    x = X.astype(dtype.numpy)
    value = Value(TensorType(dtype, (3, symbol("n"), symbol("m"))), "x")
    for axes in ((1,), None, (0, 2)):
        graph = Graph([value], [getattr(ops, name)(value, axes=axes)])
        (found,) = interpret(graph, [x])
        np.testing.assert_array_equal(found, getattr(ops, name)(x, axes=axes))
