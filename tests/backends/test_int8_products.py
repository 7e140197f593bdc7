"""Matrix products in int8, on engines that have them: faster for users who accept the error."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.contract.backend import Backend, Config, Device
from fusewire.contract.region import build
from fusewire.errors import OptionsError
from fusewire.ir.graph import Graph
from fusewire.ops.interpret import interpret
from fusewire.process.machine import features
from fusewire.registry import REGISTRY
from fusewire.rewrite.int8 import has_int8_products, with_int8_products
from fusewire.rewrite.static_int8 import weight_codes
from fusewire.trials.trial import CandidateTrial

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
    return build(backend, GRAPH, device, Config(options=options)).run([X])[0]


def test_graph_in_int8_is_near_and_has_no_product_of_floats() -> None:
    graph = with_int8_products(GRAPH)
    ops = [node.op for node in graph.nodes]
    assert (ops.count("matmul_integer"), ops.count("matmul")) == (2, 0)
    (found,) = interpret(graph, [X])
    assert 1e-3 < error(found) < 3e-2


def test_integer_sums_of_the_engine_are_right_with_these_codes() -> None:
    """Where the processor has no VNNI, those of larger codes are not."""
    most = weight_codes(features())
    codes = np.where(RNG.random((256, 128)) < 0.5, -most, most).astype(np.int8)
    x = np.full((8, 256), 255, np.uint8)
    graph = fw.trace(lambda x: ops.matmul_integer(x, codes), x)
    backend, device = engine("onnxruntime")
    (found,) = build(backend, graph, device).run([x])
    np.testing.assert_array_equal(found, x.astype(np.int64) @ codes.astype(np.int64))


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


# Some columns of what the second product takes are large, and their weights are small: rounded to
# the scale of one, the others are lost.
SCALES = np.where(np.arange(256) % 64 == 7, 300.0, 1.0).astype(np.float32)
U1, U2 = (RNG.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
U2 /= SCALES[:, None]
ROWS = RNG.standard_normal((64, 256)).astype(np.float32)


def with_outliers(x: Any) -> Any:
    return (np.tanh(x @ U1) * SCALES) @ U2


OUTLIERS = fw.trace(with_outliers, fw.Spec(("n", 256), "float32"))


def outlier_error(found: Any) -> float:
    exact = (np.tanh(ROWS.astype(np.float64) @ U1) * SCALES) @ U2.astype(np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_product_is_left_exact_that_breaks_the_bound(name: str) -> None:
    backend, device = engine(name)
    first, second = backend.reduced_nodes(OUTLIERS, device, {"precision": "int8"})
    assert not backend.reduced_nodes(OUTLIERS, device, {})

    def with_exact(places: str) -> float:
        config = Config(options={"precision": "int8", "exact_nodes": places})
        executable = build(backend, OUTLIERS, device, config)
        return outlier_error(executable.run([ROWS])[0])

    assert with_exact("") > 0.1
    assert with_exact(str(first)) > 0.1
    assert 1e-3 < with_exact(str(second)) < 3e-2
    assert with_exact(f"{first},{second}") == with_exact(f"{first}-{second}") < 1e-5


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("places", ["1", "99", "-1", "0-1-2", "first"])
def test_place_of_no_product_is_refused(name: str, places: str) -> None:
    backend, device = engine(name)
    config = Config(options={"precision": "int8", "exact_nodes": places})
    with pytest.raises(OptionsError, match=r"^exact_nodes=.* names no node"):
        build(backend, OUTLIERS, device, config)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_mixture_of_a_real_engine_meets_the_bound(name: str, monkeypatch: Any) -> None:
    # Whether int8 is faster here depends on the processor: the choice is tested with engines that
    # sleep, and what is chosen here must meet the bound in any case.
    seconds = {"int8": 1e-3, "exact_nodes": 2e-3}

    def pretend(trial: CandidateTrial, inputs: Any) -> float:
        del inputs
        name = trial.candidate.name
        return next((seconds[x] for x in reversed(seconds) if x in name), 4e-3)

    monkeypatch.setattr(CandidateTrial, "quick_seconds", pretend)
    options: dict[str, Any] = {"backend": name, "start": "measured", "budget_seconds": 15.0}
    program = fw.compile(OUTLIERS, ROWS, accuracy=5e-2, isolate="never", **options)
    assert outlier_error(program(ROWS)) < 5e-2
    rows = {row.name: row for row in program.why().tried}
    assert rows[f"{name} precision=int8"].status == "inaccurate"
    mixed = [row for row in rows.values() if "exact_nodes" in row.options]
    assert [row.status for row in mixed] == ["right"], program.why().notes
    assert mixed[0].regions == 1


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_bound_lets_an_engine_use_int8_and_exact_does_not(name: str) -> None:
    options: dict[str, Any] = {"backend": name, "start": "measured", "budget_seconds": 6.0}
    why = fw.compile(GRAPH, X, accuracy=5e-2, **options).why()
    rows = [row for row in why.tried if row.options.get("precision") == "int8"]
    assert rows
    assert all(
        row.is_reduced and row.status in ("right", "not judged", "not tried") for row in rows
    )
    assert not any(row.is_reduced for row in fw.compile(GRAPH, X, level=1, **options).why().tried)
