"""Every primitive that says how it is made of simpler ones is right when it is made so."""

from typing import Any

import numpy as np
import pytest

from fusewire.dtypes import FLOATS, float32, float64
from fusewire.ops.declare import Op
from fusewire.ops.decompose import OPS, Expression, Grade
from fusewire.ops.elementwise import exp, expm1, lgamma
from fusewire.ops.interpret import graph_of, interpret
from fusewire.ops.table import all_ops, verify
from fusewire.testing.conformance import Case, cases, value_problems

DECOMPOSED = [op for op in all_ops().values() if op.decompose is not None]


def _cases(op: Op[Any]) -> list[Case]:
    return [case for case in cases([op]) if case.dtype in FLOATS]


@pytest.mark.parametrize("grade", ["narrow", "wide"])
@pytest.mark.parametrize("op", DECOMPOSED, ids=[op.name for op in DECOMPOSED])
def test_decomposition_is_right_in_every_float(op: Op[Any], grade: Grade) -> None:
    for case in _cases(op):
        graph, inputs = case.make()
        simpler = op.decomposition(graph.nodes[0], grade)
        if simpler is None:
            assert op.decompose is not None
            assert op.decompose.narrow is None
            assert (grade, case.dtype is float64) == ("narrow", False)
            continue
        verify(simpler)
        assert op.name not in [node.op for node in simpler.nodes]
        assert not value_problems(graph, inputs, interpret(simpler, inputs)), case.id


@pytest.mark.parametrize("grade", ["narrow", "wide"])
@pytest.mark.parametrize("op", DECOMPOSED, ids=[op.name for op in DECOMPOSED])
def test_decomposition_is_right_far_beyond_the_samples(op: Op[Any], grade: Grade) -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([10 ** rng.uniform(-30, 30, 1000), 10 ** rng.uniform(-4, 2.5, 2000)])
    x = np.concatenate([sizes, -sizes, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    operands = [x, rng.permutation(x)][: len(op.parameters[0])]
    simpler = op.decomposition(graph_of(op, operands, {})[0].nodes[0], grade)
    if simpler is None:
        return
    with np.errstate(all="ignore"):
        (got,) = (found.astype(np.float64) for found in interpret(simpler, operands))
        assert op.reference is not None
        want = op.reference(*(operand.astype(np.float64) for operand in operands))
        ulp = np.finfo(np.float32).eps * np.maximum(np.abs(want), np.finfo(np.float32).tiny)
        same = (got == want.astype(np.float32)) | (np.isnan(got) & np.isnan(want))
        wrong = ~same & ~(np.abs(got - want) <= op.tolerance.ulps * ulp)
    assert not wrong.any(), [(operand[wrong][:3], got[wrong][:3]) for operand in operands]


@pytest.mark.parametrize("op", DECOMPOSED, ids=[op.name for op in DECOMPOSED])
def test_decomposition_ends(op: Op[Any]) -> None:
    """What it is made of is never made of it."""
    waiting, seen = [op], set[str]()
    while waiting:
        current = waiting.pop()
        case = next(case for case in _cases(current) if case.dtype is float64)
        simpler = current.decomposition(case.make()[0].nodes[0], "wide")
        parts = {node.op for node in simpler.nodes} if simpler is not None else set()
        assert op.name not in parts
        waiting += [all_ops()[name] for name in parts - seen if all_ops()[name].decompose]
        seen |= parts


def test_float32_stays_float32_in_the_narrow_grade() -> None:
    graph, _ = graph_of(expm1, [np.ones(3, np.float32)], {})
    narrow = expm1.decomposition(graph.nodes[0], "narrow")
    wide = expm1.decomposition(graph.nodes[0], "wide")
    assert narrow is not None
    assert wide is not None
    assert float64 not in {v.tensor.dtype for node in narrow.nodes for v in node.operands}
    assert float64 in {v.tensor.dtype for node in wide.nodes for v in node.operands}


def test_op_that_needs_the_digits_of_float64_has_no_narrow_grade() -> None:
    graph, _ = graph_of(lgamma, [np.ones(3, np.float32)], {})
    assert lgamma.decomposition(graph.nodes[0], "narrow") is None


def test_op_without_a_decomposition_has_none() -> None:
    graph, _ = graph_of(exp, [np.ones(3, np.float32)], {})
    assert exp.decomposition(graph.nodes[0], "wide") is None


def test_expression_has_the_operators_of_an_array() -> None:
    from fusewire.ir.graph import Graph, Value
    from fusewire.ir.types import TensorType

    x, y = (Value(TensorType(float32, (4,)), name) for name in "xy")
    a, b = Expression(x), Expression(y)
    made = [
        -a, a + b, 2.0 + a, a - b, 2.0 - a, a * b, 2.0 * a, a / b, 2.0 / a,
        a < b, a <= b, a > b, a >= b, a == b, a != b, (a < b) & (b < 1.0), (a < b) | ~(b < 1.0),
    ]  # fmt: skip
    p = np.array([-1.5, 0.5, 2.0, 0.5], np.float32)
    q = np.array([0.5, 0.5, -3.0, 7.0], np.float32)
    expected = [
        -p, p + q, 2.0 + p, p - q, 2.0 - p, p * q, 2.0 * p, p / q, 2.0 / p,
        p < q, p <= q, p > q, p >= q, p == q, p != q, (p < q) & (q < 1.0), (p < q) | ~(q < 1.0),
    ]  # fmt: skip
    names = [f"output{i}" for i in range(len(made))]
    graph = Graph([x, y], [e.value for e in made], output_names=names)
    for got, want in zip(interpret(graph, [p, q]), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    assert OPS.exp(a).value.node is not None
