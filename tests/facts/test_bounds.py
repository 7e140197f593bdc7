"""What has no bound stays on the host, and what ranges prove does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusewire import ops
from fusewire.dtypes import float32, int64
from fusewire.facts.bounds import peaks, unbounded
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.subgraph import FLAG, INDEX, subgraph


def kept(graph: Graph) -> set[str]:
    return {node.op for node in unbounded(graph)}


def test_a_size_from_a_value_stays_and_a_clipped_one_does_not() -> None:
    n = Value(TensorType(int64, (1,)), "n")
    wide = ops.dynamic_full(np.float32(1), n, dims=(unbacked("u"),))
    assert kept(Graph([n], [wide], output_names=["y"])) == {"dynamic_full"}
    few = ops.minimum(ops.maximum(n, np.array([0])), np.array([1000]))
    wide = ops.dynamic_full(np.float32(1), few, dims=(unbacked("u"),))
    assert kept(Graph([n], [wide], output_names=["y"])) == set()


def looped(trips: Value) -> Value:
    row = TensorType(float32, (4,))
    body = subgraph(lambda i, go, x: [go, ops.exp(x)], INDEX, FLAG, row)
    outputs: tuple[Value, ...] = ops.loop(
        trips, None, np.ones(4, np.float32), body=body, carries=1, types=(row,)
    )
    return outputs[0]


def test_rounds_from_a_value_stay_and_a_few_do_not() -> None:
    trips = Value(INDEX, "trips")
    assert kept(Graph([trips], [looped(trips)], output_names=["y"])) == {"loop"}
    few = ops.minimum(trips, np.array(1000))
    assert kept(Graph([trips], [looped(few)], output_names=["y"])) == set()


def test_a_product_of_counts_stays() -> None:
    x = Value(TensorType(float32, (symbol("n"),)), "x")
    places = ops.nonzero(x, count=unbacked("u"))
    assert kept(Graph([x], [places], output_names=["y"])) == set()
    row = ops.reshape(places, shape=(unbacked("u"),))
    table = ops.add(ops.reshape(row, shape=(unbacked("u"), 1)), row)
    assert kept(Graph([x], [table], output_names=["y"])) == {"nonzero"}


def test_peaks_follow_sizes_that_come_from_values() -> None:
    n = unbacked("n")
    x = Value(TensorType(float32, (n,)), "x")
    square = ops.multiply(ops.reshape(x, shape=(n, 1)), x)
    region = Graph([x], [ops.reduce_sum(square, axes=(1,))], output_names=["y"])
    assert any("?n*?n" in str(peak) for peak in peaks(region))
    fixed = symbol("m")
    y = Value(TensorType(float32, (fixed,)), "y")
    own = Graph([y], [ops.multiply(ops.reshape(y, shape=(fixed, 1)), y)], output_names=["z"])
    assert peaks(own) == ()


def sliced(step: Callable[[Value], Value], rounds: int | None = 500) -> Graph:
    """Return a loop that reads the places from its counter up to the next; a size may end it."""

    def body(i: Value, go: Value, place: Value) -> list[Value]:
        after = step(place)
        end = ops.minimum(after, np.array(rounds)) if rounds is not None else after
        return [go, after, ops.reduce_sum(ops.range(place, end, np.array(1), count=unbacked("u")))]

    made = subgraph(body, INDEX, FLAG, INDEX)
    x = Value(TensorType(float32, (symbol("n"),)), "x")
    trips = ops.reshape(ops.shape_of(x), shape=()) if rounds is None else constant(np.array(rounds))
    place, sums = ops.loop(
        trips,
        None,
        constant(np.array(0)),
        body=made,
        carries=1,
        types=(INDEX, TensorType(int64, (unbacked("rounds"),))),
    )
    return Graph([x], [ops.add(x, ops.cast(place, dtype=float32)), sums], output_names=["y", "z"])


def test_a_counter_that_a_loop_carries_bounds_what_is_made_of_it() -> None:
    assert kept(sliced(lambda place: ops.add(place, np.array(1)))) == set()
    # As exporters write it, in float32.
    as_float = lambda place: ops.cast(  # noqa: E731
        ops.add(ops.cast(place, dtype=float32), np.float32(1)), dtype=int64
    )
    assert kept(sliced(as_float)) == set()


def test_a_counter_that_runs_away_bounds_nothing() -> None:
    assert kept(sliced(lambda place: ops.multiply(ops.add(place, np.array(1)), np.array(-3)))) == {
        "loop"
    }
    halved = lambda place: ops.cast(  # noqa: E731
        ops.multiply(ops.cast(place, dtype=float32), np.float32(1.5)), dtype=int64
    )
    assert kept(sliced(halved)) == {"loop"}


def test_rounds_that_a_size_decides_are_not_taken_for_one() -> None:
    grown = sliced(lambda place: ops.add(ops.multiply(place, np.array(4)), np.array(1)), None)
    assert kept(grown) == {"loop"}
