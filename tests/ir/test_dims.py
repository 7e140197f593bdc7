"""Sizes: canonical, exact, and honest about what is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire.errors import DimError
from fusewire.ir.dims import (
    FUNCTIONS,
    Dim,
    Symbol,
    apply,
    broadcast_dim,
    ceildiv,
    dim_max,
    dim_min,
    evaluate,
    floordiv,
    is_at_most,
    is_equal,
    least_distance,
    lone_symbol,
    lower_bound,
    substitute,
    symbol,
    symbols,
    unbacked,
)
from fusewire.ir.parse import parse_dim

NAMES = ("n", "m", "batch size", "float32", "max")
n, m = symbol("n"), symbol("m")

leaves: st.SearchStrategy[Dim] = st.one_of(
    st.integers(-5, 9), st.sampled_from(NAMES).map(symbol), st.just(unbacked("u"))
)


def _grow(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 7)).map(lambda p: floordiv(*p)),
        pair.map(lambda p: apply("max", *p)),
        pair.map(lambda p: apply("min", *p)),
    )


dims = st.recursive(leaves, _grow, max_leaves=6)
bindings = st.fixed_dictionaries({Symbol(name): st.integers(0, 12) for name in NAMES}).map(
    lambda values: {**values, Symbol("u", True): 3}
)


@given(dims, dims, bindings)
def test_arithmetic_agrees_with_ints(a: Dim, b: Dim, values: dict[Symbol, int]) -> None:
    left, right = evaluate(a, values), evaluate(b, values)
    assert evaluate(a + b, values) == left + right
    assert evaluate(a - b, values) == left - right
    assert evaluate(a * b, values) == left * right
    assert evaluate(floordiv(a, 3), values) == left // 3
    assert evaluate(a % 4, values) == left % 4
    assert evaluate(ceildiv(a, 5), values) == -(-left // 5)
    assert evaluate(dim_max(a, b), values) == max(left, right)


@given(dims, dims, bindings)
def test_exact_quotients_are_found(a: Dim, b: Dim, values: dict[Symbol, int]) -> None:
    if evaluate(b, values) > 0:
        assert evaluate(floordiv(a * b, b), values) == evaluate(a, values)


@given(dims)
def test_printing_parses_back(a: Dim) -> None:
    assert parse_dim(str(a)) == a


@given(dims, dims, bindings)
def test_what_is_certain_is_true(a: Dim, b: Dim, values: dict[Symbol, int]) -> None:
    left, right = evaluate(a, values), evaluate(b, values)
    equal = is_equal(a, b)
    assert equal is None or equal == (left == right)
    assert not is_at_most(a, b) or left <= right
    distance = least_distance(a, b)
    assert distance is None or distance <= right - left
    bound = lower_bound(a)
    assert bound is None or bound <= left


@given(dims, bindings)
def test_substituting_in_steps_is_substituting_at_once(a: Dim, values: dict[Symbol, int]) -> None:
    first = dict(list(values.items())[:2])
    assert evaluate(substitute(a, first), values) == evaluate(a, values)


def test_distance_of_a_larger_size_is_that_of_its_arms() -> None:
    larger, smaller = dim_max(n - 1, 4), dim_min(n + 3, m)
    assert least_distance(n, n + 3) == 3
    assert least_distance(9, 4) == -5
    assert least_distance(n, larger) == -1
    assert least_distance(larger, n + 5) == 1
    assert least_distance(larger, n - 1) == -5
    assert least_distance(smaller, n) == -3
    assert least_distance(1, dim_min(n + 3, 9)) == 2
    assert least_distance(m, smaller) is None


def test_equal_expressions_are_equal_objects() -> None:
    assert (n + 1) * (n - 1) == n * n - 1
    assert hash(n * m + m) == hash(m * (n + 1))
    assert (12 * n * m) // m == 12 * n
    assert (n * n + n) // (n + 1) == n
    assert (n + 1) // 2 // 3 == (n + 1) // 6


def test_symbols_are_at_least_zero() -> None:
    assert is_equal(n, n + 1) is False
    assert is_equal(n, m) is None
    assert dim_max(n, 0) == n
    assert lower_bound(n * 2 + 3) == 3


def test_unknown_size_has_no_truth() -> None:
    with pytest.raises(DimError, match="not known yet"):
        bool(n)


def test_unbound_symbol_is_named() -> None:
    with pytest.raises(DimError, match="needs m"):
        evaluate(n * m, {Symbol("n"): 2})


def test_broadcast_of_two_symbols_is_decided_by_the_run() -> None:
    both = broadcast_dim(n, m)
    assert evaluate(both, {Symbol("n"): 1, Symbol("m"): 4}) == 4
    with pytest.raises(DimError, match="do not broadcast"):
        evaluate(both, {Symbol("n"): 3, Symbol("m"): 4})


def test_fresh_unbacked_symbols_differ() -> None:
    assert unbacked() != unbacked()
    assert next(iter(symbols(unbacked()))).unbacked


def test_only_a_whole_dim_can_be_read_off_a_shape() -> None:
    assert lone_symbol(n) == Symbol("n")
    assert lone_symbol(n + 1) is None
    assert lone_symbol(2 * n) is None
    assert lone_symbol(4) is None


def test_nested_sizes_that_share_parts_are_substituted_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size: Dim = n
    for layer in range(6):
        # Each layer mentions the one before twice.
        size = floordiv(size + layer, 3) * dim_max(size, m)
    assert set(symbols(size)) == {Symbol("n"), Symbol("m")}
    applied: list[str] = []

    def counted(function: str, left: Dim, right: Dim) -> Dim:
        applied.append(function)
        return apply(function, left, right)

    monkeypatch.setattr("fusewire.ir.dims.apply", counted)
    values = {Symbol("n"): 7, Symbol("m"): 5}
    found = substitute(size, values)
    assert len(applied) == 12
    assert found == evaluate(size, values)


def test_parts_of_a_size_are_computed_once_for_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size: Dim = n
    for layer in range(6):
        size = floordiv(size + layer, 3) * dim_max(size, m)
    asked: list[int] = []

    def noted(left: int, right: int) -> int:
        asked.append(left)
        return max(left, right)

    monkeypatch.setitem(FUNCTIONS, "max", noted)
    values = {Symbol("n"): 7, Symbol("m"): 5}
    first = evaluate(size, values)
    assert len(asked) == 6
    assert evaluate(size, values) == first
    assert len(asked) == 6
    assert evaluate(size, {**values, Symbol("n"): 8}) != first
    assert len(asked) == 12
