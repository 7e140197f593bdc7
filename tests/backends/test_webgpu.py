"""WebGPU behind the contract: what a real device asks of it, and a slice of the suite."""

import gc
import math
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import fusewire as fw
import fusewire.backends.webgpu
from fusewire import dtypes
from fusewire.backends.webgpu import context as context_module
from fusewire.backends.webgpu.context import ENGINE_ERRORS
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.backends.webgpu.executable import WebGpuExecutable, spans
from fusewire.backends.webgpu.program import Program
from fusewire.backends.webgpu.space import SPACE
from fusewire.contract.backend import Config, Device, Offer, Refusal, Unavailable
from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import answers_to
from fusewire.contract.region import build
from fusewire.dtypes import DType, bool_, dtype, float32, float64, int32, uint8
from fusewire.errors import (
    EngineOutOfMemory,
    EngineRaised,
    OptionsError,
    RegistryError,
    ShapeMismatchError,
)
from fusewire.ir.dims import Dim, symbol
from fusewire.ir.graph import Array, Constant, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.conversion import bitcast, cast
from fusewire.ops.declare import Trait
from fusewire.ops.elementwise import add, exp, multiply, negative, tanh
from fusewire.ops.logic import equal, greater
from fusewire.ops.movement import broadcast_to, reshape
from fusewire.ops.normalization import softmax
from fusewire.ops.table import all_ops
from fusewire.plan.transfer import hand_over
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import Case, cases
from fusewire.testing.suite import is_tensor_op, run_cases

# Every choice that tuning has, once, and the extremes.
CHOICES: list[tuple[str, Any]] = [("tile", (1, 1)), ("tile", (16, 16))]
CHOICES += sorted(
    {(n, x) for axes in SPACE.values() for n, values in axes.items() for x in values}, key=str
)
BACKEND = WebGpuBackend()
FOUND = BACKEND.probe()
NO_ADAPTER = next((f.reason for f in FOUND if isinstance(f, Unavailable)), "")
pytestmark = pytest.mark.skipif(bool(NO_ADAPTER), reason=NO_ADAPTER or "has an adapter")
GPU = next((f for f in FOUND if isinstance(f, Device)), Device("webgpu:0", "none"))


def value(of: DType, *shape: Any, name: str = "x") -> Value:
    return Value(TensorType(of, shape), name)


def unary(make: Callable[[Value], Value], of: DType, *shape: Dim) -> Graph:
    x = value(of, *shape)
    return Graph([x], [make(x)])


def run(graph: Graph, *inputs: Any, config: Config = Config()) -> list[Any]:
    """Run on the device and read the outputs back."""
    found = build(BACKEND, graph, GPU, config).run(inputs)
    assert all(isinstance(x, Buffer) for x in found)
    return [x.read() for x in found]


def held(array: Array) -> Any:
    """Put an array on the device."""
    graph = unary(lambda x: reshape(x, shape=array.shape), dtype(array.dtype), *array.shape)
    (found,) = build(BACKEND, graph, GPU).run([array])
    return found


# Who it is and what it leaves alone


def test_backend_is_found_by_its_entry_point() -> None:
    assert REGISTRY.backends.get("webgpu").info == BACKEND.info


def test_device_tells_what_the_adapter_has() -> None:
    facts = GPU.facts
    assert GPU.id == "webgpu:0"
    assert GPU.is_software == (facts["adapter_type"] == "CPU")
    assert {"float32", "int32", "bool"} <= set(facts["dtypes"])  # type: ignore[arg-type]
    assert ("float64" in facts["dtypes"]) == (facts["has_f64"] and facts["has_int64"])  # type: ignore[operator]
    for name in ("max_binding_bytes", "max_workgroups", "max_invocations", "workgroup_bytes"):
        assert isinstance(facts[name], int)
        assert facts[name] > 0  # type: ignore[operator]


def test_outputs_stay_on_the_device() -> None:
    assert BACKEND.exchange.memory == GPU.id
    assert BACKEND.exchange_on(GPU).memory == GPU.id


