"""Claims to regions to answers: the same values wherever the cuts fall."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.contract.backend import Device, Held
from fusewire.contract.region import build
from fusewire.dtypes import int64
from fusewire.errors import EngineError, RefusedError
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret
from fusewire.ops.limits import RunLimits
from fusewire.ops.table import verify
from fusewire.plan.execute import PlanRunner
from fusewire.plan.plan import HOST, Plan, Region
from fusewire.plan.regions import Built
from fusewire.planning.claims import ask
from fusewire.planning.planner import Planned, make_plan
from fusewire.planning.target import Target
from tests.toy import ToyBackend, picky_backend

CPU = Device("cpu", "test")


def _targets(*backends: ToyBackend) -> list[Target]:
    return [Target(backend, CPU) for backend in backends]


@dataclass(frozen=True)
class _Builder:
    """Builds regions in this process."""

    targets: Sequence[Target]
    limits: RunLimits = field(default_factory=RunLimits)

    def build(self, region: Region, graph: Callable[[], Graph], inputs: Sequence[Held]) -> Built:
        verify(graph())
        backend = next(x.backend for x in self.targets if x.name == region.backend)
        return Built(lambda: (build(backend, graph(), region.device), backend.exchange))

    def recovery(self, region: Region) -> NoReturn:
        raise AssertionError("no engine fails here")

    def note_fallback(self, region: Region, error: EngineError) -> None:
        raise AssertionError("no engine fails here")

    def plans_memory(self, region: Region) -> bool:
        return False

    def fits_sizes(self, region: Region) -> bool:
        return False

    def may_lose_nan(self, region: Region) -> bool:
        return False

    def exact(self) -> NoReturn:
        raise AssertionError("no engine loses NaN here")

    def build_or_raise(self, *given: Any) -> NoReturn:
        raise AssertionError("no region is fitted here")

    @property
    def is_served(self) -> bool:
        return False

    def plan_body(self, body: Graph) -> Plan:
        return make_plan(body, self.targets).plan


def _runner(graph: Graph, targets: Sequence[Target]) -> tuple[PlanRunner, Planned]:
    planned = make_plan(graph, targets)
    return PlanRunner(planned.plan, _Builder(targets)), planned


def _same(graph: Graph, targets: Sequence[Target], *inputs: Any) -> Planned:
    runner, planned = _runner(graph, targets)
    for _ in range(2):
        got = runner.run(list(inputs))
        want = interpret(graph, list(inputs))
        for left, right in zip(got, want, strict=True):
            assert isinstance(left, np.ndarray)
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
            assert left.flags.writeable
            assert not any(np.may_share_memory(left, x) for x in inputs)
    return planned


def _network(x: Any, w: Any) -> Any:
    h = np.cos(x @ w) + 1
    branch = np.sin(h)
    h = np.exp(-h) * branch
    return np.sum(np.cos(h), axis=-1), branch, w


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-2, 2, 20, dtype=np.float32).reshape(4, 5)
NETWORK = fw.trace(_network, fw.Spec(("n", 4), "float32"), fw.Spec((4, 5), "float32"))
ALL_OPS = sorted({node.op for node in NETWORK.nodes})


@pytest.mark.parametrize("shapes", ["static", "dynamic"])
@pytest.mark.parametrize("refused", [[op] for op in ALL_OPS] + [[], ["cos", "sin", "exp"]])
def test_answer_does_not_depend_on_the_cuts(refused: list[str], shapes: Any) -> None:
    picky, rest = picky_backend("picky", refused, shapes), picky_backend("rest", [])
    planned = _same(NETWORK, _targets(picky, rest), X, W)
    for region in planned.plan.regions():
        verify(region.graph)
        ops_of = {node.op for node in region.graph.nodes}
        assert region.backend != "picky" or not ops_of & set(refused)


def test_whole_graph_is_one_region() -> None:
    planned = _same(NETWORK, _targets(picky_backend("picky", [])), X, W)
    assert len(planned.plan.steps) == 1
    assert planned.plan.crossings() == 0


def test_alternating_chain_is_cut_at_every_change() -> None:
    x = value = Value(X_TYPE, "x")
    for _ in range(3):
        value = ops.exp(ops.sin(value))
    planned = _same(Graph([x], [value]), _targets(*_pair("sin")), X)
    assert [r.backend for r in planned.plan.regions()] == ["rest", "picky"] * 3
    assert planned.plan.crossings() == 5


X_TYPE = NETWORK.inputs[0].type


def _pair(*refused: str, shapes: Any = "dynamic") -> tuple[ToyBackend, ToyBackend]:
    return picky_backend("picky", refused, shapes), picky_backend("rest", [])


def _seconds(length: int) -> float:
    def chain(x: Any) -> Any:
        for _ in range(length):
            x = np.sin(x) + x
        return x

    graph = fw.trace(chain, fw.Spec(("n",), "float32"))
    targets = _targets(picky_backend("first", ["sin"]), picky_backend("second", []))
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        planned = make_plan(graph, targets)
        best = min(best, time.process_time() - start)
        assert len(planned.plan.steps) == 2 * length
    return best


def test_time_to_plan_grows_with_the_length_and_not_with_its_square() -> None:
    assert _seconds(800) < 16 * _seconds(100)


def test_static_backend_is_specialised_once_per_size() -> None:
    picky, rest = _pair("sin", shapes="static")
    runner, _ = _runner(NETWORK, _targets(picky, rest))
    for rows in (3, 5, 3, 5, 3):
        x = np.ones((rows, 4), np.float32)
        got = runner.run([x, W])
        np.testing.assert_array_equal(got[0], interpret(NETWORK, [x, W])[0])
    sizes = {v.type for graph, _ in picky.compiled for v in graph.inputs}
    assert all(t.is_static for t in sizes if hasattr(t, "is_static"))
    per_region = len({graph.name for graph, _ in picky.compiled})
    assert len(picky.compiled) == 2 * per_region


def test_composites_that_are_refused_come_back_expanded() -> None:
    graph = fw.trace(lambda x: ops.softmax(x, axis=-1), fw.Spec((3, 4), "float32"))
    planned = _same(graph, _targets(picky_backend("picky", ["softmax"])), X)
    assert "softmax" not in {node.op for node in planned.plan.graph.nodes}
    assert planned.claims["picky"].expanded == {"softmax": "picky does not run softmax."}


def test_sizes_known_only_to_the_run_cross_regions() -> None:
    graph = fw.trace(lambda x: np.exp(x[x > 0]) * 2, fw.Spec((3, 4), "float32"))
    for refused in ("nonzero", "gather_nd", "exp", "multiply", "greater"):
        for shapes in ("static", "dynamic"):
            _same(graph, _targets(*_pair(refused, "nonzero", shapes=shapes)), X)


def _choice(x: Any) -> Any:
    def double(v: Any) -> Any:
        return np.sin(v) * 2

    def halve(v: Any) -> Any:
        return np.exp(v) / 2

    return ops.cond(np.sum(x) > 0, x, then=double, otherwise=halve)


def test_size_that_no_operand_tells_comes_from_where_it_is_told() -> None:
    shape = Value(TensorType(int64, (2,)), "shape")
    dims = unbacked(), unbacked()
    ones = ops.dynamic_full(np.float32(1), shape, dims=dims)
    flat = ops.reshape(ones, shape=(dims[0] * dims[1],))
    graph = Graph([shape], [ops.negative(flat)])
    targets = _targets(picky_backend("first", ["negative"]), picky_backend("second", []))
    planned = _same(graph, targets, np.array([2, 3]))
    assert len(planned.plan.steps) == 2


def test_host_drives_control_flow_and_bodies_run_by_plan() -> None:
    graph = fw.trace(_choice, fw.Spec(("n", 4), "float32"))
    targets = _targets(picky_backend("picky", ["sin"]), picky_backend("rest", ["exp"]))
    planned = _same(graph, targets, X + 1)
    _same(graph, targets, X - 1)
    host = [step for step in planned.plan.steps if step.region.backend == HOST]
    assert len(host) == 1
    bodies = host[0].bodies
    assert {r.backend for r in bodies["then"].regions()} == {"picky", "rest"}
    assert {r.backend for r in bodies["otherwise"].regions()} == {"picky"}


def test_nobody_takes_it_is_an_error_with_reasons() -> None:
    with pytest.raises(RefusedError, match=r"sin.*picky does not run sin"):
        make_plan(NETWORK, _targets(picky_backend("picky", ["sin"])))


def test_constants_and_inputs_as_outputs_are_copied() -> None:
    graph = fw.trace(lambda x: (x, np.zeros(2, np.float32), x + 1), fw.Spec((3, 4), "float32"))
    _same(graph, _targets(picky_backend("picky", [])), X)


def test_nodes_alike_are_decomposed_once() -> None:
    graph = fw.trace(lambda x, y: np.expm1(x) + np.expm1(y), *(fw.Spec((3,), "float32"),) * 2)
    backend = picky_backend("picky", ["expm1"])
    claimed = ask(Target(backend, CPU), graph)
    assert claimed.takes_all()
    assert claimed.expanded.keys() == {"expm1"}
    # The graph, the parts of one node, and the graph with both nodes in parts.
    assert len(backend.asked) == 3
