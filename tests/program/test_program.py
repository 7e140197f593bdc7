"""What the caller of a program may rely on: which graph runs, and whose the results are."""

import collections
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import ShapeMismatchError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1,) * 2,
        lambda x: (x, x, x.T),
        lambda x: (lambda y: (y, y.T, y[0], y.reshape(-1)))(x + 1),
        lambda x: np.split(x * 2, 3, axis=1),
        lambda x: (np.ones_like(x), np.ones_like(x)),
    ],
)
def test_outputs_share_no_memory(function: Any) -> None:
    given = X.copy()
    outputs = fw.compile(function, backend="reference")(given)
    for left, right in combinations([given, *outputs], 2):
        assert not np.shares_memory(left, right)


def test_plain_arguments_are_told_apart_by_type() -> None:
    program = fw.compile(lambda x, s: x * s, backend="reference")
    found = [program(np.arange(3, dtype=np.int32), s).dtype.name for s in (1, 1.0, True, 1 + 0j)]
    assert found == ["int32", "float64", "int32", "complex128"]


def test_plain_arguments_are_told_apart_by_the_sign_of_zero() -> None:
    program = fw.compile(lambda x, s: np.arctan2(x, s), backend="reference")
    assert program(np.zeros(1), 0.0) == 0
    assert program(np.zeros(1), -0.0) == np.pi


def test_argument_that_is_nan_makes_one_graph() -> None:
    program = fw.compile(lambda x, s: x + s, backend="reference")
    for _ in range(3):
        assert np.isnan(program(X, float("nan"))).all()
    assert len(program.signatures) == 1


def test_named_tuples_are_told_apart_by_class_and_not_by_name() -> None:
    # Made by a call that mypy does not look into: two classes of one name.
    make: Any = collections.namedtuple
    one, other = make("P", "a b"), make("P", "b a")
    program = fw.compile(lambda p: p.a - p.b, backend="reference")
    assert np.array_equal(program(one(X, 2 * X)), -X)
    assert np.array_equal(program(other(X, 2 * X)), X)


def test_keys_of_dicts_are_told_apart_by_type() -> None:
    program = fw.compile(lambda d: d["1"] - d[1], backend="reference")
    assert np.array_equal(program({"1": 3 * X, 1: X}), 2 * X)


@pytest.mark.parametrize("other", [2.0, True, np.float32(2), -2])
def test_program_of_one_plain_argument_refuses_another(other: Any) -> None:
    ints = np.arange(3, dtype=np.int32)
    program = fw.compile(lambda x, s: x * s, ints, 2, backend="reference")
    assert program(ints, 2).dtype == np.int32
    with pytest.raises(ShapeMismatchError, match="compile another one"):
        program(ints, other)