def test_every_adapter_has_a_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewire.backends.webgpu import context

    # One adapter opened twice stands for two: buffers of one cannot be used on the other.
    adapter = context.find_adapters()[0]
    monkeypatch.setattr(context, "find_adapters", lambda: [adapter, adapter])
    backend = WebGpuBackend()
    first, second = (found for found in backend.probe() if isinstance(found, Device))
    assert (first.id, second.id) == ("webgpu:0", "webgpu:1")
    graph, x = unary(negative, float32, 3), np.array([1.0, -2.0, 3.0], np.float32)
    here, there = (build(backend, graph, device) for device in (first, second))
    (buffer,) = here.run([x])
    assert isinstance(buffer, Buffer)
    with pytest.raises(ShapeMismatchError, match=r"on webgpu:1, found .* on webgpu:0"):
        there.run([buffer])
    exchanges = [backend.exchange_on(device) for device in (first, second)]
    assert hand_over(buffer, exchanges[0]) is buffer
    carried = hand_over(buffer, exchanges[1])
    assert isinstance(carried, np.ndarray)
    (back,) = there.run([carried])
    assert isinstance(back, Buffer)
    assert back.device == "webgpu:1"
    assert np.array_equal(back.read(), x)
    backend.close()


ICDS = Path("/usr/share/vulkan/icd.d")
LISTED = """
import wgpu
from fusewire.backends.webgpu.engine import WebGpuBackend
native = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == "Vulkan"]
print(len(native), len(WebGpuBackend().probe()))
"""


@pytest.mark.skipif(not list(ICDS.glob("lvp*.json")), reason="there is no lavapipe")
def test_adapter_of_a_driver_that_is_installed_twice_is_listed_once(tmp_path: Path) -> None:
    own = next(ICDS.glob("lvp*.json"))
    again = tmp_path / "again.json"
    again.write_text(own.read_text())
    env = {**os.environ, "VK_ICD_FILENAMES": f"{own}:{again}"}
    done = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, env=env)
    assert done.stdout.split() == ["2", "1"], done.stderr


class _Listed:
    """An adapter as a machine with cards lists it."""

    def __init__(self, api: str, kind: str = "DiscreteGPU", card: int = 7) -> None:
        self.info = {
            "backend_type": api,
            "adapter_type": kind,
            "device": f"card {card}",
            "vendor_id": 0x10DE,
            "device_id": card,
        }


def test_card_is_listed_once_and_two_of_a_model_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusewire.backends.webgpu import context

    monkeypatch.setattr(context, "_PCI", tmp_path)
    vulkan, other, d3d = _Listed("Vulkan"), _Listed("Vulkan"), _Listed("D3D12")
    small = _Listed("D3D12", "IntegratedGPU", 8)
    assert context.distinct([d3d, vulkan, small]) == [vulkan, small]
    assert context.distinct([vulkan, other, d3d]) == [vulkan, other]
    for slot in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / slot).mkdir()
        (tmp_path / slot / "vendor").write_text("0x10de\n")
        (tmp_path / slot / "device").write_text("0x0007\n")
        found = context.distinct([vulkan, other, _Listed("Vulkan")])
        assert len(found) == len(list(tmp_path.iterdir()))


ALONE = """
import os, sys
from fusewire.registry import REGISTRY
from fusewire.plan.transfer import hand_over
backend = REGISTRY.backends.get("webgpu")
assert "wgpu" not in sys.modules, "importing the backend imports wgpu"
import numpy as np
import fusewire as fw
x = np.ones((2, 2), np.float32)
double = fw.compile(lambda x: x + x, backend="webgpu", fallback="error", isolate=False)
assert (double(x) == 2).all()
assert "XDG_RUNTIME_DIR" not in os.environ, "the user's environment changed"
"""


