"""The judge at its edges: numbers worked out by hand, one step inside and one outside a limit."""

import math
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import (
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    string,
    uint64,
)
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.judge import Verdict, judge_leaves, judge_op, judge_tensor, summary
from fusewire.numerics.noise import Noise, alone, felt_inputs, is_exact
from fusewire.numerics.oracle import Oracle, _are_varied
from fusewire.numerics.scale import Scales
from fusewire.numerics.spread import (
    ALIKE,
    SCOUT,
    Expected,
    Runs,
    classes,
    expect,
    expect_exact,
    is_code,
    slice_rms,
)
from fusewire.ops.interpret import graph_of, interpret

F32 = np.float32
RNG = np.random.default_rng(5)


# -- varied inputs: with blank ones slices are not judged


def few(size: int, distinct: int) -> Array:
    """Make an array of so many elements, of which so many are distinct."""
    return (np.arange(size) % distinct).astype(F32)


@pytest.mark.parametrize(
    ("inputs", "varied"),
    [
        ([few(100, 1)], False),
        ([few(100, 4)], False),
        # Five numbers are enough, however many elements there are.
        ([few(100, 5)], True),
        ([few(100, 50)], True),
        ([few(1000, 5)], True),
        # Of few elements, more than half are to differ.
        ([few(4, 2)], False),
        ([few(4, 3)], True),
        ([few(2, 2)], True),
        ([few(2, 1)], False),
        # One input that varies is enough; single numbers, integers and strings do not count.
        ([few(100, 1), few(100, 60)], True),
        ([few(1, 1)], True),
        ([np.arange(9)], True),
        ([np.arange(9), few(100, 1)], False),
        ([], True),
    ],
)
def test_inputs_are_varied_from_five_numbers_on(inputs: Any, varied: bool) -> None:
    assert _are_varied(inputs) == varied


def product(ending: Any) -> Graph:
    x = Value(TensorType(float32, (16, 32)), "x")
    weights = np.random.default_rng(1).normal(size=(32, 32)).astype(F32)
    return Graph([x], [ending(ops.matmul(x, constant(weights)))], output_names=["y"])


def sliced(graph: Graph, x: Array) -> tuple[float, ...]:
    (expected,) = next(iter(Oracle(graph, [x]).values(graph.outputs).values()))
    return expected.slices


def test_slices_are_judged_of_inputs_that_are_partly_equal() -> None:
    plain = product(lambda y: y)
    assert len(sliced(plain, RNG.normal(size=(16, 32)).astype(F32))) == 3
    assert len(sliced(plain, few(512, 7).reshape(16, 32))) == 3
    assert sliced(plain, few(512, 2).reshape(16, 32)) == ()


def test_slices_are_not_judged_where_outputs_are_alike() -> None:
    x = RNG.normal(size=(16, 32)).astype(F32)
    # Almost all are clipped to one number, though the inputs vary.
    assert sliced(product(lambda y: ops.clip(y, F32(0.001), F32(0.002))), x) == ()
    assert len(sliced(product(lambda y: ops.clip(y, F32(-9), F32(9))), x)) == 3


def test_error_below_every_tolerance_is_wrong_only_where_slices_are_judged() -> None:
    graph, x = product(lambda y: y), RNG.normal(size=(16, 32)).astype(F32)
    oracle = Oracle(graph, [x])
    (got,) = interpret(graph, [x])
    moved = (got + 0.2 * oracle.tolerance[0]).astype(F32)
    verdict = oracle.judge([moved])
    assert verdict.status == "wrong"
    assert verdict.reason.startswith("the root-mean-square error over ")
    assert verdict.off == 0
    assert oracle.judge([got]).status == "right"


# -- names in verdicts


def test_verdict_on_one_node_names_its_output() -> None:
    graph, inputs = graph_of(ops.exp, [np.ones(3, F32)], {})
    (got,) = interpret(graph, inputs)
    reason = judge_op(graph, inputs, [got + 1]).reason
    assert reason.startswith(f"{graph.output_names[0]}[0] is ")
    assert "3 of 3 elements are off" in reason


