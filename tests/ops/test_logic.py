"""Logic against NumPy, and the rules where NumPy has none."""

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import INTEGERS, DType
from fusewire.errors import TypeRuleError


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bits_are_counted_as_stored(dtype: DType) -> None:
    low, high = (int(end) for end in dtype.range)
    values = [low, high, 0, 1, 37, low // 3]
    exact = [(value % 2**dtype.bits).bit_count() for value in values]
    assert ops.population_count(np.array(values, dtype.numpy)).tolist() == exact


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_the_width_or_more_leave_zero_or_the_sign(dtype: DType) -> None:
    low, high = dtype.range
    x = np.array([low, high, 5], dtype.numpy)
    by = np.full(3, dtype.bits, dtype.numpy)
    assert ops.shift_left(x, by).tolist() == [0, 0, 0]
    assert ops.shift_right(x, by).tolist() == [-1 if low else 0, 0, 0]
    assert ops.shift_right(x, by - by + 1).tolist() == [int(low) >> 1, int(high) >> 1, 2]


def test_comparisons_with_nan_are_false() -> None:
    nan, one = np.array(np.nan), np.array(1.0)
    names = ("equal", "less", "less_equal", "greater", "greater_equal")
    assert not any(getattr(ops, name)(nan, other) for name in names for other in (nan, one))
    assert ops.not_equal(nan, nan)


def test_where_takes_any_dtype_and_broadcasts() -> None:
    found = ops.where(np.array([[True], [False]]), np.array(["a", "b"]), np.array("c"))
    assert found.tolist() == [["a", "b"], ["c", "c"]]


def test_high_wins_in_clip() -> None:
    x = np.array([-5.0, 0.0, 5.0, np.nan])
    assert ops.clip(x, np.array(2.0), np.array(1.0)).tolist()[:3] == [1.0, 1.0, 1.0]
    assert np.isnan(ops.clip(x, np.array(-1.0), None)[3])
    with pytest.raises(TypeRuleError, match="needs a low or a high bound"):
        ops.clip(x)


def test_signbit_sees_negative_zero() -> None:
    assert ops.signbit(np.array([0.0, -0.0, -1.0, np.inf])).tolist() == [False, True, True, False]