def test_user_notices_nothing_of_drivers() -> None:
    alone = {key: held for key, held in os.environ.items() if key != "XDG_RUNTIME_DIR"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_missing_adapter_is_a_reason_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusewire.backends.webgpu import context

    monkeypatch.setattr(context, "find_adapters", list)
    (found,) = WebGpuBackend().probe()
    assert isinstance(found, Unavailable)
    assert found.code == "no-device"
    assert "mesa-vulkan-drivers" in found.fix


def test_missing_package_is_a_reason_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.backends.webgpu.engine.find_spec", lambda name: None)
    (found,) = WebGpuBackend().probe()
    assert isinstance(found, Unavailable)
    assert 'pip install "wgpu>=' in found.fix


def test_closed_backend_starts_again() -> None:
    backend = WebGpuBackend()
    for _ in range(2):
        assert isinstance(backend.probe()[0], Device)
        backend.close()
        backend.close()


def test_unknown_device_is_an_error() -> None:
    stranger = replace(GPU, id="webgpu:99")
    with pytest.raises(RegistryError, match="webgpu:99"):
        build(BACKEND, unary(negative, float32, 2), stranger)


def test_adapter_is_chosen_by_its_power() -> None:
    x = np.ones(3, np.float32)
    program = fw.compile(np.negative, x, backend="webgpu", device=f"webgpu:{GPU.facts['power']}")
    assert np.array_equal(program(x), -x)
    with pytest.raises(RegistryError, match="asked to run on webgpu:huge and has webgpu:0"):
        fw.compile(np.negative, x, backend="webgpu", device="webgpu:huge")
    high, low = (
        Device(f"webgpu:{place}", power, facts={"power": power})
        for place, power in enumerate(("high", "low"))
    )
    for name, meant in (("webgpu:high", [high]), ("webgpu:low", [low]), ("webgpu", [high, low])):
        assert [device for device in (high, low) if answers_to(device, name)] == meant


# Claims


def refused(graph: Graph, device: Device = GPU) -> list[str]:
    return [x.reason for x in BACKEND.claim(graph, device) if isinstance(x, Refusal)]


def test_named_sizes_are_claimed_to_be_specialised() -> None:
    x = value(float32, symbol("n"))
    (offer,) = BACKEND.claim(Graph([x], [exp(x)]), GPU)
    assert isinstance(offer, Offer)
    assert offer.shapes == "static"


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (unary(exp, float64, 2), "32 bits at most"),
        (unary(exp, float64, symbol("n")), "32 bits at most"),
        (unary(lambda x: cast(x, dtype="float8_e5m2"), float32, 2), "float8_e5m2"),
        (unary(lambda x: equal(x, x), dtype("string"), 2), "tensors of numbers"),
        (unary(negative, float32, 1 << 40), "binds"),
    ],
)
def test_refusal_is_a_sentence(graph: Graph, said: str) -> None:
    (reason,) = refused(graph)
    assert said in reason
    assert reason.endswith(".")


def test_dtype_that_the_adapter_lacks_is_refused() -> None:
    poor = replace(GPU, facts={**GPU.facts, "features": ()})
    assert "shader-int64" in refused(unary(negative, dtype("int64"), 2), poor)[0]
    assert refused(unary(lambda x: reshape(x, shape=(2, 1)), dtype("int64"), 2), poor) == []
    assert refused(unary(negative, dtype("float16"), 2), poor) == []


def test_options_are_checked() -> None:
    graph = unary(negative, float32, 2)
    with pytest.raises(OptionsError, match="workgroup"):
        build(BACKEND, graph, GPU, Config(options={"workgroup": 1 << 20}))
    with pytest.raises(OptionsError, match="no option"):
        build(BACKEND, graph, GPU, Config(options={"work": 1}))


# Buffers


@pytest.mark.parametrize("of", ["bool", "int8", "float16", "int32", "int64", "complex128"])
def test_buffer_is_read_and_written_at_any_offset(of: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 2, 13).astype(dtype(of).numpy)
    buffer = held(array)
    assert np.array_equal(buffer.read(), array)
    assert np.array_equal(buffer.read(3, 5), array[3:8])
    assert np.array_equal(buffer.read(13), array[13:])
    for offset, count in ((0, 1), (5, 3), (12, 1), (1, 12), (13, 0)):
        part = rng.integers(0, 2, count).astype(array.dtype)
        buffer.write(part, offset)
        array[offset : offset + count] = part
        assert np.array_equal(buffer.read(), array)