def test_node_alone_keeps_the_names_of_its_values() -> None:
    x = Value(TensorType(float32, (3,)), "x")
    node = ops.exp(x).node
    assert node is not None
    assert [v.name for v in alone(node).inputs] == ["x"]
    assert alone(node).output_names == ("output0",)
    named = ops.exp(Value(TensorType(float32, (3,))))
    assert named.node is not None
    named.name = "energy"
    graph = alone(named.node)
    assert [v.name for v in graph.inputs] == ["operand0"]
    assert graph.name == "exp"
    clipped = ops.clip(x, None, Value(TensorType(float32, ())))
    assert clipped.node is not None
    assert [v.name for v in alone(clipped.node).inputs] == ["x", "operand2"]


# -- one tensor


def allowing(wide: Any, tolerance: float, of: Any = float32, **fields: Any) -> Expected:
    array = np.asarray(wide, np.float64 if of.is_inexact else of.numpy)
    none = np.zeros(array.shape, np.bool_)
    given = {"masked": none, "jumps": none, **fields}
    return Expected("y", of, array, np.full(array.shape, tolerance), **given)


def verdict(expected: Expected, got: Any) -> Verdict:
    return judge_tensor(expected, np.asarray(got, expected.dtype.numpy), "y")


def test_error_is_the_worst_ratio_and_one_is_still_right() -> None:
    assert verdict(allowing([1.0, 2.0], 0.5), [1.0, 2.0]) == Verdict("right")
    found = verdict(allowing([1.0, 2.0], 0.5), [1.25, 1.5])
    assert (found.status, found.error, found.reason) == ("right", 1.0, "")
    found = verdict(allowing([1.0, 2.0], 0.5), [1.25, 2.75])
    assert (found.status, found.error) == ("wrong", 1.5)
    assert found.reason == "y[1] is 2.75, expected 2.0 within 0.5; 1 of 2 elements are off."


def test_scalar_has_no_place() -> None:
    assert verdict(allowing(2.0, 0.5), 4.0).reason == (
        "y is 4.0, expected 2.0 within 0.5; 1 of 1 elements are off."
    )


def test_other_dtype_shape_or_number_of_tensors_is_wrong() -> None:
    expected = allowing([1.0, 2.0], 0.5)
    other = judge_tensor(expected, np.array([1.0, 2.0]), "y")
    assert (other.status, other.error) == ("wrong", np.inf)
    assert other.reason == "y is float64, expected float32."
    shape = judge_tensor(expected, np.ones((1, 2), F32), "y")
    assert (shape.status, shape.reason) == ("wrong", "y has shape [1, 2], expected [2].")
    unsure = allowing([1.0, 2.0], 0.5, is_shaped=False)
    assert judge_tensor(unsure, np.ones(3, F32), "y").status == "cannot say"
    assert judge_leaves([expected], []).reason == "1 tensors expected, found 0."


@pytest.mark.parametrize(
    ("wide", "got", "status"),
    [
        (np.nan, np.nan, "right"),
        (np.inf, np.inf, "right"),
        (-np.inf, -np.inf, "right"),
        (np.inf, -np.inf, "wrong"),
        (np.nan, 1.0, "wrong"),
        (1.0, np.nan, "wrong"),
        (1.0, np.inf, "wrong"),
        (3.4028235e38, np.inf, "right"),
        (1e300, np.inf, "right"),
        (1e300, 1.0, "wrong"),
    ],
)
def test_classes_must_agree_but_near_the_largest_number(
    wide: float, got: float, status: str
) -> None:
    tolerance = 1e36 if abs(wide) > 1e30 else 0.5
    assert verdict(allowing([wide], tolerance), [got]).status == status


def test_integers_are_exact_to_the_last() -> None:
    last = 2**63 - 1
    assert verdict(allowing([last], 0.0, int64), [last]).status == "right"
    assert verdict(allowing([last], 0.0, int64), [last - 1]).status == "wrong"
    assert verdict(allowing([2**64 - 1], 0.0, uint64), [2**64 - 2]).status == "wrong"
    assert verdict(allowing([-(2**63)], 0.0, int64), [last]).error == np.inf
    assert verdict(allowing([-2], 5.0, int32), [3]).error == 1.0
    assert verdict(allowing([-2], 4.0, int32), [3]).status == "wrong"
    assert verdict(allowing([True], 0.0, bool_), [False]).status == "wrong"
    assert verdict(allowing([True], 1.0, bool_), [False]).error == 1.0


