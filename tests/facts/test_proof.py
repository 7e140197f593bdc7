"""What the graph proves of an index is the least interval, and nothing narrower is proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import bool_, float32, int32, int64, uint8
from fusewire.facts import proof
from fusewire.facts.proof import Prover
from fusewire.facts.ranges import whole_range
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, dim_max, symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.movement import broadcast_to, reshape, transpose

N, M = symbol("n"), symbol("m")
Given: TypeAlias = "dict[str, Value]"
LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def given() -> Given:
    """The inputs of the graphs: their elements may be anything."""
    types = {
        "x": TensorType(float32, (N, 5)),
        "y": TensorType(float32, (M, N)),
        "ids": TensorType(int64, (N,)),
        "more": TensorType(int64, (N,)),
        "ten": TensorType(float32, (10,)),
        "few": TensorType(int32, (5,)),
        "bytes": TensorType(uint8, (N,)),
        "mask": TensorType(bool_, (N,)),
        "pairs": TensorType(int64, (N, 2)),
        "columns": TensorType(int64, (2, N)),
        "two": TensorType(bool_, (2, 9)),
    }
    return {name: Value(of, name) for name, of in types.items()}


def prover_of(made: Value, inputs: Given) -> Prover:
    return Prover(Graph([*inputs.values()], [made]))


def proves(made: Value, low: Dim, high: Dim, inputs: Given) -> bool:
    return prover_of(made, inputs).proves(made, ((low, high),))


def made_by(build: Callable[[Given], Value]) -> tuple[Value, Given]:
    inputs = given()
    return build(inputs), inputs


def fixed(numbers: Any) -> Value:
    return constant(np.array(numbers))


def size_of(x: Value, axis: int) -> Value:
    """One size of a shape, as a scalar."""
    made: Value = ops.gather(ops.shape_of(x), np.array(axis), axis=0)
    return made


def first_of(x: Value) -> Value:
    made: Value = ops.gather(x, np.array(0), axis=0)
    return made


def masked(x: Value, mask: Value) -> Value:
    """Choose rows; how many, only the run knows."""
    made: Value = ops.boolean_mask(x, mask)
    return made


def counted(start: int | Value, stop: int | Value, step: int | Value) -> Value:
    operands = (fixed(x) if isinstance(x, int) else x for x in (start, stop, step))
    made: Value = ops.range_(*operands)
    return made


# The least interval, which is proven.
LEAST: dict[str, tuple[Callable[[Given], Value], Dim, Dim]] = {
    "a sum of two ranges": (
        lambda v: ops.add(ops.clip(v["few"], 0, 5), ops.clip(v["few"], -3, 9)), -3, 14
    ),
    "a number and a place": (
        lambda v: ops.add(ops.clip(v["ids"], 0, 5), ops.argmax(v["ten"], axis=0)), 0, 14
    ),
    "a range and places of an order": (
        lambda v: ops.add(ops.clip(v["ids"], 0, 5), ops.argsort(v["y"], axis=0)), 0, M + 4
    ),
    "places of an order and a range": (
        lambda v: ops.add(ops.argsort(v["y"], axis=0), ops.clip(v["ids"], 0, 5)), 0, M + 4
    ),
    "a difference": (
        lambda v: ops.subtract(ops.argsort(v["y"], axis=0), ops.clip(v["ids"], -2, 5)), -5, M + 1
    ),
    "an input of few bits": (lambda v: v["bytes"], 0, 255),
    "a constant": (lambda v: fixed([3, -4, 1]), -4, 3),
    "places of the largest": (lambda v: ops.argmax(v["x"], axis=1), 0, 4),
    "places of the smallest, perhaps of none": (
        lambda v: ops.argmin(v["y"], axis=0), 0, dim_max(M - 1, 0)
    ),
    "places of an order": (lambda v: ops.argsort(v["y"], axis=0), 0, M - 1),
    "places of the first in order": (lambda v: ops.top_k(v["y"], k=2, axis=-1)[1], 0, N - 1),
    "first in order": (lambda v: ops.top_k(ops.clip(v["ids"], 2, 7), k=1, axis=0)[0], 2, 7),
    "in order": (lambda v: ops.sort(ops.clip(v["ids"], 2, 7), axis=0), 2, 7),
    "counted along an axis": (lambda v: ops.iota.new(shape=(2, N), axis=1), 0, N - 1),
    "listed": (lambda v: ops.nonzero(v["ids"]), 0, N - 1),
    "of two axes": (lambda v: ops.nonzero(v["x"]), 0, dim_max(N - 1, 4)),
    "counted up": (lambda v: counted(-2, 9, 1), -2, 8),
    "counted up in large steps": (lambda v: counted(2, 9, 3), 2, 8),
    "counted up to a size": (lambda v: counted(-2, size_of(v["x"], 0), 1), -2, N - 1),
    "moved": (lambda v: transpose(ops.argsort(v["y"], axis=0), perm=(1, 0)), 0, M - 1),
    "moved by a mask": (lambda v: masked(ops.clip(v["ids"], 2, 7), v["mask"]), 2, 7),
    "moved by an index": (
        lambda v: ops.gather(ops.clip(v["ids"], 2, 7), ops.argmax(v["x"], axis=0), axis=0), 2, 7
    ),
    "one of two": (
        lambda v: ops.where(v["mask"], ops.clip(v["ids"], 0, 3), ops.clip(v["ids"], -5, 1)), -5, 3
    ),
    "both in a row": (
        lambda v: ops.concat(ops.argsort(v["ids"], axis=0), np.array([-1]), axis=0), -1, N - 1
    ),
    "smaller of two": (
        lambda v: ops.minimum(ops.argsort(v["y"], axis=0), ops.clip(v["ids"], -2, 9)), -2, M - 1
    ),
    "smaller of two, the other way around": (
        lambda v: ops.minimum(ops.clip(v["ids"], -2, 9), ops.argsort(v["y"], axis=0)), -2, M - 1
    ),
    "larger of two": (lambda v: ops.maximum(ops.argsort(v["y"], axis=0), -1), 0, M - 1),
    "written over": (
        lambda v: ops.scatter_elements(
            ops.argsort(v["ids"], axis=0), np.array([0]), np.array([-1]), axis=0
        ), -1, N - 1
    ),
    "cast to more bits": (
        lambda v: ops.cast(ops.cast(ops.argmax(v["x"], axis=1), dtype=int32), dtype=int64), 0, 4
    ),
    "a size": (lambda v: size_of(v["x"], 0), N, N),
    "last place by a size": (lambda v: ops.subtract(size_of(v["x"], 0), 1), N - 1, N - 1),
    "sizes": (
        lambda v: ops.concat(ops.shape_of(v["y"]), np.array([-4]), axis=0), -4, dim_max(N, M)
    ),
    # Beyond these, int64 has no numbers: one end alone tells that nothing wrapped.
    "one more than twice a size": (
        lambda v: ops.multiply(ops.add(ops.multiply(size_of(v["x"], 0), 2), 1), 1),
        2 * N + 1, 2 * N + 1,
    ),
    "two less than twice a size below": (
        lambda v: ops.multiply(ops.subtract(ops.multiply(size_of(v["x"], 0), -2), 2), 1),
        -2 * N - 2, -2 * N - 2,
    ),
    "from a size on": (
        lambda v: counted(size_of(v["x"], 0), ops.add(size_of(v["x"], 0), 5), 1), N, N + 4
    ),
    "limited above alone": (
        lambda v: ops.clip(ops.argsort(v["y"], axis=0), None, 2**40), 0, M - 1
    ),
    "one of two orders": (
        lambda v: ops.where(v["mask"], ops.argsort(v["y"], axis=0), ops.clip(v["ids"], -5, 1)),
        -5, dim_max(M - 1, 1),
    ),
    "an order in order": (lambda v: ops.sort(ops.argsort(v["y"], axis=0), axis=1), 0, M - 1),
    "last of an order": (lambda v: ops.top_k(ops.argsort(v["y"], axis=0), k=1)[0], 0, M - 1),
    "an order, moved by a mask": (
        lambda v: masked(transpose(ops.argsort(v["y"], axis=0), perm=(1, 0)), v["mask"]), 0, M - 1
    ),
    "an order, moved by places on another axis": (
        lambda v: ops.gather(ops.argsort(v["y"], axis=0), ops.argsort(v["ids"], axis=0), axis=1),
        0, M - 1,
    ),
    "no place, of elements that exist": (
        lambda v: broadcast_to(fixed(0), shape=(N,)), 0, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
def test_least_interval_is_proven_and_no_narrower_one(name: str) -> None:
    build, low, high = LEAST[name]
    made, inputs = made_by(build)
    assert proves(made, low, high, inputs)
    assert not proves(made, low + 1, high, inputs)
    assert not proves(made, low, high - 1, inputs)


# What the interval is not proven of.
UNPROVEN: dict[str, tuple[Callable[[Given], Value], Dim, Dim]] = {
    "an input": (lambda v: v["ids"], 0, N - 1),
    "floats": (lambda v: ops.cast(v["ten"], dtype=int64), 0, 2**40),
    "whole floats": (
        lambda v: ops.cast(ops.cast(ops.clip(v["few"], 0, 5), dtype=float32), dtype=int64), 0, N - 1
    ),
    "another axis": (lambda v: ops.argsort(v["y"], axis=0), 0, N - 1),
    "a sum that may wrap": (lambda v: ops.add(ops.maximum(v["ids"], 0), 1), 0, LARGEST),
    "a difference that may wrap": (
        lambda v: ops.subtract(ops.minimum(v["ids"], 0), 1), SMALLEST, 0
    ),
    "less than an order": (
        lambda v: ops.subtract(ops.clip(v["ids"], 0, 5), ops.argsort(v["y"], axis=0)), -5, M
    ),
    "a cast to fewer bits": (
        lambda v: ops.cast(ops.argsort(v["y"], axis=0), dtype=uint8), 0, M - 1
    ),
    "other numbers around": (
        lambda v: ops.pad(ops.clip(v["ids"], 5, 9), padding=((1, 1),)), 5, 9
    ),
    "sums at places": (
        lambda v: ops.scatter_elements(
            ops.clip(v["ids"], 0, 3), np.array([0]), np.array([3]), axis=0, reduction="add"
        ), 0, 3
    ),
    "largest numbers": (lambda v: ops.top_k(v["ids"], k=1, axis=0)[0], 0, N - 1),
    "places of large numbers": (lambda v: ops.top_k(ops.clip(v["ids"], 5, 9), k=1)[1], 5, N - 1),
    "a comparison of sizes": (
        lambda v: ops.cast(ops.equal(size_of(v["x"], 0), size_of(v["y"], 1)), dtype=int64), 1, 1
    ),
    "counted down": (lambda v: counted(9, 0, -1), 0, 8),
    "counted by what may be below": (lambda v: counted(0, 9, first_of(v["ids"])), 0, 8),
    "a product of sizes": (
        lambda v: ops.multiply(size_of(v["x"], 0), size_of(v["y"], 0)), 0, N * M
    ),
    "a product": (lambda v: ops.multiply(ops.clip(v["ids"], 0, 1), 2), 0, 1),
    "three times a size": (
        lambda v: ops.add(ops.add(size_of(v["x"], 0), size_of(v["x"], 0)), size_of(v["x"], 0)),
        0, 3 * N,
    ),
    "less by what may have wrapped": (
        lambda v: ops.minimum(ops.multiply(size_of(v["x"], 0), 4), 7), 0, 7
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNPROVEN)
def test_interval_is_not_proven(name: str) -> None:
    build, low, high = UNPROVEN[name]
    made, inputs = made_by(build)
    assert not proves(made, low, high, inputs)


def test_axis_of_elements_that_exist_is_not_empty() -> None:
    inputs = given()
    first = broadcast_to(fixed(0), shape=(N,))
    assert proves(first, 0, N - 1, inputs)
    assert not proves(fixed(0), 0, N - 1, inputs)
    some = masked(inputs["ids"], inputs["mask"])
    (count,) = some.tensor.shape
    first = broadcast_to(fixed(0), shape=(count,))
    assert proves(first, 0, count - 1, inputs)
    # Of the name alone, it is another size.
    assert not proves(first, 0, unbacked() - 1, inputs)


def test_tensor_without_elements_is_within_anything() -> None:
    inputs = given()
    none = ops.add(broadcast_to(inputs["few"], shape=(2, 5)), 1)
    assert not proves(none, 1, 0, inputs)
    empty = Value(TensorType(int64, (0, N)), "empty")
    assert proves(empty, 1, 0, inputs | {"empty": empty})
    parts = ops.concat(fixed(np.zeros((0, 2), int)), ops.clip(inputs["pairs"], 3, 7), axis=0)
    assert proves(parts, 3, 7, inputs)


def test_bools_are_not_followed() -> None:
    inputs = given()
    assert not proves(fixed([False]), 0, 0, inputs)


# -- what was checked before


def test_checked_value_is_proven_from_then_on() -> None:
    inputs = given()
    ids = inputs["ids"]
    used = transpose(reshape(ops.add(ids, 1), shape=(N, 1)), perm=(1, 0))
    prover = prover_of(used, inputs)
    assert not prover.proves(used, ((-3, N),))
    prover.assume(ids, ((-4, 100),))
    prover.assume(ids, ((-9, 50),))
    assert prover.proves(ids, ((-4, 50),))
    assert not prover.proves(ids, ((-3, 50),))
    assert not prover.proves(ids, ((-4, 49),))
    assert prover.proves(used, ((-3, 51),))
    assert not prover.proves(used, ((-2, 51),))
    assert not prover.proves(used, ((-3, 50),))


@pytest.mark.parametrize(("low", "high"), [(0, N - 1), (-N, 7), (-N, N - 1)])
def test_ends_of_a_check_may_be_sizes(low: Dim, high: Dim) -> None:
    """Of a number of unknown range, a sum may wrap."""
    inputs = given()
    ids = inputs["ids"]
    used = ops.add(ids, 1)
    prover = prover_of(used, inputs)
    prover.assume(ids, ((low, high),))
    assert prover.proves(ids, ((low, high),))
    assert not prover.proves(used, ((low + 1, high + 1),))


def test_checks_of_columns_prove_nothing_of_all() -> None:
    inputs = given()
    pairs = inputs["pairs"]
    prover = prover_of(pairs, inputs)
    prover.assume(pairs, ((0, 3), (0, 9)))
    assert not prover.proves(pairs, ((0, 9),))
    assert not prover.proves(pairs, ((0, 3), (0, 9)))
    prover.assume(pairs, ((0, 3),))
    assert prover.proves(pairs, ((0, 3), (0, 9)))


def test_what_is_known_of_floats_proves_nothing() -> None:
    inputs = given()
    cast = ops.cast(inputs["ten"], dtype=int64)
    prover = prover_of(cast, inputs)
    prover.assume(inputs["ten"], ((0, 3),))
    assert not prover.proves(cast, ((0, 3),))


def test_values_of_another_graph_are_not_known() -> None:
    """A composite that was expanded may have had operands that nothing uses any more."""
    inputs = given()
    known = ops.clip(inputs["ids"], 0, 3)
    prover = prover_of(known, inputs)
    lost = ops.clip(Value(TensorType(int64, (N,)), "lost"), 0, 3)
    scalar = reshape(Value(TensorType(int64, (1,)), "lost"), shape=())
    for value in (
        lost,
        ops.add(known, lost),
        ops.add(lost, known),
        ops.cast(lost, dtype=int32),
        counted(0, 3, scalar),
    ):
        assert not prover.proves(value, ((0, 2),))


# -- columns, each with its interval

COLUMNS: dict[str, tuple[Callable[[Given], Any], list[Dim], list[Dim]]] = {
    "a constant": (lambda v: fixed([[3, -1], [0, 7]]), [0, -1], [3, 7]),
    "as many rows as there are": (
        lambda v: broadcast_to(fixed([[3, -1]]), shape=(N, 2)),
        [3, -1],
        [3, -1],
    ),
    "listed": (lambda v: transpose(ops.nonzero(v["x"]), perm=(1, 0)), [0, 0], [N - 1, 4]),
    "beside each other": (
        lambda v: ops.concat(
            reshape(ops.argsort(v["ids"], axis=0), shape=(N, 1)),
            reshape(ops.clip(v["ids"], 2, 7), shape=(N, 1)),
            axis=-1,
        ),
        [0, 2],
        [N - 1, 7],
    ),
    "two beside one": (
        lambda v: ops.concat(
            broadcast_to(fixed([[3, -1]]), shape=(N, 2)),
            reshape(ops.argsort(v["ids"], axis=0), shape=(N, 1)),
            axis=1,
        ),
        [3, -1, 0],
        [3, -1, N - 1],
    ),
    "stacked": (
        lambda v: ops.stack(ops.argsort(v["ids"], axis=0), ops.clip(v["ids"], 2, 7), axis=1),
        [0, 2],
        [N - 1, 7],
    ),
    "lists beside an order": (
        lambda v: ops.stack(
            ops.concat(*[ops.cast(ops.clip(v["few"], 2, 7), dtype=int64)] * 2, axis=0),
            ops.argsort(v["ten"], axis=0),
            axis=1,
        ),
        [2, 0],
        [7, 9],
    ),
    "a size beside a number": (
        lambda v: ops.concat(
            ops.multiply(reshape(size_of(v["x"], 0), shape=(1, 1)), 1), fixed([[5]]), axis=1
        ),
        [N, 5],
        [N, 5],
    ),
    "cast": (lambda v: ops.cast(fixed([[3, -1], [0, 7]]), dtype=int32), [0, -1], [3, 7]),
    "counted": (lambda v: ops.iota.new(shape=(N, 2), axis=0), [0, 0], [N - 1, N - 1]),
    "all of a range": (lambda v: ops.clip(v["pairs"], 0, 3), [0, 0], [3, 3]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_have_intervals_of_their_own(name: str) -> None:
    build, lows, highs = COLUMNS[name]
    made, inputs = made_by(build)
    prover = prover_of(made, inputs)
    assert prover.proves(made, tuple(zip(lows, highs, strict=True)))
    for place in range(len(lows)):
        for narrowed, change in ((lows, 1), (highs, -1)):
            ends = [*narrowed]
            ends[place] = ends[place] + change
            other = (ends, highs) if narrowed is lows else (lows, ends)
            assert not prover.proves(made, tuple(zip(*other, strict=True)))


UNPROVEN_COLUMNS: dict[str, tuple[Callable[[Given], Any], list[tuple[Dim, Dim]]]] = {
    "turned around": (lambda v: ops.flip(fixed([[3, -1]]), axes=(1,)), [(-1, -1), (-1, 3)]),
    "lists beside each other": (
        lambda v: ops.stack(fixed([3, -1]), fixed([5, 5]), axis=1),
        [(3, 3), (5, 5)],
    ),
    "floats": (lambda v: ops.cast(v["x"], dtype=int64), [(0, 3)] * 5),
    "whole floats": (
        lambda v: ops.cast(ops.cast(ops.clip(v["pairs"], 0, 3), dtype=float32), dtype=int64),
        [(0, 2), (0, 2)],
    ),
    "other rows": (
        lambda v: reshape(broadcast_to(fixed([3, -1]), shape=(N, 2)), shape=(2, N)),
        [(3, 3), (-1, -1)],
    ),
    "below each other": (
        lambda v: ops.concat(fixed([[3, -1]]), fixed([[5, 5]]), axis=0),
        [(3, 3), (-1, -1)],
    ),
    "an order, which is not listed": (
        lambda v: transpose(ops.argsort(v["y"], axis=0), perm=(1, 0)),
        [(0, M - 1), (0, N - 1)],
    ),
    "listed, in another shape": (
        lambda v: reshape(listed := ops.nonzero(v["x"]), shape=(listed.tensor.shape[1], 2)),
        [(0, N - 1), (0, 4)],
    ),
    "listed, and not turned": (
        lambda v: transpose(ops.nonzero(v["two"], count=2), perm=(0, 1)),
        [(0, 1), (0, 8)],
    ),
    "an input that is turned": (
        lambda v: transpose(v["columns"], perm=(1, 0)),
        [(0, N - 1), (0, 4)],
    ),
    "cast to fewer bits": (
        lambda v: ops.cast(broadcast_to(fixed([[300, 0]]), shape=(N, 2)), dtype=uint8),
        [(300, 300), (0, 0)],
    ),
    "fewer than were asked for": (
        lambda v: ops.stack(ops.argsort(v["ids"], axis=0), ops.clip(v["more"], 0, 7), axis=1),
        [(0, N - 1), (0, 7), (0, N - 1)],
    ),
    "beside any number of others": (
        lambda v: ops.concat(
            broadcast_to(fixed([[3]]), shape=(2, N)), np.array([[5], [5]]), axis=1
        ),
        [(3, 3), (3, 3)],
    ),
}


@pytest.mark.parametrize("name", UNPROVEN_COLUMNS)
def test_columns_are_not_proven(name: str) -> None:
    build, intervals = UNPROVEN_COLUMNS[name]
    made, inputs = made_by(build)
    assert not prover_of(made, inputs).proves(made, tuple(intervals))


# -- hostile graphs


@pytest.mark.parametrize(("count", "is_proven"), [(20, True), (60, False)])
def test_proof_goes_only_so_deep(count: int, is_proven: bool) -> None:
    inputs = given()
    value: Value = ops.argsort(inputs["ids"], axis=0)
    for _ in range(count):
        value = ops.add(value, 1)
    assert proves(value, 0, N + count - 1, inputs) == is_proven
    size = size_of(inputs["x"], 0)
    for _ in range(count):
        size = ops.subtract(size, 1)
    assert proves(size, N - count, N - count, inputs) == is_proven


@pytest.mark.parametrize(("count", "is_proven"), [(24, True), (25, False)])
def test_proof_goes_over_24_nodes(count: int, is_proven: bool) -> None:
    inputs = given()
    value: Value = ops.argsort(inputs["ids"], axis=0)
    for _ in range(count):
        value = ops.add(value, 1)
    assert proves(value, count, N + count - 1, inputs) == is_proven


@pytest.mark.parametrize(("count", "is_proven"), [(20, True), (30, False)])
def test_columns_are_followed_only_so_deep(count: int, is_proven: bool) -> None:
    inputs = given()
    columns: Value = ops.stack(
        ops.argsort(inputs["ids"], axis=0), ops.clip(inputs["ids"], 2, 7), axis=1
    )
    for number in range(count):
        columns = reshape(columns, shape=(N, 2) if number % 2 else (1, N, 2))
    prover = prover_of(columns, inputs)
    assert prover.proves(columns, ((0, N - 1), (2, 7))) == is_proven


def test_part_that_was_met_too_deep_is_looked_at_where_it_is_near() -> None:
    inputs = given()
    near: Value = ops.argsort(inputs["ids"], axis=0)
    for _ in range(10):
        near = ops.add(near, 1)
    far = near
    for _ in range(18):
        far = ops.add(far, 1)
    assert proves(ops.minimum(far, near), 10, N + 9, inputs)


def test_shared_parts_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Value] = []

    def noted(value: Value) -> Any:
        calls.append(value)
        return whole_range(value)

    monkeypatch.setattr(proof, "whole_range", noted)
    inputs = given()
    value = ops.subtract(size_of(inputs["x"], 0), size_of(inputs["x"], 0))
    for _ in range(12):
        value = ops.minimum(ops.maximum(value, value), 0)
    assert proves(value, 0, 0, inputs)
    assert len(calls) < 400