def test_buffer_checks_its_bounds() -> None:
    buffer = held(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert buffer.type == TensorType(int32, (2, 3))
    with pytest.raises(ShapeMismatchError):
        buffer.read(4, 3)
    with pytest.raises(ShapeMismatchError):
        buffer.write(np.zeros(1, np.int32), 6)
    with pytest.raises(ShapeMismatchError):
        buffer.write(np.zeros(1, np.float32))


def test_tensors_without_elements_and_without_axes() -> None:
    assert run(unary(exp, float32), np.float32(1.0))[0].shape == ()
    (empty,) = run(unary(exp, float32, 0, 3), np.zeros((0, 3), np.float32))
    assert empty.shape == (0, 3)
    assert held(np.zeros((2, 0), np.uint8)).read().shape == (2, 0)


def test_buffers_are_used_again_once_nobody_holds_them() -> None:
    executable = build(BACKEND, unary(negative, float32, 777), GPU)
    x = np.zeros(777, np.float32)
    (first,) = executable.run([x])
    kept = first.gpu  # type: ignore[union-attr]
    (second,) = executable.run([x])
    assert second.gpu is not kept  # type: ignore[union-attr]
    del first
    for _ in range(8):
        (found,) = executable.run([x])
        if found.gpu is kept:  # type: ignore[union-attr]
            break
    else:
        pytest.fail("no run had the memory again")


def test_tensors_go_from_region_to_region_without_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = build(BACKEND, unary(lambda x: add(x, x), float32, 5), GPU)
    second = build(BACKEND, unary(negative, float32, 5), GPU)
    (doubled,) = first.run([np.ones(5, np.float32)])
    context = BACKEND.context(GPU)
    with monkeypatch.context() as patched:
        patched.setattr(type(context), "download", None)
        patched.setattr(type(context), "upload", None)
        (found,) = second.run([doubled])
    assert isinstance(found, Buffer)
    assert np.array_equal(found.read(), np.full(5, -2.0, np.float32))


def test_input_that_does_not_fit_is_an_error() -> None:
    executable = build(BACKEND, unary(negative, float32, 5), GPU)
    for wrong in (np.ones(4, np.float32), np.ones(5), held(np.ones((5, 1), np.float32))):
        with pytest.raises(ShapeMismatchError):
            executable.run([wrong])


# Outputs are the caller's


def test_outputs_are_fresh() -> None:
    x = value(float32, 2, 3)
    constant = Value(TensorType(float32, (2,)), None, Constant.of(np.ones(2, np.float32)))
    twice = add(x, x)
    outputs = [reshape(x, shape=(6,)), x, twice, twice, reshape(twice, shape=(3, 2)), constant]
    executable = build(BACKEND, Graph([x], outputs, output_names=list("abcdef")), GPU)
    given = held(np.arange(6, dtype=np.float32).reshape(2, 3))
    first = executable.run([given])
    assert len({id(b.gpu) for b in (*first, given)}) == 7
    for buffer in first:
        assert isinstance(buffer, Buffer)
        buffer.write(np.full(buffer.type.size, 9.0, np.float32))
    expected = np.arange(6, dtype=np.float32)
    assert np.array_equal(given.read().ravel(), expected)
    second = [b.read().ravel() for b in executable.run([given])]
    for found, factor in zip(second, (1, 1, 2, 2, 2), strict=False):
        assert np.array_equal(found, expected * factor)
    assert np.array_equal(second[5], [1, 1])


def test_buffer_of_another_shape_is_not_taken() -> None:
    executable = build(BACKEND, unary(lambda x: add(x, x), float32, 5), GPU)
    (twice,) = executable.run([held(np.ones(5, np.float32))])
    (again,) = executable.run([twice])
    assert isinstance(again, Buffer)
    assert np.array_equal(again.read(), np.full(5, 4.0))
    with pytest.raises(ShapeMismatchError):
        executable.run([held(np.zeros(4, np.float32))])


@pytest.mark.parametrize("debug", [False, True])
def test_threads_may_run_at_once(debug: bool) -> None:
    # Two kernels, with scratch memory between them.
    graph = unary(lambda x: matmul(matmul(x, x), x), float32, 64, 64)
    executable = build(BACKEND, graph, GPU, Config(options={"debug": debug}))
    assert executable.is_reentrant
    wrong: list[int] = []

    def work(number: int) -> None:
        x = np.eye(64, dtype=np.float32) * (number + 1)
        for _ in range(20):
            (found,) = executable.run([x])
            assert isinstance(found, Buffer)
            if not np.array_equal(found.read(), x**3):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Artifacts


def test_weights_are_bound_by_digest() -> None:
    weight = np.arange(4096, dtype=np.float32)
    x = value(float32, 4096)
    held_ = Value(TensorType(float32, (4096,)), "w", Constant.of(weight))
    artifact = BACKEND.compile(Graph([x], [add(multiply(x, held_), 0.5)]), GPU, Config())
    assert artifact.kind == "rebuild"
    assert len(artifact.payload) < weight.nbytes
    (slot,) = [slot for slot in artifact.slots if slot.role == "weight"]
    assert slot.digest is not None
    for factor in (1, 2):
        executable = BACKEND.load(artifact, GPU, {slot.digest: weight * np.float32(factor)})
        (found,) = executable.run([np.ones(4096, np.float32)])
        assert isinstance(found, Buffer)
        assert np.array_equal(found.read(), weight * factor + 0.5)
        executable.close()


def test_program_goes_to_bytes_and_back() -> None:
    artifact = BACKEND.compile(unary(lambda x: exp(matmul(x, x)), float32, 3, 3), GPU, Config())
    program = Program.from_bytes(artifact.payload)
    assert program.to_bytes() == artifact.payload
    assert artifact.launch["dispatches"] == 1
    assert artifact.workspace == sum(program.schedule.scratch) == 0


def test_scratch_memory_is_used_again() -> None:
    def chain(x: Value) -> Value:
        for _ in range(10):
            x = matmul(x, x)
        return x

    artifact = BACKEND.compile(unary(chain, float32, 2, 2), GPU, Config())
    assert artifact.workspace == 2 * 4 * 4
    assert artifact.launch["kernels"] == 1
    assert artifact.launch["dispatches"] == 10
    turn = np.array([[0, 1], [-1, 0]], np.float32)
    (found,) = run(unary(chain, float32, 2, 2), turn)
    assert np.array_equal(found, np.eye(2))


def test_one_kernel_serves_all_shapes_of_a_kind() -> None:
    def bias(*shape: int) -> Graph:
        x, y = value(float32, *shape), value(float32, shape[-1], name="y")
        return Graph([x, y], [add(x, y)])

    sources = {
        tuple(Program.from_bytes(BACKEND.compile(graph, GPU, Config()).payload).kernels)
        for graph in (bias(2, 3), bias(7, 5), bias(2, 1, 3, 4))
    }
    assert len(sources) == 1


def test_pipelines_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = WebGpuBackend()
    backend.probe()
    monkeypatch.setattr(context_module, "PIPELINES", 2)
    x = np.arange(5, dtype=np.float32)
    ops = (negative, exp, tanh)
    built = [build(backend, unary(op, float32, 5), GPU) for op in ops]
    artifacts = [backend.compile(unary(op, float32, 5), GPU, Config()) for op in ops]
    (first, *_, last) = (Program.from_bytes(made.payload).kernels[0] for made in artifacts)
    context = backend.context(GPU)
    kept = context.pipeline(last)
    dropped = context.pipeline(first)
    assert context.pipeline(last) is kept
    context.pipeline(Program.from_bytes(artifacts[1].payload).kernels[0])
    assert context.pipeline(first) is not dropped
    (found,) = built[0].run([x])
    assert isinstance(found, Buffer)
    assert np.array_equal(found.read(), -x)
    backend.close()


# What goes wrong


def test_buffer_of_a_cycle_is_given_back_alive() -> None:
    context, type_ = BACKEND.context(GPU), TensorType(float32, (77_777,))
    ring: list[Any] = [context.upload(np.zeros(77_777, np.float32), type_)]
    ring += [ring, ring[0].gpu]
    del ring
    gc.collect()
    x = np.arange(77_777, dtype=np.float32)
    assert np.array_equal(context.upload(x, type_).read(), x)


def test_lost_device_is_opened_again() -> None:
    backend = WebGpuBackend()
    backend.probe()
    x = np.arange(5, dtype=np.float32)
    first, second = (build(backend, unary(op, float32, 5), GPU) for op in (negative, exp))
    (kept,) = first.run([x])
    backend.context(GPU).gpu.destroy()
    for executable, expected in ((first, -x), (second, np.exp(x)), (first, -x)):
        (found,) = executable.run([x])
        assert isinstance(found, Buffer)
        assert np.allclose(found.read(), expected, rtol=1e-6)
    with pytest.raises(EngineRaised, match="before it was lost"):
        first.run([kept])
    backend.close()


def test_memory_beyond_the_limit_is_a_typed_error() -> None:
    graph = unary(lambda x: matmul(x, x), float32, 16, 16)
    with pytest.raises(EngineOutOfMemory, match="2,048 bytes"):
        build(BACKEND, graph, GPU, Config(options={"memory": 2047}))
    x = np.eye(16, dtype=np.float32)
    assert np.array_equal(run(graph, x, config=Config(options={"memory": 2048}))[0], x)


def test_shader_that_does_not_compile_leaves_the_device_alone() -> None:
    context = BACKEND.context(GPU)
    with pytest.raises(ENGINE_ERRORS, match="expected"):
        context.pipeline("fn main( {")
    assert run(unary(negative, float32, 1), np.ones(1, np.float32))[0] == -1


def test_timestamps_tell_of_every_dispatch() -> None:
    if not GPU.facts["has_timestamps"]:
        pytest.skip("the adapter has no timestamps")
    graph = unary(lambda x: matmul(matmul(x, x), x), float32, 64, 64)
    executable = build(BACKEND, graph, GPU, Config(options={"timestamps": True}))
    assert isinstance(executable, WebGpuExecutable)
    executable.run([np.ones((64, 64), np.float32)])
    seconds = executable.kernel_seconds
    assert len(seconds) == 2
    assert all(0 < span < 10 for span in seconds)
    # They are those of a run of this thread.
    seen: list[float] = [1.0]
    thread = threading.Thread(
        target=lambda: seen.__setitem__(slice(None), executable.kernel_seconds)
    )
    thread.start()
    thread.join()
    assert seen == []


def test_clock_that_runs_backwards_tells_nothing() -> None:
    first, second = spans(np.array([5, 7, 7, 5], np.uint64))
    assert first == pytest.approx(2e-9)
    assert math.isnan(second)


def test_debug_mode_runs_kernel_by_kernel() -> None:
    graph = unary(lambda x: matmul(matmul(x, x), x), float32, 2, 2)
    x = np.array([[0, 1], [-1, 0]], np.float32)
    assert np.array_equal(run(graph, x, config=Config(options={"debug": True}))[0], -x)


@pytest.mark.parametrize(("name", "value"), CHOICES, ids=str)
def test_no_choice_of_the_space_changes_an_answer(name: str, value: Any) -> None:
    options = {name: value}
    n = np.arange(-500, 503, dtype=np.int32)
    (sums,) = run(unary(lambda x: add(x, x), int32, n.size), n, config=Config(options=options))
    assert np.array_equal(sums, n + n)
    graph = unary(lambda x: softmax(matmul(x, x)), float32, 37, 37)
    x = np.random.default_rng(4).standard_normal((37, 37)).astype(np.float32) / 3
    wanted = np.exp((x @ x).astype(np.float64))
    (found,) = run(graph, x, config=Config(options=options))
    assert np.allclose(found, wanted / wanted.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tile", [(1, 1), (4, 2), (2, 8)], ids=str)
@pytest.mark.parametrize("workgroup", [8, 64])
def test_tiles_in_workgroup_memory_are_right_at_every_edge(tile: Any, workgroup: int) -> None:
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 17, 21), (3, 21, 35)))
    graph = fw.trace(lambda x, w: np.maximum(np.tanh(x) @ w, 0) + x[:, :, :1], x, w)
    config = Config(options={"tile": tile, "workgroup": workgroup, "depth": 8})
    program = Program.from_bytes(BACKEND.compile(graph, GPU, config).payload)
    assert any("var<workgroup>" in source for source in program.kernels)
    wanted = np.maximum(np.tanh(x.astype(np.float64)) @ w, 0) + x[:, :, :1]
    np.testing.assert_allclose(run(graph, x, w, config=config)[0], wanted, rtol=1e-5, atol=1e-5)
    # What does not fit into the memory that all devices have is made in registers.
    large = Config(options={"tile": (16, 16), "workgroup": 256, "depth": 32})
    np.testing.assert_allclose(run(graph, x, w, config=large)[0], wanted, rtol=1e-5, atol=1e-5)