def test_strings_are_equal_or_wrong() -> None:
    wide = np.array(["a", "b"], object)
    none = np.zeros(2, np.bool_)
    expected = Expected("y", string, wide, np.zeros(2), none, none)
    assert judge_tensor(expected, wide.copy(), "y").status == "right"
    assert judge_tensor(expected, np.array(["a", "c"], object), "y").status == "wrong"


def test_masked_elements_are_not_judged_and_counted_if_they_differ() -> None:
    wide = np.ones(100)
    for count, status in ((5, "right"), (6, "cannot say")):
        masked = np.arange(100) < count
        expected = allowing(wide, 1e-6, masked=masked, jumps=masked)
        got = np.where(masked, 9.0, 1.0)
        found = verdict(expected, got)
        assert (found.status, found.unjudged, found.jumps) == (status, count / 100, count)
        # The exact answer is right, however near a jump it lies.
        assert verdict(expected, wide).unjudged == 0.0


def test_few_unseen_jumps_are_forgiven_where_runs_jump_much() -> None:
    wide = np.ones(100)
    got = wide.copy()
    got[:3] = 9.0
    # A quarter of what jumps in a run may jump elsewhere: of 12 in a hundred, 3.
    forgiven = verdict(allowing(wide, 1e-6, jumping=0.12), got)
    assert (forgiven.status, forgiven.unjudged, forgiven.jumps) == ("right", 0.03, 3)
    assert verdict(allowing(wide, 1e-6, jumping=0.11), got).status == "wrong"
    assert verdict(allowing(wide, 1e-6), got).status == "wrong"


def test_codes_may_differ_three_times_as_often_as_in_runs() -> None:
    wide = np.zeros(100, np.int8)
    for differ, status in ((7, "right"), (8, "wrong")):
        got = (np.arange(100) < differ).astype(np.int8)
        found = judge_tensor(allowing(wide, 1.0, int8, jumping=0.02), got, "y")
        assert (found.status, found.codes_differ) == (status, differ)
        told = "y: 8 of 100 codes differ, expected 7." if status == "wrong" else ""
        assert found.reason == told


def test_worst_verdict_counts_and_errors_are_the_largest() -> None:
    right, unsure = Verdict("right", 0.9, 0.1, "", 1, 2), Verdict("cannot say", 0.2, 0.3, "b", 3, 4)
    wrong, worse = Verdict("wrong", 2.0, 0.0, "c"), Verdict("wrong", 3.0, 0.0, "d")
    assert summary([]) == Verdict("right")
    assert summary([right, unsure]) == Verdict("cannot say", 0.9, 0.3, "b", 4, 6)
    assert summary([worse, wrong, right]).reason == "d"
    assert summary([unsure, wrong]).status == "wrong"


# -- what is expected of runs


def around(wide: Array, *moves: float) -> list[Array]:
    return [(wide * (1 + move)).astype(F32) for move in moves]


def test_tolerance_grows_with_the_spread_of_runs() -> None:
    wide = np.linspace(1, 2, 64)
    small, large = (
        expect("y", float32, wide, Runs(around(wide, e, -e, e), []), 8.0) for e in (1e-6, 1e-4)
    )
    assert (large.tolerance > 20 * small.tolerance).all()
    assert not large.masked.any()
    # At least a last place, and what a run showed is allowed.
    assert (small.tolerance >= float32.eps * wide).all()
    assert (large.tolerance >= 1.2e-4 * wide).all()


def test_runs_far_apart_are_jumps_and_one_run_is_none() -> None:
    wide = np.ones(16)
    jumped = np.ones(16, F32)
    jumped[3] = 5.0
    found = expect("y", float32, wide, Runs([np.ones(16, F32), jumped, np.ones(16, F32)], []), 8.0)
    assert found.jumps.tolist() == [place == 3 for place in range(16)]
    assert found.masked[3]
    assert found.jumping == 1 / 16
    alone_ = expect("y", float32, wide, Runs([np.ones(16, F32)], []), 8.0)
    assert alone_.masked.all()
    assert not alone_.is_shaped


