"""Matrix products in int8, on engines that have them: faster for users who accept the error."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Backend, Config, Device
from fusewire.contract.region import build
from fusewire.ir.graph import Graph
from fusewire.ops.interpret import interpret
from fusewire.registry import REGISTRY
from fusewire.rewrite.int8 import has_int8_products, with_int8_products

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 40, 256)).astype(np.float32)
W, V = (RNG.standard_normal(shape).astype(np.float32) / 16 for shape in ((256, 128), (128, 256)))


def network(x: Any) -> Any:
    return np.tanh(x @ W + 0.5) @ V


GRAPH = fw.trace(network, fw.Spec(("n", 40, 256), "float32"))


def error(found: Any) -> float:
    exact = np.tanh(X.astype(np.float64) @ W + 0.5) @ V.astype(np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def engine(name: str) -> tuple[Backend, Device]:
    backend = REGISTRY.backends.get(name)
    return backend, next(x for x in backend.probe() if isinstance(x, Device))


def computed(name: str, **options: Any) -> Any:
    backend, device = engine(name)
    return build(backend, GRAPH, device, Config(options=options)).run([X]).wait()[0]


def test_graph_in_int8_is_near_and_has_no_product_of_floats() -> None:
    graph = with_int8_products(GRAPH)
    ops = [node.op for node in graph.nodes]
    assert (ops.count("matmul_integer"), ops.count("matmul")) == (2, 0)
    (found,) = interpret(graph, [X])
    assert 1e-3 < error(found) < 3e-2


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_engine_rounds_only_if_asked_to(name: str) -> None:
    assert error(computed(name)) < 1e-6
    assert 1e-3 < error(computed(name, precision="int8")) < 3e-2


def test_smaller_blocks_err_less() -> None:
    errors = [error(computed("openvino", precision="int8", block=block)) for block in (128, 32)]
    assert errors[1] < 0.95 * errors[0]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_int8_is_offered_for_products_with_weights(name: str) -> None:
    backend, device = engine(name)
    assert {"precision": "int8"} in backend.reduced(GRAPH, device)
    without = fw.trace(lambda x, y: x @ y, X[0], X[0].T)
    small = fw.trace(lambda x: x @ W[:32, :32], X[0, :, :32])
    for graph in (without, small):
        assert not has_int8_products(graph)
        assert {"precision": "int8"} not in backend.reduced(graph, device)


def test_weights_that_are_not_finite_stay_as_they_are() -> None:
    weights = np.where(np.arange(128) == 3, np.inf, W)
    graph: Graph = fw.trace(lambda x: x @ weights, X[0])
    assert [node.op for node in with_int8_products(graph).nodes] == [n.op for n in graph.nodes]


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_bound_lets_an_engine_use_int8_and_exact_does_not(name: str) -> None:
    options: dict[str, Any] = {"backend": name, "start": "measured", "budget_seconds": 6.0}
    why = fw.compile(GRAPH, X, accuracy=5e-2, **options).why()
    rows = [row for row in why.tried if row.options.get("precision") == "int8"]
    assert rows
    assert all(row.is_reduced and row.status in ("right", "not judged") for row in rows)
    assert not any(row.is_reduced for row in fw.compile(GRAPH, X, level=1, **options).why().tried)