# Kernels


def test_factor_that_is_the_same_all_along_the_depth() -> None:
    x, factor = value(float32, 3, 4), value(float32, name="factor")
    graph = Graph([x, factor], [matmul(x, broadcast_to(factor, shape=(4, 5)))])
    held = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = run(graph, held, np.float32(0.5))
    assert np.array_equal(found, np.repeat(held.sum(axis=1, keepdims=True) / 2, 5, axis=1))


def test_more_workgroups_than_one_dimension_holds() -> None:
    widest = GPU.facts["max_workgroups"]
    assert isinstance(widest, int)
    x = np.arange(widest * 8 + 3, dtype=np.int32)
    config = Config(options={"workgroup": 8})
    (found,) = run(unary(lambda x: add(x, x), int32, x.size), x, config=config)
    assert np.array_equal(found, x + x)
    (flags,) = run(unary(lambda x: greater(x, 5), int32, x.size), x, config=config)
    assert np.array_equal(flags, x > 5)


def test_elements_smaller_than_a_word_lie_as_numpy_has_them() -> None:
    x = np.array([[250, 3, 7], [1, 255, 0], [9, 9, 6]], np.uint8)
    (found,) = run(unary(lambda x: add(x, x), uint8, 3, 3), x)
    assert np.array_equal(found, x + x)
    (flags,) = run(unary(lambda x: greater(x, 6), uint8, 3, 3), x)
    assert flags.dtype == bool_.numpy
    assert np.array_equal(flags, x > 6)
    (bits,) = run(
        unary(lambda x: bitcast(x, dtype="uint8"), dtype("int8"), 2), np.array([-1, 5], np.int8)
    )
    assert bits.tolist() == [255, 5]


