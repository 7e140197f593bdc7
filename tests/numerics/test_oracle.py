"""The oracle of whole graphs; planted faults must turn red (in full: benchmarks/oracle.py)."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from benchmarks.oracle import NETS, TRIALS_PER_NET, Net, Record, measure, run_engine
from fusewire import ops
from fusewire.dtypes import float32
from fusewire.errors import GraphError, ShapeMismatchError
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import interpret

F32 = np.float32


@pytest.fixture(scope="module", params=NETS)
def record(request: pytest.FixtureRequest) -> Record:
    """One net of each kind, with right engines and planted faults: 2% of the benchmark."""
    found = Record(request.param)
    measure(NETS[request.param], [3, 1], found, torch=False, before=False)
    return found


def test_tolerance_is_within_100_times_the_true_error(record: Record) -> None:
    assert max(record.rms_ratios) < 100
    assert max(record.max_ratios) < 100


def test_other_orders_of_summation_raise_no_alarm(record: Record) -> None:
    assert record.judged >= 3 * 13
    assert record.alarms == 0
    assert record.highest < 0.8


def test_planted_error_is_caught_at_its_layer(record: Record) -> None:
    assert record.trials == TRIALS_PER_NET
    assert record.caught_at_layer == record.trials


def test_planted_error_that_reaches_the_output_is_caught_there(record: Record) -> None:
    assert record.reached > 0
    assert record.caught_at_output >= 0.9 * record.reached


@pytest.fixture(scope="module")
def judged() -> tuple[Net, Array, Oracle]:
    rng = np.random.default_rng(11)
    net = NETS["mlp"](rng)
    x = net.draw(rng)
    return net, x, Oracle(net.graph, [x])


def test_error_too_small_for_any_element_is_caught_by_the_slices(
    judged: tuple[Net, Array, Oracle],
) -> None:
    net, x, oracle = judged
    (got,) = interpret(net.graph, [x])
    shifted = (got + oracle.tolerance[0] * 0.2).astype(F32)
    verdict = oracle.judge([shifted])
    assert verdict.status == "wrong"
    assert "times what rounding explains" in verdict.reason
    one_row = got.copy()
    one_row[5] = shifted[5]
    assert "slice 5 of axis 0 of output0" in oracle.judge([one_row]).reason


def test_half_precision_inside_is_caught(judged: tuple[Net, Array, Oracle]) -> None:
    net, x, oracle = judged

    def careless(a: Array, b: Array) -> Array:
        return np.asarray(a.astype(np.float16).astype(F32) @ b)

    values = run_engine(net.graph, x, careless)
    assert oracle.judge([values[net.graph.outputs[0]]]).status == "wrong"


def test_same_seed_gives_the_same_oracle(judged: tuple[Net, Array, Oracle]) -> None:
    net, x, oracle = judged
    again = Oracle(net.graph, [x])
    again.values(net.layers)
    assert np.array_equal(again.tolerance[0], oracle.tolerance[0])
    other = Oracle(net.graph, [x], seed=1)
    assert not np.array_equal(other.tolerance[0], oracle.tolerance[0])


def test_nodes_and_inputs_can_be_asked_for(judged: tuple[Net, Array, Oracle]) -> None:
    net, x, oracle = judged
    node = net.graph.nodes[3]
    ((expected,),) = oracle.values([node]).values()
    assert expected.wide.dtype == np.float64
    assert oracle.judge_value(net.graph.inputs[0], x).status == "right"
    assert oracle.judge_value(net.graph.inputs[0], x + 1).status == "wrong"
    with pytest.raises(GraphError, match="not a value of the graph"):
        oracle.values([Value(TensorType(float32, ()), "stranger")])


def test_misuse_is_refused(judged: tuple[Net, Array, Oracle]) -> None:
    net, x, oracle = judged
    with pytest.raises(ShapeMismatchError, match="has 1 outputs, found 2"):
        oracle.judge([x, x])
    with pytest.raises(ValueError, match="at least 2 runs"):
        Oracle(net.graph, [x], runs=1)


def small(shape: tuple[int, ...], make: Any) -> Graph:
    """Make a graph: a matrix product, then what ``make`` says."""
    x = Value(TensorType(float32, shape), "x")
    weights = np.random.default_rng(1).normal(size=(shape[-1], shape[-1])).astype(F32)
    outputs = make(ops.matmul(x, constant(weights)))
    return Graph([x], list(outputs) if isinstance(outputs, tuple) else [outputs])


def drawn(*shape: int) -> Array:
    return np.random.default_rng(2).normal(size=shape).astype(F32)


def test_argmax_is_exact_away_from_a_tie_and_masked_at_one() -> None:
    graph = small((32, 8), lambda y: ops.argmax(ops.concat(y, y, axis=1), axis=1, last=True))
    (got,) = interpret(graph, [drawn(32, 8)])
    other = got.copy()
    other[3] = (other[3] + 1) % 16
    oracle = Oracle(graph, [drawn(32, 8)])
    assert oracle.judge([got]).status == "right"
    assert oracle.judge([other]).status == "wrong"
    tied = Graph(graph.inputs, [ops.argmax(_tie(graph.inputs[0]), axis=1)])
    verdict = Oracle(tied, [drawn(32, 8)]).judge(interpret(tied, [drawn(32, 8)]))
    assert verdict.status == "cannot say"
    assert verdict.jumps > 0


def _tie(x: Value) -> Any:
    """Two columns that are equal but for rounding."""
    row = ops.reduce_sum(x, axes=(1,), keepdims=True)
    return ops.concat(row, ops.multiply(ops.multiply(row, F32(3.0)), F32(1 / 3)), axis=1)


def test_jump_within_a_last_place_of_an_input_is_masked() -> None:
    x = Value(TensorType(float32, (40,)), "x")
    graph = Graph([x], [ops.floor(ops.multiply(x, F32(1 / 3)))])
    given = np.linspace(0.5, 9.5, 40, dtype=F32)
    given[3] = 3.0
    (got,) = interpret(graph, [given])
    other = got.copy()
    other[3] = 1 - got[3]
    oracle = Oracle(graph, [given])
    assert (oracle.judge([other]).status, oracle.judge([other]).jumps) == ("right", 1)
    other[10] += 1
    assert oracle.judge([other]).status == "wrong"


def test_codes_of_a_quantized_layer_are_counted() -> None:
    def quantized(y: Any) -> Any:
        return ops.quantize(y, F32(0.01), dtype="int8")

    graph, x = small((64, 16), quantized), drawn(64, 16)
    oracle = Oracle(graph, [x])
    (got,) = interpret(graph, [x])
    verdict = oracle.judge([got])
    assert (verdict.status, verdict.codes_differ) == (
        "right",
        int((got != oracle.outputs[0]).sum()),
    )
    off = got.copy()
    place = tuple(np.argwhere((oracle.tolerance[0] == 0) & (np.abs(got) < 100))[0])
    off[place] += 1
    assert oracle.judge([off]).status == "wrong"


def test_shape_that_depends_on_a_jump_cannot_be_judged() -> None:
    def positives(y: Any) -> Any:
        zero = ops.subtract(y, ops.multiply(ops.multiply(y, F32(3.0)), F32(1 / 3)))
        return ops.boolean_mask(y, ops.greater(zero, F32(0.0)))

    graph, x = small((16, 8), positives), drawn(16, 8)
    verdict = Oracle(graph, [x]).judge(interpret(graph, [x]))
    assert verdict.status == "cannot say"
    assert "its shape depends on a jump" in verdict.reason


def test_low_precision_is_judged_by_its_own_noise() -> None:
    x = Value(TensorType(float32, (8, 32)), "x")
    half = ops.cast(x, dtype="bfloat16")
    weights = constant((drawn(32, 32) * 0.2).astype(half.type.dtype.numpy))
    graph = Graph([x], [ops.tanh(ops.matmul(half, weights))])
    oracle = Oracle(graph, [drawn(8, 32)])
    (got,) = interpret(graph, [drawn(8, 32)])
    assert oracle.judge([got]).status == "right"
    assert oracle.judge([(got.astype(F32) * 1.1).astype(got.dtype)]).status == "wrong"


def test_error_that_equal_elements_share_counts_once() -> None:
    weights = np.random.default_rng(3).normal(size=(24, 24)).astype(np.float32) / 5
    varied = np.random.default_rng(4).normal(size=(64, 24)).astype(np.float32)
    statuses = []
    for x in (np.ones((64, 24), np.float32), varied):
        oracle = Oracle(fw.trace(lambda x: np.tanh(x @ weights), x), [x])
        # One column is off by a few spreads, in all of its rows.
        off = oracle.outputs[0] + oracle.tolerance[0] / 10 * (np.arange(24) == 5)
        statuses.append(oracle.judge([off.astype(np.float32)]).status)
    assert statuses == ["right", "wrong"]


def test_slices_of_an_answer_that_is_alike_everywhere_are_not_judged() -> None:
    blank = np.zeros((1, 4, 64, 64), np.float32)
    weights = np.random.default_rng(5).normal(size=(3, 4, 3, 3)).astype(np.float32)
    bias = np.random.default_rng(6).normal(size=3).astype(np.float32)
    attrs = {"strides": (1, 1), "padding": ((1, 1), (1, 1))}
    x = Value(TensorType(float32, blank.shape), "x")
    first = ops.conv(x, constant(weights), constant(bias), **attrs)
    graph = Graph([x], [ops.tanh(ops.conv(first, constant(weights[:, :3]), **attrs))])
    blanks, noise = (
        Oracle(graph, [given]).values(graph.outputs)[graph.outputs[0]][0]
        for given in (blank, np.random.default_rng(7).normal(size=blank.shape).astype(np.float32))
    )
    assert blanks.slices == ()
    assert len(noise.slices) == 5


@pytest.mark.parametrize(("given", "count"), [(np.zeros, 0), (np.ones, 0), (None, 3)])
def test_slices_of_what_blank_inputs_give_are_not_judged(given: Any, count: int) -> None:
    weights = np.random.default_rng(8).normal(size=(32, 3)).astype(np.float32)
    x = np.random.default_rng(9).normal(size=(1, 32)).astype(np.float32)
    x = x if given is None else given(x.shape, np.float32)
    graph = fw.trace(lambda x: np.tanh(x + 1) @ weights, x)
    (expected,) = Oracle(graph, [x]).values(graph.outputs)[graph.outputs[0]]
    assert len(expected.slices) == count
