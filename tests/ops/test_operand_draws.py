"""Operands of any size keep the structure that the samples of an op give."""

from typing import Any

import numpy as np
import pytest

from fusewire.dtypes import float32, int64
from fusewire.ops.operand_draws import OperandDraw, operand_draws
from fusewire.ops.sample import Sample, draw, given, sample


class Sampled:
    """An op, as far as drawing looks at it."""

    def __init__(self, *samples: Sample) -> None:
        self._samples = samples

    def samples(self) -> tuple[Sample, ...]:
        return self._samples


def drawn(*operands: Any) -> OperandDraw:
    op: Any = Sampled(*map(sample, operands))
    (found,) = operand_draws(op, 1)
    return found


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_knots_stay_sorted() -> None:
    found = drawn(given([-1.0, 0.5, 3.0]), given([0.0, 0.0]))
    array = found.make((4, 100), float32, rng())
    assert found.is_known
    assert (np.diff(array) >= 0).all()
    assert array.min() >= -1
    assert array.max() <= 3


def test_indices_that_differ_in_each_row_stay_so() -> None:
    found = drawn(given([0, 2, 9]), given([1, 5]))
    array = found.make((3, 8), int64, rng())
    assert (np.diff(array) > 0).all()
    assert array.max() <= 9


def test_permutations_stay_permutations() -> None:
    found = drawn(given([2, 0, 1]), given([1, 0]))
    array = found.make((3, 7), int64, rng())
    np.testing.assert_array_equal(np.sort(array, axis=-1), np.broadcast_to(np.arange(7), (3, 7)))
    assert (array != np.arange(7)).any()
    # In order, they may be either.
    np.testing.assert_array_equal(drawn(given([0, 1, 2])).make((4,), int64, rng()), np.arange(4))


@pytest.mark.parametrize("values", [[3, 0, 7, 7], [1.0, -1.0, 2.0]])
def test_nobody_knows_what_else_may_be_given(values: Any) -> None:
    assert not drawn(given(values)).is_known


def test_samples_that_draw_decide() -> None:
    found = drawn(given([1.0, -1.0, 2.0]), draw(4, low=5, high=6))
    assert found.is_known
    assert found.make((100,), float32, rng()).min() >= 5
    assert drawn(given(3)).make((), int64, rng()) == 3
