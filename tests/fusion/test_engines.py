"""What engines fuse is found by looking at what they compiled, and nobody is believed."""

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Config
from fusewire.errors import RefusedError
from fusewire.fusing.fuse import EngineKernel, not_one_kernel
from fusewire.fusion.kinds import kind_of
from fusewire.fusion.samples import SAMPLES, sample
from fusewire.ops.declare import Kind

ENGINES = ("xla", "onnxruntime", "openvino", "webgpu", "triton")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_node_is_in_a_kernel_that_the_engine_names(engine: str) -> None:
    for pattern in SAMPLES:
        graph = sample(pattern)
        kernels = fw.fusion_backends.get(engine).fused(graph)
        assert len({kernel.name for kernel in kernels}) == len(kernels), pattern
        computed = {place for kernel in kernels for place in kernel.nodes}
        needed = {i for i, node in enumerate(graph.nodes) if kind_of(node) is not Kind.FREE}
        assert computed >= needed, (pattern, kernels)


def test_an_engine_that_cannot_be_looked_at_is_not_believed() -> None:
    backend = fw.fusion_backends.get("reference")
    graph = sample("elementwise")
    with pytest.raises(RefusedError, match="does not tell what it fuses"):
        backend.fused(graph)
    assert "does not tell" in str(backend.refusal(graph))
    assert backend.capabilities.patterns == ()


def test_what_is_refused_or_of_no_known_size_is_a_sentence() -> None:
    determinant = fw.trace(lambda x: np.exp(fw.ops.det(x)), fw.Spec((3, 3), "float32"))
    assert "webgpu cannot run det" in str(fw.fusion_backends.get("webgpu").refusal(determinant))
    named = fw.trace(lambda x: np.exp(x) + 1, fw.Spec(("n",), "float32"))
    assert "known sizes" in str(fw.fusion_backends.get("xla").refusal(named))


def test_two_kernels_are_not_one() -> None:
    graph = sample("elementwise")
    whole = EngineKernel("all", "fusion", (0, 1, 2, 3))
    moved = EngineKernel("moved", "copy", ())
    assert not_one_kernel("it", graph, [moved, whole]) is None
    two = [EngineKernel("a", "", (0, 1)), EngineKernel("b", "", (2, 3))]
    assert not_one_kernel("it", graph, two) == "it makes 2 kernels of it: a, b."
    part = not_one_kernel("it", graph, [EngineKernel("a", "", (0, 1, 3))])
    assert part == "it runs relu in no kernel that it tells."


def test_wide_graphs_are_placed_node_by_node() -> None:
    graph = fw.trace(
        lambda x, w: np.tanh(np.exp(x) @ w) * 2 + np.sum(x), *[fw.Spec((8, 8), "float32")] * 2
    )
    for engine in ENGINES:
        kernels = fw.fusion_backends.get(engine).fused(graph)
        product = next(i for i, node in enumerate(graph.nodes) if node.op == "matmul")
        holding = [kernel for kernel in kernels if product in kernel.nodes]
        assert holding, (engine, kernels)
        places = {place for kernel in kernels for place in kernel.nodes}
        assert places <= set(range(len(graph.nodes)))


def test_options_of_an_engine_change_what_it_fuses() -> None:
    backend, graph = fw.fusion_backends.get("openvino"), sample("convolution + activation")
    exact = backend.fused(graph)
    assert not_one_kernel("openvino", graph, exact) is not None
    own = backend.fused(graph, config=Config(options={"nan": "engine"}))
    assert not_one_kernel("openvino", graph, own) is None
