"""OpenVINO's own nodes, which lose NaN: offered to be timed, right without NaN, refused by name."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Config, Offer
from fusewire.contract.region import build, first_device
from fusewire.dtypes import float32, int32
from fusewire.errors import OptionsError
from fusewire.ir.dims import Dim, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import interpret
from fusewire.ops.table import get_op
from fusewire.planning.candidates import Candidate, candidates
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import cases, value_problems
from fusewire.testing.suite import merge

pytest.importorskip("openvino")
NAME = "openvino"
BACKEND = REGISTRY.backends.get(NAME)
CPU = first_device(BACKEND)
ENGINE = Config(options={"nan": "engine"})
OWN = [name for name, row in (BACKEND.lowerings or {}).items() if row.own is not None]


def _graph(function: Any, rows: Dim = 2) -> Graph:
    x = Value(TensorType(float32, (rows, 3)), "x")
    return Graph([x], [function(x)])


def _is_finite(graph: Graph, given: Any) -> bool:
    """Tell whether a case is taken, and neither operands nor the answer have NaN or infinities."""
    if not all(isinstance(found, Offer) for found in BACKEND.claim(graph, CPU)):
        return False
    arrays: Any = [*given, *interpret(graph, given)]
    return all(bool(np.isfinite(x).all()) for x in arrays)


def test_own_nodes_are_right_where_all_is_finite() -> None:
    made = [case.make() for name in OWN for case in cases([get_op(name)]) if case.dtype is float32]
    asked = [(graph, given) for graph, given in made if _is_finite(graph, given)]
    assert len(asked) > 3 * len(OWN)
    whole = merge([graph for graph, _ in asked])
    executable = build(BACKEND, whole, CPU, ENGINE)
    found = iter(executable.run([x for _, given in asked for x in given]))
    for graph, given in asked:
        got: Any = [next(found) for _ in graph.outputs]
        assert not value_problems(graph, given, got), graph
    assert next(found, None) is None


def test_exact_keeps_what_the_engine_loses() -> None:
    graph, x = _graph(fw.ops.relu), np.full((2, 3), np.nan, np.float32)
    (exact,) = build(BACKEND, graph, CPU).run([x])
    (own,) = build(BACKEND, graph, CPU, ENGINE).run([x])
    assert np.isnan(np.asarray(exact)).all()
    assert not np.isnan(np.asarray(own)).any()


def test_own_nodes_are_offered_where_there_are_any() -> None:
    assert list(BACKEND.configs(_graph(fw.ops.relu), CPU)) == [{"nan": "engine"}]
    assert not list(BACKEND.configs(_graph(fw.ops.tanh), CPU))


def test_nodes_of_floats_that_are_mended_may_lose_nan() -> None:
    of_ints = Value(TensorType(int32, (2, 3)), "x")
    graphs = _graph(fw.ops.relu), _graph(fw.ops.tanh), Graph([of_ints], [fw.ops.relu(of_ints)])
    assert [BACKEND.loses_nan(graph.nodes[0], CPU) for graph in graphs] == [True, False, False]


def test_sizes_that_are_known_are_offered_where_they_are_open() -> None:
    fitted = {"sizes": "fitted"}
    found = [BACKEND.configs(_graph(op, symbol("n")), CPU) for op in (fw.ops.relu, fw.ops.tanh)]
    assert list(map(list, found)) == [[{"nan": "engine", **fitted}, fitted], [fitted]]
    with pytest.raises(OptionsError, match='"open" and "fitted"'):
        BACKEND.compile(_graph(fw.ops.relu), CPU, Config(options={"sizes": "close"}))


@pytest.mark.parametrize("given", [{}, {"nan": "exact"}, {"nan": "engine"}])
def test_option_that_was_given_is_not_tried_otherwise(given: dict[str, Any]) -> None:
    target, fallback = Target(BACKEND, CPU), Target(REGISTRY.backends.get("reference"), CPU)
    graph = _graph(fw.ops.hard_swish)
    found = candidates(graph, [target], fallback, Config(options=given), may_fall_back=False)
    names = [way.name for way in found if isinstance(way, Candidate)]
    assert [name for name in names if "nan" in name] == ([] if given else ["openvino nan=engine"])


def test_unknown_meaning_names_those_there_are() -> None:
    with pytest.raises(OptionsError, match='"exact" and "engine"'):
        BACKEND.compile(_graph(fw.ops.relu), CPU, Config(options={"nan": "lost"}))
