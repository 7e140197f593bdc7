"""Why a program runs as it does, and what counts as work on data."""

import json
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.contract.backend import Device
from fusewire.errors import GraphError, RefusedError
from fusewire.ir.graph import Graph, Value
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from fusewire.planning.work import works
from tests.toy import picky_backend

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
CPU = Device("cpu", "test")


def _sized(x: Value) -> Any:
    """Scale by a number of elements that the graph counts itself."""
    count = ops.size_of(x)
    return ops.multiply(ops.exp(x), ops.cast(count, dtype="float32"))


def _graph() -> Graph:
    x = Value(fw.Spec(("n", 4), "float32").type, "x")
    return Graph([x], [_sized(x)], name="sized")


def _choice(x: Any) -> Any:
    return ops.cond(np.sum(x) > 0, x, then=lambda v: np.cumsum(v, 0), otherwise=np.exp)


def test_sizes_are_no_data() -> None:
    graph = _graph()
    kinds = {node.op: work for node, work in works(graph).items()}
    assert kinds == {"size_of": "shape", "cast": "shape", "exp": "data", "multiply": "data"}


def test_elements_of_a_tensor_are_data_however_few() -> None:
    x = Value(fw.Spec((3,), "float32").type, "x")
    kinds = works(Graph([x], [ops.reduce_sum(x, axes=(0,))]))
    assert set(kinds.values()) == {"data"}


def test_input_that_is_only_an_index_is_a_size_and_one_that_is_added_is_data() -> None:
    x, i = Value(fw.Spec((3, 4)).type, "x"), Value(fw.Spec((), "int64").type, "i")
    index = ops.add(ops.multiply(i, i), 1)
    kinds = works(Graph([x, i], [ops.gather(x, ops.add(i, 1), axis=0)]))
    assert [kinds[n] for n in kinds if n.op == "add"] == ["shape"]
    kinds = works(Graph([x, i], [ops.multiply(x, ops.cast(index, dtype="float32"))]))
    assert set(kinds.values()) == {"data"}


@pytest.mark.parametrize("refused", ["reduce_prod", "shape_of", "cast"])
def test_host_may_compute_sizes_where_fallback_is_off(refused: str) -> None:
    picky, spare = picky_backend("picky", [refused, "size_of"]), picky_backend("spare", [])
    planned = make_plan(_graph(), [Target(picky, CPU)], Target(spare, CPU))
    assert {r.backend for r in planned.plan.regions()} == {"picky", "spare"}
    assert not planned.fallback_nodes()


def test_host_may_not_work_on_data_where_fallback_is_off() -> None:
    picky, spare = picky_backend("picky", ["exp"]), picky_backend("spare", [])
    with pytest.raises(RefusedError, match="does not run exp"):
        make_plan(_graph(), [Target(picky, CPU)], Target(spare, CPU))


@pytest.mark.parametrize("name", ["torch-eager"])
def test_engine_without_sizes_runs_all_data_itself(name: str) -> None:
    program = fw.compile(_graph(), backend=name, fallback="error")
    np.testing.assert_allclose(program(X), np.exp(X) * X.size, rtol=1e-6)
    counts = program.why().counts()
    assert (counts["data"], counts["control"]) == ({name: 2}, {})
    assert counts["shape"]["reference"] >= 2
    refused = next(n for n in program.why().nodes if n.op == "shape_of")
    assert [(v.backend, v.is_offered) for v in refused.verdicts] == [(name, False)]


def test_why_tells_of_every_node_what_was_said_and_where_it_runs() -> None:
    program = fw.compile(
        lambda x: np.cumsum(np.tanh(x) * 2), X, backend="torch-eager", fallback="allow"
    )
    why = program.why()
    assert (why.backend, why.device, why.fallback) == ("torch-eager", "cpu", "allow")
    assert [n.place for n in why.nodes] == [str(i) for i in range(len(program.plan.graph.nodes))]
    last = program.why(len(why.nodes) - 1)
    assert (last.op, last.backend, last.work) == ("cumsum", "reference", "data")
    assert [(v.backend, v.is_offered) for v in last.verdicts] == [
        ("torch-eager", False),
        ("reference", True),
    ]
    assert "cumsum is not in the table" in last.verdicts[0].reason
    assert {n.region for n in why.nodes} == {r.name for r in why.regions}
    assert not why.contacts
    program(X)
    assert {(c.backend, c.outcome, c.is_isolated) for c in program.why().contacts} == {
        ("torch-eager", "ready", True),
        ("reference", "ready", False),
    }
    assert "compile_seconds" in program.why().contacts[0].metrics


def test_why_is_json() -> None:
    program = fw.compile(
        lambda x: ops.softmax(x, axis=-1), X, backend="torch-eager", fallback="allow"
    )
    program(X)
    data = json.loads(program.why().to_json())
    assert data["expanded"] == [
        {"backend": "torch-eager", "op": "softmax", "reason": data["expanded"][0]["reason"]}
    ]
    assert data["counts"]["data"].keys() == {"torch-eager", "reference"}
    assert len(data["nodes"]) == len(program.plan.graph.nodes)


def test_why_looks_into_bodies() -> None:
    graph = fw.trace(_choice, fw.Spec(("n", 4)))
    program = fw.compile(graph, backend="torch-eager", fallback="allow")
    program(X + 1)
    why = program.why()
    inner = next(n for n in why.nodes if n.op == "cumsum")
    outer = next(n for n in why.nodes if n.op == "cond")
    assert inner.place.startswith(f"{outer.place}.then.")
    assert inner.region.startswith(f"{outer.region}.then.")
    assert (outer.backend, outer.work, inner.backend) == ("host", "control", "reference")
    assert why.counts()["control"] == {"host": 1}
    assert inner.region in {c.region for c in why.contacts}


def test_wrong_place_says_which_there_are() -> None:
    program = fw.compile(np.exp, X, backend="reference")
    with pytest.raises(GraphError, match="0 to 0"):
        program.why(7)


def test_decision_about_all_of_it_is_noted() -> None:
    program = fw.compile(
        lambda x: np.cumsum(np.cumsum(x) * 2),
        X,
        backend="torch-eager",
        fallback="allow",
        max_crossings=1,
    )
    assert "would hand over" in program.why().notes[0]


def test_three_engines_refuse_a_node_for_three_reasons() -> None:
    matrices = np.ones((3, 4, 4), np.float32)
    engines = ["openvino", "webgpu", "onnxruntime"]
    program = fw.compile(
        lambda x: np.linalg.svd(x)[1], matrices, backend=engines, level=0, fallback="allow"
    )
    node = program.why(0)
    refusals = {v.backend: v.reason for v in node.verdicts if not v.is_offered}
    assert (node.op, node.backend, [*refusals]) == ("svd", "reference", engines)
    assert len({*refusals.values()}) == 3
    assert refusals["openvino"] == "OpenVINO has no svd."
    assert "factorisation" in refusals["webgpu"]
    assert refusals["onnxruntime"] == "ONNX Runtime has no op that does what svd does."
