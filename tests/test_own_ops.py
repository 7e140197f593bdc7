"""The example package from end to end: installed, traced, imported, fused around, judged, tuned."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.backends.webgpu.program import Program
from fusewire.cli import main
from fusewire.contract.backend import Config
from fusewire.contract.extension import attach
from fusewire.contract.region import first_device
from fusewire.errors import FormatError
from fusewire.ops.outside import OUTSIDE
from fusewire.registry import REGISTRY
from tests.own_ops import install

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
GELU2, INTERLEAVE = "example_ops.gelu2", "example_ops.interleave"
BACKENDS = ("webgpu", "triton", "xla")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package once."""
    return install(tmp_path_factory.mktemp("own_ops"))


def _close() -> None:
    """End backends with their extensions, and let go of the package."""
    for name in BACKENDS:
        REGISTRY.close(name)
    for name in ("example_ops", "example_ops.kernels"):
        sys.modules.pop(name, None)


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process look for packages anew, and import the package anew."""
    _close()
    importlib.invalidate_caches()
    monkeypatch.setattr(REGISTRY.extensions, "_entries", None)
    monkeypatch.setattr(REGISTRY.extensions, "_made", {})
    monkeypatch.setattr(OUTSIDE, "_points", None)
    monkeypatch.setattr(OUTSIDE, "_packages", {})


Install = Callable[..., Any]


@pytest.fixture
def installed(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Have the package installed, perhaps with another text in one of its files."""

    def use(file: str = "", old: str = "", new: str = "") -> Any:
        folder = built
        if file:
            folder = tmp_path / "changed"
            shutil.copytree(built, folder)
            text = (folder / "example_ops" / file).read_text()
            assert old in text
            (folder / "example_ops" / file).write_text(text.replace(old, new))
        monkeypatch.syspath_prepend(folder)
        _forget(monkeypatch)
        return importlib.import_module("example_ops")

    yield use
    _close()


def _model(package: Any) -> Callable[[Any], Any]:
    """Both ops, with elementwise neighbours around them."""
    return lambda x: np.tanh(package.interleave(np.exp(package.gelu2(x * 2) + 1) - 1, x)) * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_backend_runs_both_ops_whole_without_fallback(installed: Install, backend: str) -> None:
    model = _model(installed())
    program = fw.compile(model, X, backend=backend, fallback="error")
    np.testing.assert_allclose(program(X), model(X), rtol=2e-6)
    assert [n.op for n in program.plan.graph.nodes if "." in n.op] == [GELU2, INTERLEAVE]
    assert [c.is_isolated for c in program.why().contacts] == [True]
    program.close()


def test_backend_without_kernels_expands_one_and_leaves_the_other(installed: Install) -> None:
    model = _model(installed())
    program = fw.compile(model, X, backend="onnxruntime", fallback="allow")
    np.testing.assert_allclose(program(X), model(X), rtol=2e-6)
    ops = [node.op for node in program.plan.graph.nodes]
    assert GELU2 not in ops
    assert "sigmoid" in ops
    assert INTERLEAVE in ops
    program.close()


def test_neighbours_are_fused_around_a_kernel(installed: Install) -> None:
    model = _model(installed())
    from example_ops.kernels import WebGpuKernels  # type: ignore[import-not-found] # by a fixture

    backend = WebGpuBackend()
    attach(backend, WebGpuKernels())
    device = first_device(backend)
    graph = fw.trace(model, fw.Spec((3, 4), "float32"))
    artifact = backend.compile(graph, device, Config())
    program = Program.from_bytes(artifact.payload)
    # x * 2, gelu2, exp(. + 1) - 1, interleave, tanh(.) * 3.
    assert len(program.schedule.launches) == 5
    assert sum("fn gelu2" in text for text in program.kernels) == 1
    # Without kernels of its own, gelu2 is in one kernel with all that is before interleave.
    plain = fw.trace(lambda x: np.exp(fw.ops.multiply(x, 2) + 1) - 1, fw.Spec((3, 4), "float32"))
    assert len(backend.lower(plain, device, Config()).schedule.launches) == 1
    backend.close()


