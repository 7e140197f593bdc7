"""The passes: folding, sharing, dead code, sizes, legalizing, specializing, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fusewire.dtypes import float32
from fusewire.errors import DimError, TypeRuleError
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol, unbacked
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.hash import exact_hash
from fusewire.ir.parse import parse_type
from fusewire.ir.types import TensorType
from fusewire.ops.activation import gelu, silu
from fusewire.ops.contraction import matmul
from fusewire.ops.control import cond, scan, while_
from fusewire.ops.creation import range_
from fusewire.ops.dynamic import dynamic_broadcast_to, dynamic_reshape, dynamic_slice
from fusewire.ops.elementwise import add, exp, floor_divide, multiply, negative, sqrt
from fusewire.ops.indexing import gather, nonzero
from fusewire.ops.interpret import interpret
from fusewire.ops.logic import less
from fusewire.ops.movement import broadcast_to, concat, expand_dims, reshape, transpose
from fusewire.ops.normalization import layer_norm
from fusewire.ops.quantization import dequantize
from fusewire.ops.random import random_uniform
from fusewire.ops.shape import shape_of
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import get_op, verify
from fusewire.rewrite.cse import share
from fusewire.rewrite.dead import drop_dead
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.expand import expand, refuses_composites
from fusewire.rewrite.fold import Budget, ConstantFolder
from fusewire.rewrite.pipeline import PIPELINE, run_pipeline
from fusewire.rewrite.resolve import resolve
from fusewire.rewrite.rule import Rewritten
from fusewire.rewrite.specialize import specialize
from tests.rewrite.check import differences, rule_problems

FLAG = "bool[]"


def _input(text: str = "float32[n]", name: str = "x") -> Value:
    return Value(parse_type(text), name)


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def _fold(graph: Graph, budget: Budget = Budget()) -> Rewritten:
    return simplify(graph, [ConstantFolder(budget).rule])


def _weights(*shape: int) -> Value:
    return constant(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def _same(before: Graph, after: Graph, *inputs: object) -> None:
    verify(after)
    assert not list(differences(interpret(before, inputs), interpret(after, inputs)))


# ---- folding


def test_folding_is_a_rule_like_any_other() -> None:
    assert not rule_problems(ConstantFolder(Budget()).rule)


def test_constants_are_computed_and_shared_with_the_graph() -> None:
    x = _input("float32[n, 4]")
    done = _fold(Graph([x], [matmul(x, transpose(exp(_weights(3, 4)), perm=(1, 0)))]))
    assert _ops(done.graph) == ["matmul"]
    assert done.report.counts == {"fold": 2}


def test_random_numbers_of_a_constant_key_are_constants() -> None:
    drawn = random_uniform(constant(np.array([1, 2], np.uint32)), shape=(3,), dtype=float32)
    assert _ops(_fold(Graph([], [drawn])).graph) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: broadcast_to(constant(np.float32(1)), shape=(1000, 1000)), "bytes from 4"),
        (lambda: matmul(_weights(300, 300), _weights(300, 300)), "flops"),
        (lambda: dequantize(constant(np.array([1], np.int8)), constant(np.float32(2))), "codes"),
        (lambda: gather(_weights(3), constant(np.array(7)), axis=0), "fails"),
    ],
)
def test_what_is_not_folded_says_why(value: object, reason: str) -> None:
    assert callable(value)
    graph = Graph([], [value()])
    done = _fold(graph, Budget(flops=1_000_000))
    assert done.graph is graph
    (refused,) = done.report.refused
    assert reason in refused.reason


def test_budget_is_for_all_nodes_together() -> None:
    outputs = [exp(_weights(100)) for _ in range(5)]
    done = _fold(Graph([], outputs), Budget(flops=2000))
    assert done.report.counts["fold"] == 2
    assert len(done.report.refused) == 1


def test_large_constants_are_not_loaded_to_be_looked_at() -> None:
    def load() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        raise AssertionError("loaded")

    held = Constant(TensorType(float32, (10**6,)), load)
    x = _input("float32[1000000]")
    graph = Graph([x], [multiply(add(x, constant(held)), constant(held))])
    assert _ops(run_pipeline(graph).graph) == ["add", "multiply"]


# ---- sharing


def test_equal_nodes_and_constants_become_one() -> None:
    x, y = _input(), _input(name="y")
    first = add(exp(x), constant(np.float32(2)))
    second = add(constant(np.float32(2)), exp(x))
    done = share(Graph([x, y], [multiply(first, second), multiply(x, y), multiply(y, x)]))
    assert _ops(done.graph) == ["exp", "add", "multiply", "multiply"]
    assert len(done.graph.constants) == 1
    assert done.graph.outputs[1] is done.graph.outputs[2]


def test_attributes_that_python_calls_equal_stay_apart() -> None:
    x = _input()
    leaky = get_op("leaky_relu")
    outputs = [leaky(x, alpha=0.0), leaky(x, alpha=-0.0)]
    assert len(share(Graph([x], outputs)).graph.nodes) == 2


# ---- dead code


def test_unused_results_leave_subgraphs() -> None:
    x, flag = _input(), _input(FLAG, "flag")
    then = subgraph(lambda a, b: [exp(a), sqrt(b), a], x.type, x.type)
    otherwise = subgraph(lambda a, b: [a, negative(b), a], x.type, x.type)
    y = exp(x)
    outputs = cond(flag, x, y, then=then, otherwise=otherwise)
    before = Graph([flag, x], [outputs[0]], output_names=["out"])
    done = drop_dead(before)
    assert _ops(done.graph) == ["cond"] or _ops(done.graph) == ["exp", "cond"]
    node = done.graph.nodes[-1]
    assert len(node.outputs) == 1
    assert len(node.inputs) == 2
    for flagged in (True, False):
        _same(before, drop_dead(done.graph).graph, np.array(flagged), np.array([1, 2], np.float32))


def test_carried_value_that_nobody_needs_is_not_carried() -> None:
    x, n = _input("float32[3]"), _input("int64[]", "n")
    condition = subgraph(lambda i, a, b: [less(i, 3)], n.type, x.type, x.type)
    # a needs b, nobody needs a; b does without a.
    body = subgraph(lambda i, a, b: [add(i, 1), add(a, b), exp(b)], n.type, x.type, x.type)
    outputs = while_(n, x, x, condition=condition, body=body)
    before = Graph([n, x], [outputs[2]], output_names=["b"])
    done = drop_dead(before)
    assert len(done.graph.nodes[0].outputs) == 2
    _same(before, done.graph, np.int64(0), np.array([1, 2, 3], np.float32))
    needed = Graph([n, x], [outputs[1]], output_names=["a"])
    assert drop_dead(needed).graph is needed


def test_scan_without_rows_keeps_its_length() -> None:
    x, rows = _input("float32[2]"), _input("float32[m, 2]", "rows")
    body = subgraph(lambda a, r: [add(a, a), exp(r)], x.type, x.type)
    outputs = scan(x, rows, body=body, carries=1, scans=1)
    before = Graph([x, rows], [outputs[0]], output_names=["a"])
    done = drop_dead(before)
    assert done.graph.nodes[0].attrs["scans"] == 0
    _same(before, done.graph, np.array([1, 2], np.float32), np.zeros((3, 2), np.float32))


def test_rows_that_tell_the_length_of_a_scan_stay() -> None:
    x, rows = _input("float32[2]"), _input("float32[5]", "rows")
    body = subgraph(lambda a, r: [add(a, a), add(r, r)], x.type, parse_type("int64[1]"))
    outputs = scan(x, transpose(nonzero(rows), perm=(1, 0)), body=body, carries=1, scans=1)
    before = Graph([x, rows], [outputs[0]], output_names=["a"])
    given = np.ones(2, np.float32), np.array([0, 1, 2, 0, 3], np.float32)
    _same(before, run_pipeline(before).graph, *given)


# ---- sizes


def test_shape_arithmetic_is_folded_away() -> None:
    x = _input("float32[n, 3, 4]")
    sizes = shape_of(x)
    rows = expand_dims(gather(sizes, constant(np.array(0)), axis=0), axes=(0,))
    half = floor_divide(multiply(gather(sizes, constant(np.array([1])), axis=0), 4), 2)
    shape = concat(rows, constant(np.array([-1])), half, axis=0)
    y = dynamic_reshape(x, shape, dims=(unbacked(), unbacked(), unbacked()))
    z = dynamic_broadcast_to(
        y,
        concat(constant(np.array([2])), shape_of(y), axis=0),
        dims=(2, unbacked(), unbacked(), unbacked()),
    )
    before = Graph([x], [exp(z)], output_names=["z"])
    done = run_pipeline(before)
    assert str(done.graph.outputs[0].type) == "float32[2, n, 2, 6]"
    assert _ops(done.graph) == ["reshape", "exp", "broadcast_to"]
    for n in (1, 5):
        _same(before, done.graph, np.ones((n, 3, 4), np.float32))


def test_slice_by_computed_bounds_becomes_a_slice() -> None:
    x = _input("float32[n, 8]")
    last = gather(shape_of(x), constant(np.array([1])), axis=0)
    y = dynamic_slice(
        x, constant(np.array([2])), floor_divide(last, 2), axes=(1,), dims=(symbol("n"), unbacked())
    )
    done = run_pipeline(Graph([x], [y]))
    assert _ops(done.graph) == ["slice"]
    assert str(done.graph.outputs[0].type) == "float32[n, 2]"


def test_range_over_a_symbol_becomes_static() -> None:
    x = _input("float32[n, 8]")
    count = reshape(gather(shape_of(x), constant(np.array([0])), axis=0), shape=())
    zero, one = constant(np.array(0)), constant(np.array(1))
    before = Graph([x], [range_(zero, count, one)], output_names=["places"])
    done = run_pipeline(before)
    assert _ops(done.graph) == ["iota"]
    assert str(done.graph.outputs[0].type) == "int64[n]"
    _same(before, done.graph, np.ones((5, 8), np.float32))


def test_size_that_constants_tell_is_found() -> None:
    x = _input("float32[5]")
    found = nonzero(constant(np.array([True, False, True])))
    before = Graph([x], [gather(x, reshape(found, shape=found.tensor.shape[1:]), axis=0)])
    done = resolve(before)
    assert str(done.graph.outputs[0].type) == "float32[2]"
    assert done.report.fired
    _same(before, run_pipeline(before).graph, np.ones(5, np.float32))


def test_decided_branch_takes_the_place_of_cond() -> None:
    x = _input("float32[n]")
    of = parse_type("float32[k]")
    wide = subgraph(lambda a: [concat(a, a, axis=0)], of)
    thin = subgraph(lambda a: [exp(a)], of)
    rank = gather(shape_of(shape_of(x)), constant(np.array(0)), axis=0)
    told = (TensorType(float32, (unbacked(),)),)
    flag = less(rank, constant(np.array(2)))
    before = Graph([x], cond(flag, x, then=wide, otherwise=thin, types=told), output_names=["y"])
    done = run_pipeline(before)
    assert _ops(done.graph) == ["concat"]
    assert str(done.graph.outputs[0].type) == "float32[2*n]"
    _same(before, done.graph, np.ones(3, np.float32))


# ---- specializing


def _batch() -> Graph:
    x = _input("float32[batch, 3]")
    flag = _input(FLAG, "flag")
    of = parse_type("float32[b, 3]")
    body = subgraph(lambda a: [reshape(a, shape=(3, symbol("b")))], of)
    y = broadcast_to(reshape(x, shape=(symbol("batch") * 3,)), shape=(2, symbol("batch") * 3))
    (z,) = cond(flag, x, then=body, otherwise=body)
    return Graph([flag, x], [y, z], output_names=["y", "z"])


def test_specialized_graph_has_sizes_everywhere() -> None:
    done = specialize(_batch(), {"batch": 4})
    verify(done)
    assert [str(v.type) for v in done.outputs] == ["float32[2, 12]", "float32[3, 4]"]
    body = done.nodes[-1].attrs["then"]
    assert isinstance(body, Graph)
    assert str(body.inputs[0].type) == "float32[4, 3]"
    _same(_batch(), done, np.array(True), np.arange(12, dtype=np.float32).reshape(4, 3))


def test_loop_that_grows_keeps_its_own_symbol() -> None:
    x, i = _input("float32[n]"), _input("int64[]", "i")
    of = parse_type("float32[n]")
    condition = subgraph(lambda k, a: [less(k, 3)], i.type, of)
    body = subgraph(lambda k, a: [add(k, 1), concat(a, a, axis=0)], i.type, of)
    told = (i.type, TensorType(float32, (unbacked(),)))
    outputs = while_(i, x, condition=condition, body=body, types=told)
    before = Graph([i, x], [outputs[1]], output_names=["y"])
    done = specialize(before, {"n": 2})
    assert str(done.inputs[1].type) == "float32[2]"
    _same(before, done, np.int64(0), np.array([1, 2], np.float32))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(DimError, match="'rows'; their symbols: batch"):
        specialize(_batch(), {"rows": 4})
    x, y = _input("float32[n]"), _input("float32[3]", "y")
    with pytest.raises(TypeRuleError, match="broadcast"):
        specialize(Graph([x, y], [add(x, y)]), {"n": 2})


# ---- legalizing


def test_refused_composites_are_expanded_to_what_is_taken() -> None:
    x = _input("float32[n, 4]")
    graph = Graph([x], [gelu(layer_norm(x, axis=-1, epsilon=1e-5))])
    taken = {
        "gelu",
        "reduce_mean",
        "subtract",
        "multiply",
        "square",
        "add",
        "rsqrt",
        "sqrt",
        "divide",
        "cast",
        "reshape",
        "reciprocal",
        "variance",
    }
    graph, report = expand(graph, lambda n: None if n.op in taken else f"no kernel for {n.op}.")
    assert "gelu" in _ops(graph)
    assert "layer_norm" not in _ops(graph)
    assert {f.rule for f in report.fired} == {"expand"}
    assert all("no kernel for" in r.reason for r in report.refused)
    assert {n.op for n in graph.nodes} - taken == {r.reason.split()[3][:-1] for r in report.refused}


def test_bodies_are_expanded_too() -> None:
    x, flag = _input(), _input(FLAG, "flag")
    then, otherwise = (subgraph(lambda a, op=op: [op(a)], x.type) for op in (silu, gelu))
    graph = Graph([flag, x], cond(flag, x, then=then, otherwise=otherwise), output_names=["y"])
    done = expand(graph, refuses_composites)
    for inner in done.graph.walk():
        assert not any(get_op(node.op).is_composite for node in inner.nodes)
    _same(graph, done.graph, np.array(True), np.array([-1, 0, 2], np.float32))
    assert done.report.refused == ()


# ---- the order


def _mixed() -> Sequence[Graph]:
    x = _input("float32[n, 3]")
    y = transpose(add(transpose(x, perm=(1, 0)), 1.0), perm=(1, 0))
    shape = concat(shape_of(y), constant(np.array([1])), axis=0)
    z = dynamic_reshape(y, shape, dims=(unbacked(), unbacked(), unbacked()))
    w = multiply(z, exp(constant(np.array([0.5], np.float32))))
    return [Graph([x], [w, negative(negative(y))]), _batch()]


@pytest.mark.parametrize("graph", _mixed())
def test_pipeline_has_nothing_to_do_the_second_time(graph: Graph) -> None:
    once = run_pipeline(graph)
    twice = run_pipeline(once.graph)
    assert twice.report.fired == ()
    assert twice.graph is once.graph
    assert exact_hash(twice.graph) == exact_hash(once.graph)


def test_every_pass_says_why_it_is_there() -> None:
    assert len({step.name for step in PIPELINE}) == len(PIPELINE)
    assert all(step.because.endswith(".") for step in PIPELINE)


def test_pipeline_reports_every_pass() -> None:
    done = run_pipeline(_mixed()[0])
    assert {"transpose-later", "fold", "static-twin", "negative-twice"} <= set(done.report.counts)


def test_long_chain_passes() -> None:
    x = value = _input("float32[4]")
    for i in range(20_000):
        node = Node("exp" if i % 2 else "negative", [value], {}, [x.type])
        value = node.outputs[0]
    done = run_pipeline(Graph([x], [value]))
    assert len(done.graph.nodes) == 20_000