def test_run_jumps_from_twice_the_tolerance_on() -> None:
    wide = np.linspace(1, 2, 64)
    moved = around(wide, 1e-6, -1e-6, 1e-6)
    tolerance = expect("y", float32, wide, Runs(moved, []), 8.0).tolerance[3]
    for times, jumps in ((0.9, 0), (1.8, 0), (2.6, 1)):
        moved[1][3] = wide[3] + times * tolerance
        assert expect("y", float32, wide, Runs(moved, []), 8.0).jumps.sum() == jumps, times


def test_jump_that_only_scouts_meet_is_a_jump_and_jumps_in_no_run() -> None:
    wide, scout = np.ones(16), np.ones(16, F32)
    scout[3] = 5.0
    found = expect("y", float32, wide, Runs([np.ones(16, F32)] * 2, [scout]), 8.0)
    assert found.jumps.sum() == 1
    assert found.jumping == 0.0
    # Scouts have more noise: what they move by as much more is no jump.
    moved = expect(
        "y", float32, wide, Runs(around(wide, 1e-5, -1e-5), around(wide, SCOUT * 1e-5)), 8.0
    )
    assert not moved.jumps.any()


def test_run_of_another_shape_leaves_the_shape_open() -> None:
    wide = np.ones(4)
    runs = Runs([np.ones(4, F32), np.ones(4, F32), np.ones(3, F32)], [])
    found = expect("y", float32, wide, runs, 8.0)
    assert not found.is_shaped
    assert not found.masked.any()


def test_integers_and_codes_may_be_what_runs_made_them() -> None:
    wide = np.array([1, 2, 3], np.int32)
    runs = Runs([wide, wide + np.array([0, 0, 5], np.int32)], [wide])
    found = expect("y", int32, wide, runs, 8.0)
    assert found.masked.tolist() == [False, False, True]
    assert found.jumping == pytest.approx(1 / 3)
    assert (found.tolerance == 0).all()
    codes = expect(
        "y", int8, wide.astype(np.int8), Runs([x.astype(np.int8) for x in runs.all], []), 8.0
    )
    assert codes.tolerance.tolist() == [0, 0, 5]
    assert not codes.masked.any()


def test_exact_answer_allows_its_own_rounding_only() -> None:
    found = expect_exact("y", float32, np.array([0.1, 0.5]))
    assert found.tolerance[1] == 0
    assert found.tolerance[0] == abs(float(F32(0.1)) - 0.1)
    assert verdict(found, [0.1, 0.5]).status == "right"
    assert verdict(found, [np.nextafter(F32(0.1), F32(1)), 0.5]).status == "wrong"
    assert expect_exact("y", int64, np.array([1])).tolerance.tolist() == [0]


@pytest.mark.parametrize("distinct", [6, 7])
def test_slices_have_limits_from_a_tenth_of_distinct_elements_on(distinct: int) -> None:
    wide = 1.0 + np.arange(64.0) % distinct
    runs = Runs(around(wide, 1e-6, -1e-6, 2e-6), [])
    found = expect("y", float32, wide, runs, 8.0, slices=True)
    assert bool(found.slices) == (distinct / 64 >= ALIKE)
    assert expect("y", float32, wide, runs, 8.0).slices == ()


