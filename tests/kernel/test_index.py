"""Indices mean what their operators say, however much simpler they were made."""

import itertools
from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fusewire.kernel.form import Bound
from fusewire.kernel.index import (
    Axis,
    Held,
    Index,
    Quotient,
    _scales,
    at,
    flatten,
    has_division,
    substituted,
    unflatten,
)
from fusewire.kernel.verify import range_under

X, J, K = Axis("i", 4), Axis("j", 6), Axis("k", 5)
Point = Mapping[Axis, int]


def value(index: Index, point: Point) -> int:
    total = index.constant
    for atom, factor in index.terms:
        assert not isinstance(atom, Held)
        if isinstance(atom, Axis):
            total += factor * point[atom]
        else:
            inner = value(atom.of, point)
            total += factor * (inner // atom.by if isinstance(atom, Quotient) else inner % atom.by)
    return total


def points() -> list[Point]:
    axes = (X, J, K)
    return [
        dict(zip(axes, at_, strict=True))
        for at_ in itertools.product(*(range(a.extent) for a in axes))
    ]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Index, list[int]]:
    """An index made by operators, and what it is at every point by plain arithmetic."""
    found = at(draw(st.integers(-8, 8)))
    values = [found.constant] * len(points())
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["add", "scale", "divide", "rest"]))
        number = draw(st.integers(1, 12))
        if kind == "add":
            axis, factor = draw(st.sampled_from([X, J, K])), draw(st.sampled_from([-3, 1, 4, 6]))
            found = found + at(axis) * factor
            values = [v + p[axis] * factor for v, p in zip(values, points(), strict=True)]
        elif kind == "scale":
            found, values = found * number, [v * number for v in values]
        elif kind == "divide":
            found, values = found // number, [v // number for v in values]
        else:
            found, values = found % number, [v % number for v in values]
    return found, values


@given(pairs())
def test_operators_keep_values(pair: tuple[Index, list[int]]) -> None:
    index, values = pair
    assert [value(index, point) for point in points()] == values


@given(pairs())
def test_a_range_holds_every_value(pair: tuple[Index, list[int]]) -> None:
    index, values = pair
    low, high = index.range
    assert low <= min(values)
    assert max(values) <= high


@given(pairs(), pairs())
def test_a_guard_narrows_a_range_no_further_than_it_may(
    pair: tuple[Index, list[int]], other: tuple[Index, list[int]]
) -> None:
    (index, values), (bounded, limits) = pair, other
    guard = (Bound(bounded, 0, 7),)
    kept = [v for v, limit in zip(values, limits, strict=True) if 0 <= limit < 7]
    low, high = range_under(index, guard)
    assert all(low <= v <= high for v in kept)


@given(st.permutations([2, 3, 4]), st.sampled_from([(24,), (6, 4), (4, 6), (2, 12), (3, 2, 2, 2)]))
def test_places_go_into_other_shapes_and_back(shape: list[int], other: tuple[int, ...]) -> None:
    axes = [Axis(f"x{n}", extent) for n, extent in enumerate(shape)]
    index = unflatten(flatten([at(a) for a in axes], shape), other)
    expected = np.arange(24).reshape(other)
    for place, point in enumerate(itertools.product(*map(range, shape))):
        named = dict(zip(axes, point, strict=True))
        assert expected[tuple(value(part, named) for part in index)] == place
    assert not has_division(flatten(index, other))


def test_axes_that_split_or_join_leave_no_division() -> None:
    split = unflatten(flatten([at(X), at(J), at(K)], (4, 6, 5)), (24, 5))
    assert [str(part) for part in split] == ["6*i + j", "k"]
    whole = Axis("w", 24)
    joined = unflatten(at(whole), (4, 6))
    assert [str(part) for part in joined] == ["w // 6", "w % 6"]
    assert flatten(joined, (4, 6)) == at(whole)


def test_axes_are_replaced_inside_divisions() -> None:
    index = (at(X) * 5 + at(K)) // 3
    whole = Axis("w", 20)
    found = substituted(index, {X: at(whole) // 5, K: at(whole) % 5})
    assert str(found) == "w // 3"


def test_divisions_try_the_largest_step_first() -> None:
    index = at(X) * 12 + at(J) * 4 + at(K) * 6
    steps = [step for step, _, _ in _scales(index, 12)]
    assert steps == [12, 6, 4]
