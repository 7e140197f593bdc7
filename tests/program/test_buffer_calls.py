"""Programs that take, return, write to and keep buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.webgpu.engine import WebGpuBackend
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import build, first_device
from fusewire.errors import EngineRaised, OptionsError, ReleasedError, ShapeMismatchError
from fusewire.host_memory import POOL
from fusewire.registry import REGISTRY

HAS_GPU = bool(REGISTRY.meet("webgpu").devices)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def compiled(function: Callable[..., Any], backend: str, *example: Any) -> fw.Program:
    program = fw.compile(function, *example, backend=backend, level=0, fallback="error")
    # The first call is answered by a child, the second by the engine in this process.
    for _ in range(2):
        program(*example)
    return program


def doubled(x: Any) -> Any:
    return x * 2 + 1


def both(x: Any, y: Any) -> Any:
    return {"sum": x + y, "difference": x - y}


ENGINES = ["reference", "onnxruntime", "openvino", "xla"]


@pytest.mark.parametrize("backend", ENGINES)
def test_buffers_of_the_host_are_taken_and_returned(backend: str) -> None:
    program = compiled(doubled, backend, X)
    found = program(fw.asarray(X))
    assert isinstance(found, Buffer)
    assert found.device == "cpu"
    np.testing.assert_array_equal(found.numpy(), X * 2 + 1)
    assert type(program(X)) is np.ndarray
    assert isinstance(program(X, outputs="device"), Buffer)
    assert type(program(fw.asarray(X), outputs="host")) is np.ndarray
    assert program.run(fw.asarray(X)).host_bytes == 0


@needs_gpu
def test_a_chain_on_a_device_does_not_go_through_the_host() -> None:
    first, second = compiled(doubled, "webgpu", X), compiled(np.sin, "webgpu", X)
    given = first.run(X, outputs="device")
    assert given.outputs.device == "webgpu:0"
    assert given.host_bytes == X.nbytes
    found = second.run(given.outputs)
    assert (found.host_bytes, found.bytes) == (0, X.nbytes)
    assert found.by_name.keys() == {"output"}
    assert found.outputs.device == "webgpu:0"
    np.testing.assert_allclose(found.outputs.numpy(), np.sin(X * 2 + 1), rtol=1e-5)
    plain = second.run(X)
    assert plain.host_bytes == 2 * X.nbytes
    assert type(plain.outputs) is np.ndarray


@needs_gpu
def test_parts_are_taken_without_the_host() -> None:
    program = compiled(doubled, "webgpu", X)
    whole = fw.asarray(np.stack([X, X + 100]), device="webgpu:0")
    found = program.run(whole[1])
    assert found.host_bytes == 0
    np.testing.assert_array_equal(found.outputs.numpy(), (X + 100) * 2 + 1)


@needs_gpu
def test_a_buffer_of_another_device_is_moved_and_counted() -> None:
    program = compiled(doubled, "onnxruntime", X)
    found = program.run(fw.asarray(X, device="webgpu:0"))
    assert found.outputs.device == "cpu"
    assert found.host_bytes == X.nbytes
    np.testing.assert_array_equal(found.outputs.numpy(), X * 2 + 1)


@pytest.mark.parametrize("backend", [*ENGINES, pytest.param("webgpu", marks=needs_gpu)])
def test_results_are_written_to_out(backend: str) -> None:
    program = compiled(both, backend, X, X)
    sums, differences = np.empty_like(X), fw.empty(X.shape)
    found = program(X, X * 3, out={"sum": sums, "difference": differences})
    assert found["sum"] is sums
    assert found["difference"] is differences
    np.testing.assert_array_equal(sums, X * 4)
    np.testing.assert_array_equal(differences.numpy(), X * -2)


def test_onnx_runtime_writes_to_out_itself() -> None:
    large = np.random.default_rng(0).standard_normal((256, 1024), np.float32)
    program = compiled(both, "onnxruntime", large, large)
    out = {"sum": np.empty_like(large), "difference": fw.empty(large.shape)}
    before = POOL.use().misses
    for turn in range(3):
        found = program(large, large * turn, out=out)
        assert found["sum"] is out["sum"]
        np.testing.assert_array_equal(found["sum"], large + large * turn)
        np.testing.assert_array_equal(found["difference"].numpy(), large - large * turn)
    assert POOL.use().misses == before
    # Results that nobody gave memory for are fresh again.
    fresh = program(large, large)
    assert not np.shares_memory(fresh["sum"], out["sum"])
    np.testing.assert_array_equal(out["sum"], large * 3)


@needs_gpu
def test_a_device_writes_to_out_itself() -> None:
    program = compiled(doubled, "webgpu", X)
    x, out = fw.asarray(X, device="webgpu:0"), fw.empty(X.shape, "float32", "webgpu:0")
    gpu = out.gpu  # type: ignore[attr-defined]
    found = program.run(x, out=out)
    assert found.outputs is out
    assert found.host_bytes == 0
    assert out.gpu is gpu
    np.testing.assert_array_equal(out.numpy(), X * 2 + 1)


@pytest.mark.parametrize("place", ["cpu", pytest.param("webgpu:0", marks=needs_gpu)])
def test_out_may_be_an_input(place: str) -> None:
    flipped = compiled(lambda x: x[::-1] + 1, "webgpu" if place != "cpu" else "onnxruntime", X)
    x = fw.asarray(X, device=place, copy=True)
    assert flipped(x, out=x) is x
    np.testing.assert_array_equal(x.numpy(), X[::-1] + 1)


def test_out_that_does_not_fit_is_refused_before_the_run() -> None:
    program = compiled(both, "onnxruntime", X, X)
    right = np.full_like(X, 7)
    for wrong in [np.empty((3, 5), np.float32), np.empty(X.shape), fw.empty((4, 3))]:
        with pytest.raises(ShapeMismatchError, match="The result difference is"):
            program(X, X, out=(right, wrong))
    with pytest.raises(ShapeMismatchError, match=r"1 arrays or buffers.* 2 results"):
        program(X, X, out=right)
    assert (right == 7).all()
    right.flags.writeable = False
    with pytest.raises(ShapeMismatchError, match="cannot be written"):
        program(X, X, out=(right, right))


@pytest.mark.parametrize("place", ["cpu", pytest.param("webgpu:0", marks=needs_gpu)])
def test_donated_inputs_are_gone(place: str) -> None:
    program = compiled(both, "webgpu" if place != "cpu" else "onnxruntime", X, X)
    x, y = (fw.asarray(X, device=place, copy=True) for _ in range(2))
    found = program(x, y, donate="x")
    assert x.is_released
    assert not y.is_released
    np.testing.assert_array_equal(found["sum"].numpy(), X * 2)
    with pytest.raises(ReleasedError):
        program(x, y)
    program(y, X, donate=(0,))
    assert y.is_released


def test_wrong_directions_are_refused() -> None:
    program = compiled(doubled, "onnxruntime", X)
    with pytest.raises(OptionsError, match="host"):
        program(X, outputs="gpu")
    with pytest.raises(OptionsError, match=r"donate='z' is no input\. Inputs: x"):
        program(X, donate="z")
    with pytest.raises(OptionsError, match="only buffers can be"):
        program(X, donate="x")


def test_inputs_may_have_the_names_of_directions() -> None:
    program = compiled(lambda out, donate: out - donate, "onnxruntime", X, X)
    np.testing.assert_array_equal(program(out=X * 3, donate=X), X * 2)


def test_a_released_buffer_is_the_callers_mistake() -> None:
    program = compiled(doubled, "onnxruntime", X)
    x = fw.asarray(X)
    program(x)
    x.close()
    with pytest.raises(ReleasedError, match="donate="):
        program(x)


def test_buffers_in_containers_and_of_other_dtypes_are_taken() -> None:
    program = fw.compile(lambda pair: pair["a"] + pair["b"], backend="onnxruntime", level=0)
    found = program({"a": fw.asarray(X), "b": X})
    assert isinstance(found, Buffer)
    np.testing.assert_array_equal(found.numpy(), X * 2)
    casting = fw.compile(doubled, X, backend="onnxruntime", level=0, cast="same_kind")
    np.testing.assert_array_equal(casting(fw.asarray(X.astype(np.float64))).numpy(), X * 2 + 1)


def test_programs_that_are_still_compared_take_buffers() -> None:
    program = fw.compile(doubled)
    for _ in range(3):
        np.testing.assert_array_equal(program(fw.asarray(X)).numpy(), X * 2 + 1)
    program.wait(120)
    found = program(fw.asarray(X))
    assert isinstance(found, Buffer)
    np.testing.assert_array_equal(found.numpy(), X * 2 + 1)


def test_several_steps_leave_buffers_where_they_are() -> None:
    program = fw.compile(lambda x: (np.sort(x, axis=1), x), X, backend="onnxruntime", level=0)
    x = fw.asarray(X.copy())
    ordered, same = program(x)
    assert isinstance(ordered, Buffer)
    assert isinstance(same, Buffer)
    same.copy_from(np.zeros_like(X))
    np.testing.assert_array_equal(x.numpy(), X)


@needs_gpu
@needs_gpu
def test_an_output_given_twice_or_that_is_an_input_stays_on_its_device() -> None:
    def model(t: Any, x: Any) -> Any:
        y = t + x
        return {"total": y, "other": y, "same": x, "again": x}

    program = compiled(model, "webgpu", X, X)
    with fw.asarray(X, device="webgpu:0") as t, fw.asarray(X, device="webgpu:0") as x:
        program(t, x)
        result = program.run(t, x, outputs="device")
        found = result.outputs
        assert result.host_bytes == 0
        assert {name: y.device for name, y in found.items()} == dict.fromkeys(found, "webgpu:0")
        # Nobody else has the memory of a result.
        x.write(np.zeros_like(X))
        found["total"].write(np.zeros_like(X))
        np.testing.assert_array_equal(found["other"].numpy(), X + X)
        for name in ("same", "again"):
            np.testing.assert_array_equal(found[name].numpy(), X)


def test_why_says_what_goes_through_the_host() -> None:
    why = compiled(both, "webgpu", X, X).why()
    assert why.host_bytes == 4 * X.nbytes
    assert f"copies {4 * X.nbytes:,} bytes between the host and devices" in str(why)
    assert compiled(doubled, "onnxruntime", X).why().host_bytes == 0


def _heavy(x: Any) -> Any:
    return (x @ x) @ (x @ x)


@needs_gpu
def test_a_call_returns_before_the_device_is_done_and_reading_waits() -> None:
    x = np.full((512, 512), 1 / 512, np.float32)
    program = compiled(_heavy, "webgpu", x)
    given = fw.asarray(x, device="webgpu:0")
    program(given).wait()
    called, whole = [], []
    for _ in range(5):
        start = time.perf_counter()
        found = program(given)
        called.append(time.perf_counter() - start)
        found.wait()
        whole.append(time.perf_counter() - start)
    assert min(called) < min(whole) / 2
    # What is timed is waited for.
    assert program.run(given).seconds > min(whole) / 2
    np.testing.assert_allclose(program(given).numpy(), _heavy(x), rtol=1e-4)


@needs_gpu
def test_calls_that_nobody_waits_for_run_in_order() -> None:
    grow, shrink = (
        compiled(lambda x: x * 3 + 1, "webgpu", X),
        compiled(lambda x: x / 2, "webgpu", X),
    )
    value: Any = fw.asarray(X, device="webgpu:0")
    expected: Any = X
    for _ in range(10):
        value, expected = shrink(grow(value)), (expected * 3 + 1) / 2
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5)


@needs_gpu
def test_a_device_that_is_lost_after_a_call_is_a_typed_error_when_read() -> None:
    backend = WebGpuBackend()
    graph = fw.trace(doubled, fw.Spec((3, 4), "float32"))
    (found,) = build(backend, graph, first_device(backend)).run([X])
    assert isinstance(found, Buffer)
    backend.context(first_device(backend)).gpu.destroy()
    with pytest.raises(EngineRaised, match=r"webgpu:0 failed to give a buffer of float32\[3, 4\]"):
        found.numpy()
    backend.close()
