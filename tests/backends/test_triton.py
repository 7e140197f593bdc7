"""Triton behind the contract: kernels compile for GPUs that are not here, and are interpreted."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.backends.triton import client, launch
from fusewire.backends.triton.client import Compiler
from fusewire.backends.triton.engine import INTERPRETER, TritonBackend
from fusewire.backends.triton.estimate import Room
from fusewire.backends.triton.targets import Target
from fusewire.cli.compile import KernelCompiler, compile_graph
from fusewire.contract.backend import Artifact, Config, Device, Offer, Refusal
from fusewire.contract.region import build
from fusewire.contract.tuning import written
from fusewire.dtypes import bfloat16, float32, float64
from fusewire.errors import EngineRaised, OptionsError, ShapeMismatchError
from fusewire.ir.graph import Array, Graph
from fusewire.numerics.judge import judge_op
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import cases, first_cases, sliced
from fusewire.testing.suite import is_tensor_op, reports
from tests.kernel.regions import random_region

TARGETS = ("cuda:sm_80", "cuda:sm_90", "hip:gfx942")
MAGIC = b"\x7fELF"
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def backend() -> Iterator[TritonBackend]:
    found = TritonBackend()
    yield found
    found.close()


@pytest.fixture(scope="module")
def interpreter(backend: TritonBackend) -> Device:
    found = backend.probe()[-1]
    assert isinstance(found, Device)
    return found


def traced(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    return fw.trace(f, *(fw.Spec(shape, "float32") for shape in shapes))


def made(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_the_interpreter_says_what_it_is(backend: TritonBackend, interpreter: Device) -> None:
    assert REGISTRY.backends.get("triton").info == backend.info
    assert interpreter.id == INTERPRETER
    assert interpreter.is_software
    assert "on no GPU" in interpreter.name


def test_auto_does_not_wait_for_the_interpreter() -> None:
    program = fw.compile(np.tanh, fw.Spec((4,), "float32"), level=0)
    assert all(region.backend != "triton" for region in program.plan.regions())


def test_fused_kernels_give_the_right_answer(backend: TritonBackend, interpreter: Device) -> None:
    def layer(x: Any, w: Any, b: Any) -> Any:
        return ops.softmax(np.maximum(x @ w + b, 0))

    x, w, b = made(20, 24), made(24, 40), made(40)
    executable = build(backend, traced(layer, x.shape, w.shape, b.shape), interpreter)
    (got,) = executable.run([x, w, b])
    found = np.maximum(x @ w + b, 0)
    wanted = np.exp(found - found.max(1, keepdims=True))
    assert np.allclose(np.asarray(got), wanted / wanted.sum(1, keepdims=True), rtol=2e-5)


def test_programs_run_by_name_without_fallback() -> None:
    x = made(3, 5)
    program = fw.compile(np.tanh, fw.Spec((3, 5), "float32"), backend="triton", fallback="error")
    np.testing.assert_allclose(program(x), np.tanh(x), rtol=1e-6)
    program.close()


def test_a_child_that_dies_is_replaced(backend: TritonBackend, interpreter: Device) -> None:
    executable = build(backend, traced(lambda x: x + x, (3,)), interpreter)
    x = made(3)
    executable.run([x])
    backend.close()
    (got,) = executable.run([x])
    np.testing.assert_array_equal(got, x + x)


def test_an_array_of_another_shape_is_refused(backend: TritonBackend, interpreter: Device) -> None:
    executable = build(backend, traced(lambda x: x + x, (3,)), interpreter)
    with pytest.raises(ShapeMismatchError, match=r"compiled for \(3,\), and \(4,\) was given"):
        executable.run([made(4)])


def test_what_has_no_expression_is_refused_with_a_reason(
    backend: TritonBackend, interpreter: Device
) -> None:
    def ask(f: Callable[..., Any], dtype: str) -> Any:
        (found,) = backend.claim(fw.trace(f, fw.Spec((4,), dtype)), interpreter)
        return found

    assert isinstance(ask(ops.cbrt, "float32"), Offer)
    refused = ask(ops.cbrt, "float64")
    assert isinstance(refused, Refusal)
    assert "too rough for float64" in refused.reason
    assert "do not compute in complex64" in ask(ops.square, "complex64").reason


def test_scratch_memory_is_used_again(backend: TritonBackend, interpreter: Device) -> None:
    def chain(x: Any) -> Any:
        for _ in range(10):
            x = x @ x
        return x

    graph = traced(chain, (2, 2))
    artifact = backend.compile(graph, interpreter, Config())
    assert artifact.workspace == 2 * 4 * 4
    assert artifact.launch["launches"] == 10
    turn = np.array([[0, 1], [-1, 0]], np.float32)
    (found,) = build(backend, graph, interpreter).run([turn])
    assert np.array_equal(np.asarray(found), np.eye(2))


def test_wrong_tiles_are_refused(backend: TritonBackend) -> None:
    with pytest.raises(OptionsError, match="rows=24: tiles are powers of two"):
        backend.lower(traced(lambda x: x + x, (3,)), Config(options={"rows": 24}))


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_for_gpus_that_are_not_here(backend: TritonBackend, target: str) -> None:
    def layer(x: Any, w: Any) -> Any:
        return ops.softmax(np.tanh(x @ w)), np.argmax(x, 1), ops.cumsum(x, axis=1)

    program = backend.lower(traced(layer, (32, 48), (48, 64)), Config())
    found = backend.compiler.compile(program, Target.of(target).triton, measured=True)
    assert len(found) == len(program.functions) >= 3
    for about in found:
        assert base64.b64decode(about["data"]).startswith(MAGIC)
        assert about["registers"] > 0
        assert about["spill_bytes"] == 0
    assert any(about["shared"] for about in found)


def test_the_same_text_is_compiled_once(backend: TritonBackend) -> None:
    program = backend.lower(traced(lambda x: x * 3, (5,)), Config())
    target = Target.of("cuda:sm_80").triton
    first = backend.compiler.compile(program, target)
    again = backend.lower(traced(lambda x: x * 3, (5,)), Config())
    assert backend.compiler.compile(again, target)[0] is first[0]


def test_what_a_program_needs_is_not_let_go_for_it(
    backend: TritonBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MOST_KEPT", 1)
    compiler, target = Compiler(backend.compiler._client), Target.of("cuda:sm_80").triton

    def compiled(*factors: float) -> int:
        def scaled(*xs: Any) -> Any:
            return tuple(x * factor for x, factor in zip(xs, factors, strict=True))

        shapes = [(8 + int(factor),) for factor in factors]
        return len(compiler.compile(backend.lower(traced(scaled, *shapes), Config()), target))

    assert [compiled(1.5), compiled(2.5), compiled(1.5, 3.5), compiled(3.5, 1.5)] == [1, 1, 2, 2]
    assert len(compiler._kept) == 1


def test_a_child_that_is_killed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    backend = TritonBackend()
    device = backend.device_for("cuda:sm_80")
    assert device is not None
    graph, interpreter = traced(lambda x: x * 7, (3,)), backend.probe()[-1]
    assert isinstance(interpreter, Device)
    backend.compile(graph, device, Config())
    build(backend, graph, interpreter).run([made(3)])
    backend.close()
    assert not list(tmp_path.iterdir())


def test_what_triton_says_of_a_wrong_kernel_is_told(backend: TritonBackend) -> None:
    program = backend.lower(traced(lambda x: x * 3, (5,)), Config())
    (source,) = program.sources
    # Triton has blocks of powers of two only.
    program.sources = [replace(source, configuration=replace(source.configuration, block=3))]
    with pytest.raises(EngineRaised, match="power of 2"):
        backend.compiler.compile(program, Target.of("cuda:sm_80").triton)


def forged(artifact: Artifact, change: Callable[[dict[str, Any]], None]) -> Artifact:
    data = json.loads(artifact.payload)
    change(data)
    return replace(artifact, payload=json.dumps(data).encode())


def planted(canary: Path) -> str:
    return f"x): pass\nopen({str(canary)!r}, 'w').close()\ndef more("


def test_only_what_this_process_printed_is_executed(
    backend: TritonBackend, interpreter: Device, tmp_path: Path
) -> None:
    """An artifact holds kernels and the digest of their text; text that it brings is not read."""
    canary = tmp_path / "canary"
    artifact = backend.compile(traced(lambda x: x * 3, (5,)), interpreter, Config())
    assert b"tl." not in artifact.payload

    def bring_text(data: dict[str, Any]) -> None:
        data["functions"] = [{"name": "map_1", "text": f"({planted(canary)}):"}]
        data["text"] = planted(canary)

    def rename(data: dict[str, Any]) -> None:
        data["sources"][0][0][1] = planted(canary)

    def rename_buffer(data: dict[str, Any]) -> None:
        data["sources"][0][0][4][0][1] = planted(canary)

    def compute_otherwise(data: dict[str, Any]) -> None:
        data["sources"][0][0] = json.loads(
            json.dumps(data["sources"][0][0]).replace('"multiply"', '"add"')
        )

    def configure(data: dict[str, Any]) -> None:
        data["sources"][0][1][0] = planted(canary)

    for change in (bring_text, rename, rename_buffer, compute_otherwise, configure):
        with pytest.raises(EngineRaised, match=r"expected a|print another text"):
            backend.load(forged(artifact, change), interpreter, {})
        assert not canary.exists(), change.__name__
    # The canary would be seen: printed text that held it would be executed.
    exec(f"def f({planted(canary)}): pass")  # shows that the plant is alive
    assert canary.exists()


def test_a_model_for_another_machine_is_a_folder_of_files(
    backend: TritonBackend, tmp_path: Path
) -> None:
    device = backend.device_for("cuda:sm_90")
    assert device is not None
    graph = traced(lambda x: np.exp(x) + 1, (7,))
    compiler = KernelCompiler(backend, backend, device, tmp_path)
    report = compile_graph(graph, compiler, lambda what, share: None)
    assert report["is_whole"]
    (region,) = report["regions"]
    home = tmp_path / region["folder"]
    assert {*region["files"]} >= {"module.py", "kernels.json", "graph.txt"}
    (kernel,) = json.loads((home / "kernels.json").read_text())["kernels"]
    assert (home / kernel["file"]).read_bytes().startswith(MAGIC)
    assert kernel["pointers"] == ["fp32", "fp32"]


def test_untimed_kernels_are_cut_by_what_they_take(
    backend: TritonBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusewire.backends.triton.estimate._MOST", 3)
    device = backend.device_for("cuda:sm_90")
    assert device is not None
    graph = traced(lambda x, w: np.maximum(x @ w, 0), (2048, 64), (64, 1024))
    compiler = KernelCompiler(backend, backend, device, tmp_path, tunes=True)
    report = compile_graph(graph, compiler, lambda what, share: None)
    (region,) = report["regions"]
    assert region["tuning"]["is_timed"] is False
    assert "Not timed" in region["tuning"]["rule"]
    (kernel,) = region["tuning"]["kernels"]
    assert kernel["tried"] == 3
    assert kernel["takes"]["spill_bytes"] == 0
    # Larger tiles load less for a result, and there are enough of them to keep such a GPU busy.
    assert kernel["chosen"]["rows"] * kernel["chosen"]["columns"] == 128 * 64
    (told,) = json.loads((tmp_path / region["folder"] / "kernels.json").read_text())["kernels"]
    assert told["registers"] == kernel["takes"]["registers"]
    # With no room for shared memory nothing is left to choose.
    room = {"90": Room(132, 0)}
    monkeypatch.setattr("fusewire.backends.triton.estimate._ROOMS", room)
    _, (left,) = backend.estimates(graph, device)
    assert left.left_out == {"does not fit": 3}
    assert left.chosen["rows"] == 32


def test_kernels_cut_one_by_one_are_right(backend: TritonBackend, interpreter: Device) -> None:
    graph = traced(lambda x: ops.softmax(x @ x) + 1, (37, 37))
    here = backend.device_for("cuda:sm_80")
    assert here is not None
    assert not backend.pieces(graph, interpreter, Config())
    pieces = {piece.key: piece for piece in backend.pieces(graph, here, Config())}
    assert len(pieces) == 2
    last = {key: {n: x[-1] for n, x in piece.axes.items()} for key, piece in pieces.items()}
    config = Config(options={"tuned": written(last)})
    untuned, tuned = backend.lower(graph, Config()), backend.lower(graph, config)
    assert untuned.text != tuned.text
    assert {f.warps for f in tuned.functions} == {2}
    x = np.random.default_rng(3).standard_normal((37, 37)).astype(np.float32) / 4
    (found,) = build(backend, graph, interpreter, config).run([x])
    assert isinstance(found, np.ndarray)
    wanted = np.exp((x @ x).astype(np.float64))
    np.testing.assert_allclose(found, wanted / wanted.sum(1, keepdims=True) + 1, rtol=1e-5)


@pytest.mark.parametrize("line", ["0123456789abcdef rows=24", "0123456789abcdef speed=2", "x", 7])
def test_a_cut_that_is_none_is_refused(backend: TritonBackend, line: Any) -> None:
    with pytest.raises(OptionsError, match=r"rows=24|speed|a line is KEY"):
        backend.lower(traced(lambda x: x + x, (3,)), Config(options={"tuned": (line,)}))


@pytest.mark.parametrize("text", ["cuda:90", "hip:mi300", "cuda:sm_"])
def test_a_target_that_is_none_is_refused(backend: TritonBackend, text: str) -> None:
    with pytest.raises(OptionsError, match="is not a target"):
        backend.device_for(text)
    assert backend.device_for("tpu:v5") is None


def test_drivers_that_are_not_here_are_not_found() -> None:
    names = {driver.interface.name for driver in launch.drivers()}
    assert {device.kind for device in launch.find_devices()} <= names


def test_every_op_that_is_claimed_is_right(backend: TritonBackend, interpreter: Device) -> None:
    tensor_ops = [op for op in all_ops().values() if is_tensor_op(op)]
    firsts = [first_cases(op)[0] for op in tensor_ops]
    share = [c for op in tensor_ops for c in sliced(list(cases([op])), Fraction(1, 16))]
    found = [case for case in dict.fromkeys([*firsts, *share]) if case.is_numeric]
    rows, problems = reports(backend, interpreter, found, few=True)
    assert not problems, "\n".join(problems)
    taken = {row.op.name for row in rows if row.status in ("proven", "partial")}
    assert len(taken) >= 0.75 * len(tensor_ops)


def test_kernels_of_random_regions_are_right(backend: TritonBackend, interpreter: Device) -> None:
    wrong, run = {}, 0
    for seed in range(12):
        region = random_region(seed)
        graph, inputs = region.generated.graph, region.generated.inputs
        answers = backend.claim(graph, interpreter)
        if any(isinstance(x, Refusal) for x in answers):
            continue
        run += 1
        got = build(backend, graph, interpreter).run(inputs)
        verdict = judge_op(graph, inputs, got)
        if verdict.status == "wrong":
            wrong[seed] = verdict.reason
    assert not wrong
    assert run >= 6


@pytest.mark.parametrize("of", [float32, float64, bfloat16])
def test_rounding_is_to_nearest_even(backend: TritonBackend, interpreter: Device, of: Any) -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, -1.00390625, np.nan, np.inf, 3e38], np.float32)
    graph = fw.trace(lambda x: ops.cast(x, dtype=of), fw.Spec(x.shape, "float32"))
    (got,) = build(backend, graph, interpreter).run([x])
    wanted = x.astype(of.numpy).astype(np.float64)
    assert np.array_equal(np.asarray(got, np.float64), wanted, equal_nan=True)
