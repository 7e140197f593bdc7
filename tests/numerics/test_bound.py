"""Bounds of single ops, from their declarations."""

from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.ir.graph import Array
from fusewire.numerics.bound import op_bound
from fusewire.ops.declare import Op
from fusewire.ops.interpret import Interpreter, graph_of

EPS = float(np.finfo(np.float32).eps)


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


def bounds(op: Op[Any], *operands: Any, **attrs: Any) -> list[Array]:
    graph, inputs = graph_of(op, operands, attrs)
    wide = Interpreter(graph, wide=True)
    outputs = wide(inputs)
    stored = [wide.store(x, v.type) for x, v in zip(inputs, graph.inputs, strict=True)]
    return op_bound(op, graph.nodes[0], stored, outputs)


def test_exact_op_has_no_tolerance() -> None:
    (bound,) = bounds(ops.negative, f32([1.0, -3.0]))
    assert not bound.any()


def test_exact_rounding_may_only_round() -> None:
    x = f32([1.0, 0.1])
    (bound,) = bounds(ops.cast, x, dtype="float16")
    assert bound[0] == 0.0
    assert bound[1] == abs(float(np.float16(x[1])) - float(x[1]))


def test_ulps_are_of_the_stored_dtype_and_the_value() -> None:
    for of in (np.float16, np.float32):
        (bound,) = bounds(ops.exp, np.array([0.0, 1.0], of))
        np.testing.assert_allclose(bound, 4 * np.finfo(of).eps * np.exp([0, 1]), rtol=1e-2)


def test_float64_allows_for_the_rounding_of_the_oracle_too() -> None:
    (bound,) = bounds(ops.exp, np.zeros(1))
    assert bound[0] == pytest.approx(8 * np.finfo(np.float64).eps)


def test_what_underflows_may_be_flushed_to_zero() -> None:
    (bound,) = bounds(ops.exp, f32([-90.0]))
    assert bound[0] >= np.finfo(np.float32).smallest_normal


def test_complex_is_bounded_by_magnitude() -> None:
    (bound,) = bounds(ops.exp, np.array([1j * np.pi / 2], np.complex64))
    assert bound[0] == pytest.approx(4 * EPS, rel=1e-2)


def test_sum_is_bounded_by_magnitudes_where_terms_cancel() -> None:
    a = f32([[1e4, -1e4, 1.0]])
    (bound,) = bounds(ops.matmul, a, np.ones((3, 1), np.float32))
    assert bound[0, 0] == pytest.approx(4 * EPS * np.sqrt(6) * 20001, rel=0.2)


def test_terms_of_a_composite_are_those_of_its_expansion() -> None:
    x, w = f32(np.ones((1, 512))), f32(np.ones((1, 512)))
    (whole,) = bounds(ops.linear, x, w)
    (parts,) = bounds(ops.matmul, x, w.T)
    np.testing.assert_allclose(whole, parts, rtol=0.01)


def test_scaled_bound_is_the_same_everywhere_and_knows_conditioning() -> None:
    good = bounds(ops.inverse, np.diag(f32([1.0, 1.0])))[0]
    bad = bounds(ops.inverse, f32([[1.0, 1.0], [1.0, 1.001]]))[0]
    assert len(set(good.ravel())) == 1
    assert bad.max() > 1e3 * good.max()


def test_composite_is_bounded_by_the_spread_of_its_expansion() -> None:
    (bound,) = bounds(ops.softmax, f32([0.0, 1.0, 2.0]), axis=-1)
    assert np.all(bound > EPS * 0.05)
    assert np.all(bound < EPS * 30)


def test_composite_that_only_moves_is_exact() -> None:
    (bound,) = bounds(ops.expand_dims, f32([1.5]), axes=(0,))
    assert not bound.any()


def test_codes_may_differ_by_one_at_the_edge_between_two_and_nowhere_else() -> None:
    x = f32([0.25, 0.26, 0.24, 0.75 * (1 + EPS)])
    (bound,) = bounds(ops.quantize, x, np.float32(0.1), dtype="int8")
    assert bound.tolist() == [1.0, 0.0, 0.0, 1.0]