@pytest.mark.parametrize("of", ["float16", "bfloat16"])
def test_small_floats_are_rounded_to_nearest_even(of: str) -> None:
    small = dtype(of).numpy
    every = np.arange(1 << 16, dtype=np.uint16).view(small)
    (wide,) = run(unary(lambda x: cast(x, dtype=float32), dtype(of), every.size), every)
    assert np.array_equal(wide.view(np.uint32) & 0x7FFFFFFF > 0x7F800000, np.isnan(wide))
    assert np.array_equal(wide, every.astype(np.float32), equal_nan=True)
    rng = np.random.default_rng(2)
    near = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        between = (wide[:-1].astype(np.float64) + wide[1:]) / 2
        given = np.concatenate([near, between.astype(np.float32)])
        expected = given.astype(small)
    (found,) = run(unary(lambda x: cast(x, dtype=of), float32, given.size), given)
    assert np.array_equal(found, expected, equal_nan=True)


SWEEPS: dict[str, Any] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": special.erf, "erfc": special.erfc, "cbrt": np.cbrt, "sigmoid": special.expit,
    "sqrt": np.sqrt, "reciprocal": np.reciprocal,
}  # fmt: skip


@pytest.mark.parametrize("name", SWEEPS)
def test_function_keeps_its_bound_over_all_numbers(name: str) -> None:
    """Numbers of every size, where the function is a number: 4 epsilon, as the op says."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    sizes = np.exp(rng.uniform(np.log(1e-37), np.log(1e37), 6000))
    x = np.concatenate([sizes, -sizes, rng.uniform(-100, 100, 4000), rng.uniform(-2, 2, 4000)])
    x = x.astype(np.float32)
    (found,) = run(unary(all_ops()[name], float32, x.size), x)
    with np.errstate(all="ignore"):
        expected = SWEEPS[name](x.astype(np.float64))
        apart = np.abs(found - expected)
        bound = 4 * (2.0**-23 * np.abs(expected) + np.finfo(np.float32).smallest_normal)
        stored = expected.astype(np.float32)
    same = (found == stored) | (np.isnan(found) & np.isnan(stored))
    wrong = ~same & ~(apart <= bound)
    assert not wrong.any(), list(zip(x[wrong], found[wrong], stored[wrong], strict=True))[:5]


def test_power_keeps_its_bound() -> None:
    rng = np.random.default_rng(3)
    x = np.exp(rng.uniform(-80, 80, 20000)).astype(np.float32)
    y = rng.uniform(-2, 2, 20000).astype(np.float32)
    x[:5000] = rng.uniform(0.99, 1.01, 5000)
    y[:5000] = rng.uniform(-5000, 5000, 5000)
    a, b = value(float32, 20000), value(float32, 20000, name="y")
    (found,) = run(Graph([a, b], [all_ops()["power"](a, b)]), x, y)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y)
        inside = (expected < 1e38) & (expected > 1e-37)
        off = np.abs(found - expected) / expected
    assert (off[inside] <= 8 * 2.0**-23).all()


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1e-40, 3e38]


@pytest.mark.parametrize(
    "name",
    [
        "power",
        "atan2",
        "fmod",
        "remainder",
        "floor_divide",
        "maximum",
        "minimum",
        "copysign",
        "nextafter",
        "less",
        "equal",
        "greater_equal",
        "not_equal",
    ],
)
def test_two_special_numbers_meet(name: str) -> None:
    x = np.array(SPECIAL, np.float32)
    a, b = value(float32, 12, 1), value(float32, 12, name="y")
    op = all_ops()[name]
    (found,) = run(Graph([a, b], [op(a, b)]), x[:, None], x)
    expected = np.asarray(op(x[:, None], x))
    close = np.isclose(found, expected, rtol=1e-6, atol=1.2e-38, equal_nan=True)
    assert close.all(), list(zip(*np.nonzero(~close), strict=True))


# Programs


def test_program_runs_for_every_size_of_a_named_dim() -> None:
    def f(x: Any, y: Any) -> Any:
        return np.tanh(x) * y + np.where(x > 0, x, y)

    program = fw.compile(
        f,
        fw.Spec(("n", 3), "float32"),
        fw.Spec((3,), "float32"),
        backend="webgpu",
        fallback="error",
        isolate=False,
    )
    y = np.array([1.0, -2.0, 0.5], np.float32)
    for rows in (1, 4, 2):
        x = np.linspace(-2, 2, rows * 3, dtype=np.float32).reshape(rows, 3)
        assert np.allclose(program(x, y), f(x, y), rtol=1e-5)


@pytest.mark.parametrize("of", [d.name for d in dtypes.STORED if d.bits >= 8])
@pytest.mark.parametrize("count", [3, 4])
def test_arrays_of_every_dtype_go_to_the_device(of: str, count: int) -> None:
    array = np.arange(1, count + 1).astype(dtype(of).numpy)
    graph = unary(lambda x: reshape(x, shape=array.shape), dtype(of), *array.shape)
    if any(isinstance(said, Refusal) for said in BACKEND.claim(graph, GPU)):
        pytest.skip(f"the adapter has no {of}")
    assert held(array).read().tobytes() == array.tobytes()


def test_constants_of_ml_dtypes_go_to_the_device() -> None:
    given = np.array([1.5, -2.0, 3.0], ml_dtypes.bfloat16)
    half = Value(TensorType(dtype("bfloat16"), (3,)), None, Constant.of(given))
    x = value(dtype("bfloat16"), 3)
    (found,) = run(Graph([x], [add(x, half)]), given)
    assert np.array_equal(found, given + given)


@pytest.mark.parametrize("right", [False, True])
def test_nan_is_the_last_of_a_sorted_row(right: bool) -> None:
    row = np.array([-np.inf, 0, 1, np.inf, np.nan], np.float32)
    x = np.array([np.nan, np.inf, 2, -np.inf], np.float32)
    places: Any = fw.run("searchsorted", row, x, right=right, backend="webgpu")
    assert list(places) == list(np.searchsorted(row, x, "right" if right else "left"))


# The suite


def _is_in_slice(case: Case) -> bool:
    """Every elementwise case in float32 and int32, and a fixed share of what else is claimed."""
    if case.op.is_(Trait.ELEMENTWISE) and case.dtype in (float32, int32):
        return True
    return zlib.crc32(case.id.encode()) % 16 == 0


def test_conformance_slice() -> None:
    ops = [op for op in all_ops().values() if is_tensor_op(op)]
    found = [case for case in cases(ops) if _is_in_slice(case)]
    outcomes = run_cases(BACKEND, GPU, found)
    failed = [f"{c.id}: {o.reason}" for c, o in outcomes.items() if o.status == "failed"]
    assert not failed, "\n".join(failed)
    # Casts to what kernels cannot compute in are refused; nothing else of these dtypes is.
    refused_ = {
        case.op.name
        for case, outcome in outcomes.items()
        if outcome.status == "refused"
        and case.op.is_(Trait.ELEMENTWISE)
        and case.dtype in (float32, int32)
    }
    assert refused_ <= {"cast"}
    assert sum(outcome.passed for outcome in outcomes.values()) > 1000
