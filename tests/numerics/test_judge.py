"""Verdicts on single ops and small regions."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.judge import Verdict, judge_op
from fusewire.ops.declare import Op
from fusewire.ops.interpret import graph_of, interpret
from fusewire.ops.table import get_op

F32 = np.float32


def f32(values: Any) -> Array:
    return np.array(values, F32)


def judged(op: Op[Any], operands: list[Any], got: Any, **attrs: Any) -> Verdict:
    graph, inputs = graph_of(op, operands, attrs)
    return judge_op(graph, inputs, [got])


def test_rounded_answer_is_right() -> None:
    x = f32([0.1, 1.0, 10.0])
    verdict = judged(ops.exp, [x], np.exp(x))
    assert (verdict.status, verdict.unjudged) == ("right", 0.0)
    assert 0.0 < verdict.error < 0.5


def test_reason_names_output_place_both_values_and_tolerance() -> None:
    x = f32([[1.0, 2.0], [3.0, 4.0]])
    got = np.exp(x)
    got[1, 0] = 20.0
    verdict = judged(ops.exp, [x], got)
    assert verdict.status == "wrong"
    assert verdict.error > 1e3
    assert verdict.reason.startswith("output0[1, 0] is 20.0, expected 20.08")
    assert "1 of 4 elements are off" in verdict.reason


@pytest.mark.parametrize("planted", [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("place", range(4))
def test_another_class_is_wrong(planted: float, place: int) -> None:
    x = f32([np.nan, np.inf, -np.inf, 1.0])
    right = np.negative(x)
    got = right.copy()
    got[place] = planted
    same = np.array_equal(got, right, equal_nan=True)
    assert judged(ops.negative, [x], right).status == "right"
    assert judged(ops.negative, [x], got).status == ("right" if same else "wrong")


def test_near_the_largest_number_either_class_is_right() -> None:
    largest = np.finfo(F32).max
    edge = f32([np.log(largest)])
    assert judged(ops.exp, [edge], f32([np.inf])).status == "right"
    assert judged(ops.exp, [edge], f32([largest])).status == "right"
    assert judged(ops.exp, [f32([80.0])], f32([np.inf])).status == "wrong"


def test_integers_are_exact_to_the_last_digit() -> None:
    x = np.array([2**62 + 1], np.int64)
    assert judged(ops.add, [x, x], x + x).status == "right"
    assert judged(ops.add, [x, x], x + x + 1).status == "wrong"


@pytest.mark.parametrize("shape", [(), (1,)])
def test_integers_of_either_sign_are_as_far_apart_as_they_are(shape: tuple[int, ...]) -> None:
    graph, inputs = graph_of(get_op("negative"), [np.full(shape, 3, np.int64)], {})
    assert judge_op(graph, inputs, [np.full(shape, -3, np.int64)]).status == "right"
    assert judge_op(graph, inputs, [np.full(shape, 4, np.int64)]).status == "wrong"


def test_comparison_is_exact_though_its_operands_are_equal() -> None:
    x = f32([1.0, 2.0])
    assert judged(ops.equal, [x, x], np.array([True, True])).status == "right"
    assert judged(ops.equal, [x, x], np.array([True, False])).status == "wrong"


def test_another_dtype_or_shape_is_wrong() -> None:
    x = f32([1.0])
    assert "is float64, expected float32" in judged(ops.exp, [x], np.exp([1.0])).reason
    assert "has shape [1, 1], expected [1]" in judged(ops.exp, [x], np.exp(x)[None]).reason


def test_empty_and_scalar_are_judged() -> None:
    assert judged(ops.exp, [np.zeros((0, 3), F32)], np.zeros((0, 3), F32)).status == "right"
    assert judged(ops.exp, [F32(0.0)], np.asarray(F32(1.1))).status == "wrong"


def test_codes_near_a_tie_may_differ_by_one_and_are_counted() -> None:
    x = np.linspace(-1, 1, 64, dtype=F32)
    x[7] = 0.25
    graph, inputs = graph_of(ops.quantize, [x, F32(0.1)], {"dtype": "int8"})
    got = interpret(graph, inputs)
    other = got[0].copy()
    other[7] += 1 if other[7] == 2 else -1
    verdict = judge_op(graph, inputs, [other])
    assert (verdict.status, verdict.codes_differ) == ("right", 1)
    other[20] += 1
    assert judge_op(graph, inputs, [other]).status == "wrong"


def test_strings_are_compared() -> None:
    x, y = np.array(["a", "b"], object), np.array(["c", "d"], object)
    assert judged(ops.string_concat, [x, y], np.array(["ac", "bd"], object)).status == "right"
    assert judged(ops.string_concat, [x, y], np.array(["ac", "b"], object)).status == "wrong"


def test_elements_of_a_sequence_are_judged() -> None:
    items = [f32([1.0]), f32([2.0])]
    graph, inputs = graph_of(ops.sequence_construct, items, {})
    assert judge_op(graph, inputs, [items]).status == "right"
    assert "output0[1]" in judge_op(graph, inputs, [[items[0], f32([3.0])]]).reason
    assert "2 tensors expected, found 1" in judge_op(graph, inputs, [items[:1]]).reason


def floor_of_thirds(x: Array) -> tuple[Graph, list[Array]]:
    """A region that jumps where a product that is rounded meets an integer."""
    value = Value(TensorType(float32, x.shape), "x")
    return Graph([value], [ops.floor(ops.multiply(value, F32(1 / 3)))]), [x]


def test_region_is_masked_near_a_jump_and_judged_elsewhere() -> None:
    x = np.linspace(0.5, 9.5, 40, dtype=F32)
    x[3] = 3.0
    graph, inputs = floor_of_thirds(x)
    (got,) = interpret(graph, inputs)
    other = got.copy()
    other[3] = 1.0 - other[3]
    verdict = judge_op(graph, inputs, [other])
    assert (verdict.status, verdict.jumps, verdict.unjudged) == ("right", 1, 1 / 40)
    other[10] += 1
    assert judge_op(graph, inputs, [other]).status == "wrong"


def test_too_many_jumps_leave_nothing_to_say() -> None:
    graph, inputs = floor_of_thirds(f32([3.0, 6.0, 1.0, 2.0]))
    (got,) = interpret(graph, inputs)
    verdict = judge_op(graph, inputs, [f32([1.0 - got[0], 3.0 - got[1], 0.0, 0.0])])
    assert verdict.status == "cannot say"
    assert verdict.unjudged >= 0.5
    assert "near a jump" in verdict.reason


def test_exact_answer_is_right_however_near_a_jump_it_lies() -> None:
    graph, inputs = floor_of_thirds(f32([3.0, 6.0, 1.0, 2.0]))
    exact = interpret(graph, inputs, wide=True)
    verdict = judge_op(graph, inputs, [exact[0].astype(F32)])
    assert (verdict.status, verdict.unjudged) == ("right", 0.0)
    assert verdict.jumps >= 2


def test_answer_without_digits_cannot_be_judged() -> None:
    value = Value(TensorType(float32, (8,)), "x")
    lost = ops.subtract(ops.add(value, F32(1e9)), F32(1e9))
    graph = Graph([value], [lost])
    inputs = [np.linspace(1, 2, 8, dtype=F32)]
    assert judge_op(graph, inputs, interpret(graph, inputs)).status == "cannot say"


def test_verdict_is_the_same_every_time() -> None:
    graph, inputs = graph_of(ops.softmax, [np.linspace(-1, 1, 9, dtype=F32)], {"axis": -1})
    got = interpret(graph, inputs)
    assert judge_op(graph, inputs, got) == judge_op(graph, inputs, got)
