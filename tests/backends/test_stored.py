"""What engines made of models, reloaded: the same answers, from nothing but the artifact."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusewire.backends.onnxruntime import stored
from fusewire.backends.openvino import engine
from fusewire.contract.backend import Artifact, Config
from fusewire.contract.region import first_device, weights_of
from fusewire.dtypes import bool_, float32, int64
from fusewire.errors import FormatError
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol, symbols
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.ops.activation import relu
from fusewire.ops.contraction import linear, matmul
from fusewire.ops.control import cond
from fusewire.ops.convolution import conv
from fusewire.ops.elementwise import add
from fusewire.ops.indexing import gather
from fusewire.ops.movement import concat
from fusewire.ops.subgraph import subgraph
from fusewire.process.codec import write_record
from fusewire.process.machine import processor
from fusewire.process.wheels import installed, native_libraries
from fusewire.registry import REGISTRY

ENGINES = ["onnxruntime", "openvino"]
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


def made(name: str, graph: Graph) -> Artifact:
    backend = REGISTRY.backends.get(name)
    return backend.compile(graph, first_device(backend), Config())


def answers(name: str, artifact: Artifact, graph: Graph, given: list[Array]) -> list[bytes]:
    backend = REGISTRY.backends.get(name)
    held = weights_of(artifact, constants_of(graph))
    found = backend.load(artifact, first_device(backend), held).run(given)
    return [np.asarray(x).tobytes() for x in found]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ENGINES)
def test_reloaded_model_gives_the_same_bits(
    name: str, case: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, given = case()
    native = made(name, graph)
    assert native.kind == "native"
    assert not [slot for slot in native.slots if slot.role == "weight"]
    monkeypatch.setattr(stored, "MOST_BYTES", 0)
    monkeypatch.setattr(engine, "MOST_BYTES", 0)
    rebuild = made(name, graph)
    assert rebuild.kind == "rebuild", "what is too large is not written a second time"
    assert answers(name, native, graph, given) == answers(name, rebuild, graph, given)


@pytest.mark.parametrize("name", ENGINES)
def test_weights_that_lie_askew_are_read_all_the_same(name: str) -> None:
    graph, given = convolutions()
    artifact = made(name, graph)
    assert artifact.weights is not None
    askew = memoryview(bytearray(b"." + artifact.weights))[1:]
    assert answers(name, replace(artifact, weights=askew), graph, given) == answers(
        name, artifact, graph, given
    )


@pytest.mark.parametrize("name", ENGINES)
def test_model_of_another_version_or_without_its_weights_is_refused(name: str) -> None:
    graph, given = layers()
    artifact = made(name, graph)
    for other in (replace(artifact, key={name: "1.0"}), replace(artifact, weights=None)):
        with pytest.raises(FormatError, match="Compile it again"):
            answers(name, other, graph, given)


def test_how_an_open_size_comes_about_is_not_kept() -> None:
    # Written out it may be thousands of characters, which every start would read.
    n, weights = symbol("n"), weight(96, 64)
    x = Value(TensorType(float32, (n, 64)), "x")
    graph = Graph([x], [concat(linear(x, weights), linear(relu(x), weights), axis=0)])
    dims = [slot.dims for slot in made("onnxruntime", graph).slots]
    assert dims[0] == (n, 64)
    assert dims[1][1] == 96
    assert [found.unbacked for found in symbols(dims[1][0])] == [True]


def test_weight_that_is_not_lent_is_an_error_and_not_a_guess() -> None:
    graph, given = layers()
    artifact = made("onnxruntime", graph)
    table, model = artifact.payload.split(b"\n", 1)
    assert table.startswith(b"[[")
    with pytest.raises(Exception, match=r"out of bounds|External|external"):
        answers("onnxruntime", replace(artifact, payload=b"[]\n" + model), graph, given)


LOADED = """
import json, sys
from pathlib import Path
import numpy as np
from fusewire.contract.backend import Artifact, Device
from fusewire.process.codec import read_record
module, name, folder = sys.argv[1:]
engine = __import__(f"fusewire.backends.{module}.engine", fromlist=[name])
assert module not in sys.modules, "importing the backend imports the engine"
blobs = (np.fromfile(Path(folder, f"blob{i}"), np.uint8) for i in range(2))
artifact = read_record(json.loads(Path(folder, "row").read_text()), blobs, Artifact)
found = getattr(engine, name)().load(artifact, Device("cpu", "cpu"), {})
answer = found.run([np.load(Path(folder, "given.npy"))])[0]
assert answer.tobytes() == Path(folder, "answer").read_bytes(), "other bits in another process"
for name in ("onnx", "tempfile", "fusewire.ir.text", "fusewire.ops.table", "fusewire.rewrite"):
    # OpenVINO brings the second, and tools for the first, by itself.
    allowed = module == "openvino" and name in ("onnx", "tempfile")
    assert name not in sys.modules or allowed, f"loading an artifact imports {name}"
"""


@pytest.mark.parametrize("name", ENGINES)
def test_another_process_loads_it_and_imports_little(name: str, tmp_path: Path) -> None:
    graph, (given,) = layers()
    artifact = made(name, graph)
    blobs: list[Array] = []
    (tmp_path / "row").write_text(json.dumps(write_record(artifact, blobs)))
    for place, blob in enumerate(blobs):
        blob.tofile(tmp_path / f"blob{place}")
    np.save(tmp_path / "given.npy", given)
    (tmp_path / "answer").write_bytes(answers(name, artifact, graph, [given])[0])
    kind = type(REGISTRY.backends.get(name)).__name__
    command = [sys.executable, "-c", LOADED, name, kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ENGINES)
def test_fingerprint_names_engine_library_and_processor(name: str) -> None:
    backend = REGISTRY.backends.get(name)
    found = backend.fingerprint(first_device(backend))
    assert found["engine"] == metadata.version(name) == installed(name)
    assert found["cpu"] == processor()
    assert found["library"] != native_libraries(name, "no such folder")


def test_version_is_found_by_any_spelling_and_missing_ones_are_empty() -> None:
    assert installed("no-such-wheel", "ML.dtypes") == metadata.version("ml-dtypes")
    assert installed("no-such-wheel") == ""
