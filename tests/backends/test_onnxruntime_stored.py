"""Models that ONNX Runtime optimised: the same answers, from nothing but the artifact."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fusewire.backend import Artifact, Config
from fusewire.backends.onnxruntime import stored
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.dtypes import bool_, float32, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.ops.activation import relu
from fusewire.ops.contraction import linear, matmul
from fusewire.ops.control import cond
from fusewire.ops.convolution import conv
from fusewire.ops.elementwise import add
from fusewire.ops.indexing import gather
from fusewire.ops.subgraph import subgraph
from fusewire.region import first_device, weights_of

BACKEND = OnnxRuntimeBackend()
CPU = first_device(BACKEND)
RNG = np.random.default_rng(5)


def weight(*shape: int) -> Value:
    return constant(RNG.standard_normal(shape).astype(np.float32))


def convolutions() -> tuple[Graph, list[Array]]:
    """Three layers, which the engine gives another order of weights."""
    x = Value(TensorType(float32, (1, 3, 16, 16)), "x")
    y = x
    for channels in (3, 32, 32):
        y = relu(conv(y, weight(32, channels, 3, 3), weight(32), padding=((1, 1), (1, 1))))
    return Graph([x], [y]), [RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)]


def layers() -> tuple[Graph, list[Array]]:
    x = Value(TensorType(float32, (symbol("n"), 64)), "x")
    y = linear(relu(linear(x, weight(96, 64), weight(96))), weight(32, 96), weight(32))
    return Graph([x], [y]), [RNG.standard_normal((5, 64)).astype(np.float32)]


def embedding() -> tuple[Graph, list[Array]]:
    """Places looked up in one table, and rows of another at them."""
    x = Value(TensorType(int64, (3,)), "x")
    places = constant(RNG.permutation(2000).astype(np.int64))
    return Graph([x], [gather(weight(2000, 8), gather(places, x, axis=0), axis=0)]), [
        np.array([0, 7, 1999])
    ]


def branches() -> tuple[Graph, list[Array]]:
    """Weights in both bodies, and outside of them."""
    chosen, x = Value(TensorType(bool_, ()), "b"), Value(TensorType(float32, (2, 48)), "x")
    bodies = [subgraph(lambda v, w=weight(48, 48): [matmul(v, w)], x.type) for _ in range(2)]
    (y,) = cond(chosen, x, then=bodies[0], otherwise=bodies[1])
    graph = Graph([chosen, x], [add(matmul(y, weight(48, 48)), 1.0)])
    return graph, [np.array(False), RNG.standard_normal((2, 48)).astype(np.float32)]


CASES: list[Callable[[], tuple[Graph, list[Array]]]] = [convolutions, layers, embedding, branches]


def answers(artifact: Artifact, graph: Graph, given: list[Array]) -> list[bytes]:
    held = weights_of(artifact, constants_of(graph))
    found = BACKEND.load(artifact, CPU, held).run(given).wait()
    return [np.asarray(x).tobytes() for x in found]


@pytest.mark.parametrize("case", CASES)
def test_reloaded_model_gives_the_same_bits(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, given = case()
    native = BACKEND.compile(graph, CPU, Config())
    assert native.kind == "native"
    assert not [slot for slot in native.slots if slot.role == "weight"]
    monkeypatch.setattr(stored, "MOST_BYTES", 0)
    rebuild = BACKEND.compile(graph, CPU, Config())
    assert rebuild.kind == "rebuild", "what is too large is not written a second time"
    assert answers(native, graph, given) == answers(rebuild, graph, given)


def test_weights_that_lie_askew_are_read_all_the_same() -> None:
    graph, given = convolutions()
    artifact = BACKEND.compile(graph, CPU, Config())
    assert artifact.weights is not None
    askew = memoryview(bytearray(b"." + artifact.weights))[1:]
    assert answers(replace(artifact, weights=askew), graph, given) == answers(
        artifact, graph, given
    )


def test_weight_that_is_not_lent_is_an_error_and_not_a_guess() -> None:
    graph, _ = layers()
    artifact = BACKEND.compile(graph, CPU, Config())
    table, model = artifact.payload.split(b"\n", 1)
    assert b"[[" in table
    with pytest.raises(Exception, match=r"weights|External|external|out of bounds"):
        BACKEND.load(replace(artifact, payload=b"[]\n" + model), CPU, {})
    with pytest.raises(FormatError, match="weights are missing"):
        BACKEND.load(replace(artifact, weights=None), CPU, {})


def test_model_of_another_version_is_refused() -> None:
    artifact = BACKEND.compile(layers()[0], CPU, Config())
    with pytest.raises(FormatError, match=r"1\.0"):
        BACKEND.load(replace(artifact, key={"onnxruntime": "1.0"}), CPU, {})