def test_commands_cover_the_ops(installed: Install) -> None:
    installed()
    listed = json.loads(CliRunner().invoke(main, ["ops", "--json"]).output)
    assert {row["name"] for row in listed if row["family"] == "example_ops"} == {GELU2, INTERLEAVE}
    for backend in ("webgpu", "triton", "xla"):
        command = ["conform", backend, "--op", GELU2, "--op", INTERLEAVE, "--json"]
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        rows = {row["op"]: row for row in json.loads(done.output)["ops"]}
        assert all(row["cases"].get("native", 0) > 0 for row in rows.values())
    rows = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert "example_ops" in json.dumps(rows)


def test_kernel_is_tuned_over_the_configurations_of_its_author(installed: Install) -> None:
    package = installed()
    from example_ops.kernels import WebGpuKernels

    backend = WebGpuBackend()
    attach(backend, WebGpuKernels())
    device = first_device(backend)
    graph = fw.trace(lambda x: package.gelu2(x) + 1, fw.Spec((512,), "float32"))
    pieces = backend.pieces(graph, device, Config())
    (piece,) = [x for x in pieces if "variant" in x.axes]
    assert piece.axes["variant"] == (0, 1, 2)
    texts = [
        backend.lower(piece.graph, device, Config(options={"variant": n})).kernels[0]
        for n in range(3)
    ]
    assert [text.split("const width: u32 = ")[1][:5] for text in texts] == [
        "64u;\n",
        "64u;\n",
        "128u;",
    ]
    tuned = Config(options={"tuned": (f"{piece.key} variant=2",)})
    assert any("width: u32 = 128u" in x for x in backend.lower(graph, device, tuned).kernels)
    backend.close()
    x = np.linspace(-3, 3, 1 << 14, dtype=np.float32)
    program = fw.compile(
        lambda x: package.gelu2(x) + 1,
        x,
        backend="webgpu",
        level=3,
        start="measured",
        fallback="error",
    )
    np.testing.assert_allclose(program(x), package.gelu2(x) + 1, rtol=1e-5, atol=1e-6)
    program.close()


def _onnx(path: Path, op: str = "Gelu2", **attrs: Any) -> Path:
    nodes = [
        helper.make_node(op, ["x"], ["h"], domain="com.example", **attrs),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "custom", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_custom_domain_is_imported(installed: Install, tmp_path: Path) -> None:
    package = installed()
    path = _onnx(tmp_path / "model.onnx", slope=0.5)
    for backend in ("onnxruntime", "webgpu"):
        program = fw.compile(path, X, backend=backend, fallback="allow")
        want = np.maximum(package.gelu2(X, slope=0.5), 0)
        np.testing.assert_allclose(program(x=X), want, rtol=2e-6, atol=1e-7)
        program.close()


def test_saved_model_reads_back_to_the_op(installed: Install, tmp_path: Path) -> None:
    package = installed()
    graph = fw.trace(lambda x: package.gelu2(x, slope=0.5), fw.Spec((3, 4), "float32"))
    fw.save_onnx(graph, tmp_path / "saved.onnx")
    again = fw.load(tmp_path / "saved.onnx")
    assert [node.op for node in again.nodes] == [GELU2]
    assert again.nodes[0].attrs["slope"] == 0.5


@pytest.mark.parametrize(
    ("op", "attrs", "says"),
    [
        ("Gelu2", {"slop": 0.5}, r"has no attribute slop. It has slope"),
        ("Gelu2", {"slope": "steep"}, r"slope of example_ops.gelu2 is float, found 'steep'"),
        ("Gelu2", {"slope": -1.0}, "slope must be positive, found -1.0"),
        ("Gelu3", {}, r"nothing here knows.*install a package that declares it"),
    ],
)
def test_planted_attribute_of_a_file_is_refused(
    installed: Install, tmp_path: Path, op: str, attrs: Any, says: str
) -> None:
    installed()
    with pytest.raises(FormatError, match=says):
        fw.load(_onnx(tmp_path / "model.onnx", op, **attrs))
