"""The example package from end to end: installed, traced, imported, fused around, judged, tuned."""

import importlib
import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import fusewire as fw
from fusewire.backends.triton.engine import TritonBackend
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.backends.webgpu.outside import call_refusal
from fusewire.backends.webgpu.program import Program
from fusewire.cli import main
from fusewire.contract.backend import Config, Refusal
from fusewire.contract.extension import attach
from fusewire.contract.region import first_device
from fusewire.declare import Cover, TritonBinary, TritonKernel, WgslKernel
from fusewire.errors import (
    CheckError,
    ExtensionWarning,
    FallbackWarning,
    FormatError,
    FusewireError,
    RefusedError,
    RegistryError,
)
from fusewire.ops.outside import OUTSIDE
from fusewire.registry import REGISTRY, lowering_check
from fusewire.store.disk import Store
from fusewire.testing.conformance import case_problems, cases
from fusewire.trials import kernel_check
from tests.own_ops import install
from tests.rewritten import without_bytecode

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
    without_bytecode(monkeypatch)

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


def test_slow_configuration_is_not_the_one_that_is_kept(installed: Install) -> None:
    """A workgroup of one invocation is many times slower: real times show it."""
    change = 'configurations=({"width": 64}, {"width": 256})'
    package = installed("kernels.py", change, 'configurations=({"width": 1}, {"width": 64})')
    x = np.linspace(-3, 3, 1 << 15, dtype=np.float32)
    program = fw.compile(
        lambda x: package.interleave(x, x),
        x,
        backend="webgpu",
        level=3,
        start="measured",
        budget_seconds=300.0,
    )
    assert (program(x) == np.repeat(x, 2)).all()
    (best,) = [row for row in program.why().tried if row.is_chosen]
    assert [dict(kernel["chosen"]) for kernel in best.tuned] == [{"variant": 1}]
    assert best.tuned[0]["gain"] > 1.5
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
    spec = fw.Spec((3, 4), "float32")
    graph = fw.trace(lambda x: package.interleave(package.gelu2(x, slope=0.5), x), spec)
    fw.save_onnx(graph, tmp_path / "saved.onnx")
    again = fw.load(tmp_path / "saved.onnx")
    assert [node.op for node in again.nodes] == [GELU2, INTERLEAVE]
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