def test_rms_is_taken_of_the_whole_and_of_each_slice() -> None:
    whole, rows, columns = slice_rms(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(whole, [2.5])
    np.testing.assert_allclose(rows, [np.sqrt(12.5), 0])
    np.testing.assert_allclose(columns, [np.sqrt(4.5), np.sqrt(8)])


def test_classes_and_codes() -> None:
    found = classes(np.array([np.nan, np.inf, -np.inf, 0.0, -1.0]))
    assert found.tolist() == [2, 1, -1, 0, 0]
    assert classes(np.array([complex(np.inf, 0), 1j, complex(np.nan, 1)])).tolist() == [1, 0, 2]
    assert classes(np.array([1, 2])).tolist() == [0, 0]
    assert [is_code(of) for of in (int8, int32, float16, dtype("float8_e4m3fn"), bool_)] == [
        True, False, False, True, False,
    ]  # fmt: skip


# -- noise


def test_noise_moves_about_three_in_ten_by_a_last_place_and_no_further() -> None:
    graph, _ = graph_of(ops.exp, [np.ones(3, F32)], {})
    noise = Noise(0, Scales(graph, {}))
    x = RNG.uniform(1, 2, 20_000).astype(F32)
    moved = noise.moved(x, float32)
    steps = np.abs(moved.view(np.int32) - x.view(np.int32))
    assert steps.max() == 1
    assert 0.25 < (steps > 0).mean() < 0.35
    assert moved.dtype == x.dtype
    up, down = (moved > x).mean(), (moved < x).mean()
    assert abs(up - down) < 0.02


def test_same_run_has_the_same_noise_and_another_run_another() -> None:
    graph, _ = graph_of(ops.exp, [np.ones(3, F32)], {})
    x = RNG.uniform(1, 2, 1000).astype(F32)

    def moved(seed: int, run: int) -> Array:
        noise = Noise(seed, Scales(graph, {}))
        noise.start(run)
        return noise.moved(x, float32)

    np.testing.assert_array_equal(moved(1, 2), moved(1, 2))
    assert (moved(1, 2) != moved(1, 3)).any()
    assert (moved(1, 2) != moved(2, 2)).any()


def test_noise_leaves_integers_codes_and_what_is_not_finite_alone() -> None:
    graph, _ = graph_of(ops.exp, [np.ones(3, F32)], {})
    noise = Noise(0, Scales(graph, {}))
    whole = np.arange(5)
    assert noise.moved(whole, int64) is whole
    empty = np.zeros(0, F32)
    assert noise.moved(empty, float32) is empty
    odd = np.array([np.nan, np.inf, -np.inf, 0.0] * 50, F32)
    np.testing.assert_array_equal(noise.moved(odd, float32), odd)


def test_only_inputs_of_inexact_nodes_are_moved() -> None:
    def function(x: Any, y: Any, n: Any) -> Any:
        return np.exp(x), y[::-1], n + 1

    spec = fw.Spec((4,), "float32")
    graph = fw.trace(function, spec, spec, fw.Spec((4,), "int64"))
    assert felt_inputs(graph) == [float32, None, None]


def test_exact_nodes_are_those_that_compute_no_rounding() -> None:
    x, n = Value(TensorType(float32, (4,)), "x"), Value(TensorType(int64, (4,)), "n")
    exact = {
        "exp": (ops.exp(x), False),
        "flip": (ops.flip(x, axes=(0,)), True),
        "add of integers": (ops.add(n, n), True),
        "add of floats": (ops.add(x, x), False),
        "compare": (ops.less(x, x), True),
        # Composites: those that say so, and those of exact parts.
        "relu": (ops.relu(x), True),
        "clip": (ops.clip(x, x, x), True),
        "silu": (ops.silu(x), False),
        "scatter of a cache": (
            ops.tensor_scatter(*(Value(TensorType(float32, (2, n, 3))) for n in (4, 1))),
            True,
        ),
    }
    for name, (value, wanted) in exact.items():
        assert value.node is not None
        assert is_exact(value.node) == wanted, name


def test_wide_answers_have_float64() -> None:
    graph, inputs = graph_of(ops.exp, [np.ones(3, F32)], {})
    ((expected,),) = Oracle(graph, inputs).values(graph.outputs).values()
    assert expected.wide.dtype == float64.numpy
    np.testing.assert_allclose(expected.wide, np.e, rtol=1e-15)
    assert expected.stored.dtype == F32


def test_what_sizes_decide_on_an_edge_is_as_the_own_dtypes_have_it() -> None:
    """T5 puts distances in buckets by a logarithm that is a whole number for some."""

    x = Value(TensorType(float32, (16,)), "x")
    distance = constant(np.arange(8, 136, 8, dtype=F32))
    share = ops.divide(ops.log(ops.divide(distance, F32(8))), F32(math.log(16)))
    bucket = ops.cast(ops.multiply(share, F32(8)), dtype=int64)
    bias = ops.gather(constant(np.arange(9, dtype=F32) * 10), bucket, axis=0)
    graph = Graph([x], [ops.add(x, ops.reduce_sum(bias))])
    inputs = [RNG.normal(size=16).astype(F32)]
    right = interpret(graph, inputs)[0]
    oracle = Oracle(graph, inputs)
    assert oracle._judge_outputs([right])[0].status == "cannot say"
    assert oracle.judge([right]).status == oracle.verdict([right]).status == "right"
    # Who decides otherwise may be right, too: one bucket less.
    assert oracle.verdict([right - 10]).status == "cannot say"