# Each part of the package with a fault in it, and the sentence that names the fault.
_WRONG = r"Its example_ops.gelu2 differs from the meaning of the op on sample 0: output0"
_EXP, _STORE = "tl.exp(-slope * v)", "out[at] = gelu2(x[at]);"
FAULTS = {
    "wgsl": ("webgpu", "kernels.py", "return v / (1.0 + exp", "return v / (1.01 + exp", _WRONG),
    "wgsl-text": ("webgpu", "kernels.py", _STORE, _STORE[:-1], "expected `;`"),
    "wgsl-unused": ("webgpu", "kernels.py", _STORE, "", "never uses x, out"),
    "triton": ("triton", "kernels.py", _EXP, "tl.exp(slope * v)", _WRONG),
    "triton-text": ("triton", "kernels.py", _EXP, "tl.expo(v)", "no attribute 'expo'"),
    "triton-pointers": (
        *("triton", "kernels.py", "def gelu2(x, out)", "def gelu2(out, x)"),
        "takes out, x; expected x, out",
    ),
    "xla": ("xla", "kernels.py", 'x * node.attrs["slope"]', "x * 2.0", _WRONG),
    "meaning": ("webgpu", "__init__.py", "ops.multiply(x, gate)", "ops.add(x, gate)", _WRONG),
    "tolerance": (
        *("webgpu", "__init__.py", "expand=_gelu2,", "expand=_gelu2, tolerance=fd.EXACT,"),
        _WRONG,
    ),
    "type-rule": (
        *("webgpu", "__init__.py", 'found {slope}.")\n    return x'),
        'found {slope}.")\n    return x.with_shape((*x.shape, 1))',
        r"by its type rule and float32\[3, 4\] by its expansion",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_caught_with_a_sentence(
    installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    backend, *change, says = FAULTS[fault]
    installed(*change)
    store = Store(tmp_path / "cache")
    monkeypatch.setattr(lowering_check, "shared_store", lambda: store)
    with pytest.warns(ExtensionWarning, match=f"(?s){backend}.example_ops of {backend} did not"):
        (report,) = REGISTRY.meet(backend).extensions
    assert re.search(says, report.problem or ""), report.problem
    # The backend runs without it.
    assert "example_ops.gelu2" not in (REGISTRY.get(backend).lowerings or {})


def test_right_kernels_are_checked_once(
    installed: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed()
    store = Store(tmp_path / "cache")
    monkeypatch.setattr(lowering_check, "shared_store", lambda: store)
    (report,) = REGISTRY.meet("webgpu").extensions
    assert report.problem is None
    REGISTRY.close("webgpu")
    monkeypatch.setattr(lowering_check, "_problem", lambda *given: pytest.fail("checked again"))
    (report,) = REGISTRY.meet("webgpu").extensions
    assert report.ops == (GELU2, INTERLEAVE)


# A kernel of gelu2 that is right on its samples, the largest of which has 257 elements.
_STOPS = {
    "webgpu": ("if (at < out_size)", "if (at < min(out_size, 300u))"),
    "triton": ("mask=at < out_size", "mask=(at < out_size) & (at < 300)"),
}


@pytest.mark.parametrize("isolate", ["first", "never"])
@pytest.mark.parametrize("backend", _STOPS)
def test_kernel_that_is_right_on_its_samples_alone_does_not_answer(
    installed: Install, store: Store, backend: str, isolate: Any
) -> None:
    package = installed("kernels.py", *_STOPS[backend])
    few, many = (np.linspace(-2, 2, n, dtype=np.float32) for n in (200, 1000))
    options = fw.Options(backend=backend, level=0, isolate=isolate)

    def model(x: Any) -> Any:
        return package.gelu2(x * 2) + 1

    program = fw.compile(model, few, options=options)
    np.testing.assert_allclose(program(few), model(few), rtol=2e-6)
    program.close()
    says = (
        rf"The kernel of {GELU2} for {backend} on .* differs from the meaning of the op at "
        rf"{GELU2}\(float32\[1000\], slope=1.702\): output0\[300\] is nan, .* 700 of 1000"
    )
    program = fw.compile(model, many, options=options)
    with pytest.warns(FallbackWarning, match=says):
        answer = program(many)
    np.testing.assert_allclose(answer, model(many), rtol=2e-6)
    program.close()
    refused = fw.compile(model, many, options=replace(options, fallback="error"))
    with pytest.raises(RefusedError, match=r"in quarantine since .* output0.300. is nan"):
        refused(many)
    refused.close()


@pytest.mark.parametrize("level", [1, 2])
def test_first_answer_of_a_comparison_is_not_that_of_a_wrong_kernel(
    installed: Install, level: Any
) -> None:
    package = installed("kernels.py", *_STOPS["webgpu"])
    x = np.linspace(-2, 2, 1000, dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = fw.compile(lambda x: package.gelu2(x), x, backend="webgpu", level=level)
        np.testing.assert_allclose(program(x), package.gelu2(x), rtol=2e-6)
        program.wait()
        np.testing.assert_allclose(program(x), package.gelu2(x), rtol=2e-6)
    program.close()


def test_kernel_is_judged_once_for_a_signature(
    installed: Install, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed()
    x = np.linspace(-2, 2, 999, dtype=np.float32)
    fw.compile(lambda x: package.gelu2(x) * 3, x, backend="webgpu", level=0)(x)
    judged = []
    check = kernel_check.KernelCheck._judged

    def noted(self: Any, graph: Any, inputs: Any) -> Any:
        judged.append(graph)
        return check(self, graph, inputs)

    monkeypatch.setattr(kernel_check.KernelCheck, "_judged", noted)
    # Another region, with the same kernel at the same size.
    fw.compile(lambda x: package.gelu2(x) * 5, x, backend="webgpu", level=0)(x)
    assert judged == []
    chosen = {"variant": 1}
    fw.compile(lambda x: package.gelu2(x) * 5, x, backend="webgpu", level=0, backend_config=chosen)(
        x
    )
    assert len(judged) == 1


def test_kernel_that_could_not_be_judged_is_not_banned(
    installed: Install, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed()
    x = np.linspace(-2, 2, 777, dtype=np.float32)
    options = fw.Options(backend="webgpu", level=0)
    late = Refusal((0,), "not-started", "The machine was busy.")
    with monkeypatch.context() as busy:
        busy.setattr(kernel_check.KernelCheck, "_run", lambda *given: late)
        with pytest.warns(FallbackWarning, match=r"could not be compared .* The machine was busy"):
            fw.compile(lambda x: package.gelu2(x), x, options=options)(x)
    with fw.compile(lambda x: package.gelu2(x), x, options=options) as program:
        np.testing.assert_allclose(program(x), package.gelu2(x), rtol=2e-6)
        assert set(program.why().counts()["data"]) == {"webgpu"}


def test_kernel_that_nothing_could_be_drawn_for_is_judged_the_next_time(
    installed: Install, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed()
    x = np.linspace(-2, 2, 555, dtype=np.float32)
    judged = []

    def not_allowed(self: Any, graph: Any, inputs: Any) -> Any:
        judged.append(graph)
        raise CheckError("not what the op takes")

    monkeypatch.setattr(kernel_check.KernelCheck, "_judged", not_allowed)
    for factor in (3, 5):
        fw.compile(lambda x, by=factor: package.gelu2(x) * by, x, backend="webgpu", level=0)(x)
    # Twice each: as samples are drawn, and as the call has it.
    assert len(judged) == 4


def test_conform_fails_for_a_kernel_that_is_wrong(installed: Install) -> None:
    installed("kernels.py", "return v / (1.0 + exp", "return v / (1.01 + exp")
    with pytest.warns(ExtensionWarning):
        done = CliRunner().invoke(main, ["conform", "webgpu", "--op", GELU2, "--json"])
    assert done.exit_code == 1
    assert "differs from the meaning" in json.loads(done.output)["problems"][0]


# Faults that the check of an extension at its start, in float32 and as it runs untuned, misses.
_MISSED = {
    "configuration": (GELU2, "step < each;", "step < min(each, 3u);", "with variant=1: .*is nan"),
    "dtype": (
        INTERLEAVE,
        "            INTERLEAVE_WGSL,\n",
        '            INTERLEAVE_WGSL.replace("= x[id.x]", "= x[id.x] * 1.000000001"),\n'
        "            dtypes=(fd.float32, fd.float64),\n",
        "interleave-.-float64: wrong: output0",
    ),
}


@pytest.mark.parametrize("fault", _MISSED)
def test_conform_checks_every_configuration_and_dtype(installed: Install, fault: str) -> None:
    op, old, new, says = _MISSED[fault]
    installed("kernels.py", old, new)
    done = CliRunner().invoke(main, ["conform", "webgpu", "--op", op, "--json"])
    assert done.exit_code == 1
    assert re.search(says, json.loads(done.output)["problems"][0]), done.output


def test_tolerance_that_no_rounding_meets_is_found_without_any_backend(installed: Install) -> None:
    package = installed("__init__.py", "expand=_gelu2,", "expand=_gelu2, tolerance=fd.EXACT,")
    problems = [p for case in cases([package.gelu2]) for p in case_problems(case)]
    assert "wrong: output0" in problems[0]


def test_compiled_code_of_a_package_is_used_for_its_target(installed: Install) -> None:
    """Nothing here can run it: what is shown is that it gets into the artifact as it is."""
    package = installed()
    from example_ops.kernels import GELU2_TRITON

    binary = TritonBinary("cubin", b"not run here", "gelu2_kernel", 0, 4)
    backend = TritonBackend()
    backend.lowerings[GELU2] = TritonKernel(
        GELU2_TRITON,
        inputs=("x",),
        outputs=("out",),
        grid=(Cover("out", by="block"),),
        configurations=({"block": 256},),
        binaries={"cuda:sm_90": binary},
    )
    graph = fw.trace(lambda x: package.gelu2(x), fw.Spec((300,), "float32"))
    device = backend.device_for("cuda:sm_90")
    assert device is not None
    files = backend.files(backend.compile(graph, device, Config()))
    (name,) = [name for name in files if name.endswith(".cubin")]
    assert files[name] == b"not run here"
    assert json.loads(files["kernels.json"])["launches"][0]["programs"] == 2
    other = backend.device_for("cuda:sm_80")
    assert other is not None
    files = backend.files(backend.compile(graph, other, Config()))
    (name,) = [name for name in files if name.endswith(".cubin")]
    assert files[name].startswith(b"\x7fELF")
    backend.close()


def test_artifact_of_a_kernel_that_is_gone_is_refused(installed: Install) -> None:
    package = installed()
    from example_ops.kernels import TritonKernels

    backend = TritonBackend()
    attach(backend, TritonKernels())
    graph = fw.trace(lambda x: package.gelu2(x), fw.Spec((8,), "float32"))
    artifact = backend.compile(graph, first_device(backend), Config())
    assert b"tl.exp" not in artifact.payload
    with pytest.raises(FusewireError, match=r"kernel of example_ops.gelu2 .* not installed"):
        TritonBackend().files(artifact)
    backend.close()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"outputs": ()}, "need an output"),
        ({"inputs": ("x", "z")}, "never uses z"),
        ({"configurations": ()}, "1 to 16 configurations"),
        ({"configurations": ({"width": 1}, {"height": 1})}, "all with the same names"),
        ({"workgroup": ("height",)}, "'height' is not a number"),
        ({"grid": (Cover("z"),)}, "covers 'z', which is not a tensor"),
        ({"configurations": ({"out": 1},)}, "name 'out', which is a tensor of it"),
        ({"configurations": ({"x_size": 1},)}, "'x_size', which is a constant about its tensor x"),
        ({"configurations": ({"out_shape0": 1},)}, "a constant about its tensor out"),
        ({"source": "fn first() { x; out; }"}, "exactly one `fn main"),
        ({"source": "@compute fn main() { x; out; }"}, "leave @compute out"),
    ],
)
def test_kernel_that_is_badly_declared_is_refused(change: Any, says: str) -> None:
    fields: dict[str, Any] = {
        "source": "fn main() { out[0] = x[0]; }",
        "inputs": ("x",),
        "outputs": ("out",),
        "grid": (1,),
    }
    with pytest.raises(RegistryError, match=says):
        WgslKernel(**{**fields, **change})


def test_kernel_of_another_kind_or_for_an_op_of_ours_is_refused(installed: Install) -> None:
    installed()
    from example_ops.kernels import TritonKernels, WebGpuKernels

    table = WebGpuBackend().lowerings
    with pytest.raises(RegistryError, match="is a TritonKernel, not a WgslKernel"):
        table[GELU2] = TritonKernels.lowerings[GELU2]
    with pytest.raises(RegistryError, match="add is an op of Fusewire"):
        table["add"] = WebGpuKernels.lowerings[INTERLEAVE]
    with pytest.raises(RegistryError, match="has the inputs x, y, and the op takes x"):
        table[GELU2] = WebGpuKernels.lowerings[INTERLEAVE]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"configurations": ({"slope": 4},)},
            "'slope' is an attribute of example_ops.gelu2, and a number in the configurations",
        ),
        (
            {"inputs": ("slope",), "source": "fn main() { out[0] = slope[0]; }"},
            "has the attribute 'slope', which is a tensor of it in its WgslKernel",
        ),
    ],
)
def test_constants_of_a_kernel_that_have_one_name_are_refused(
    installed: Install, change: Any, says: str
) -> None:
    installed()
    fields: dict[str, Any] = {
        "source": "fn main() { out[0] = x[0] * f32(slope); }",
        "inputs": ("x",),
        "outputs": ("out",),
        "grid": (1,),
    }
    with pytest.raises(RegistryError, match=says):
        WebGpuBackend().lowerings[GELU2] = WgslKernel(**{**fields, **change})


def test_attribute_that_wgsl_cannot_write_leads_to_the_expansion(installed: Install) -> None:
    package = installed("__init__.py", "slope: float = 1.702", "slope: float | int = 1.702")
    from example_ops.kernels import WebGpuKernels

    backend = WebGpuBackend()
    attach(backend, WebGpuKernels())
    spec = fw.Spec((8,), "float32")
    graph = fw.trace(lambda x: package.gelu2(x, slope=5_000_000_000), spec)
    device = first_device(backend)
    refused = call_refusal(graph.nodes[0], WebGpuKernels.lowerings[GELU2], device)
    assert refused == f"slope of {GELU2} is 5000000000, and a constant of WGSL has 32 bits."
    # What the op is made of runs in its place.
    assert not any("fn gelu2" in text for text in backend.lower(graph, device, Config()).kernels)
    backend.close()
