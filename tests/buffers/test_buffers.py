"""Buffers: made, sliced, copied, shared with other libraries, and released, on every memory."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import fusewire as fw
from fusewire.backends.xla.resident import XlaBuffer
from fusewire.contract.buffer import Buffer, counted_traffic, held_still
from fusewire.contract.region import build, first_device
from fusewire.dtypes import dtype
from fusewire.errors import (
    DTypeError,
    ExportError,
    OptionsError,
    RegistryError,
    ReleasedError,
    ShapeMismatchError,
)
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.plan.transfer import fetched
from fusewire.program.buffer_calls import _taken
from fusewire.registry import REGISTRY

HAS_GPU = bool(REGISTRY.meet("webgpu").devices)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
GPU = pytest.param("webgpu:0", marks=needs_gpu)
DTYPES = ["bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def made(x: Any, place: str) -> Buffer:
    """Make a buffer on a device, or in an array of jax's as on a device that is not the host's."""
    if place != "jax":
        return fw.asarray(x, device=place)
    array = np.asarray(x)
    held = jnp.asarray(array)
    type_ = TensorType(dtype(array.dtype), array.shape)
    return XlaBuffer("tpu:0", type_, held, jnp.asarray)


def elements(of: str, count: int) -> Any:
    return (np.arange(count) % 2 if of == "bool" else np.arange(count)).astype(dtype(of).numpy)


PLACES = ["cpu", GPU]


@pytest.mark.parametrize("of", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_elements_come_back(place: str, of: str) -> None:
    x = elements(of, 15).reshape(3, 5)
    buffer = fw.asarray(x, device=place)
    assert (buffer.device, buffer.dtype, buffer.shape) == (place, x.dtype, (3, 5))
    assert (buffer.ndim, buffer.size, buffer.nbytes) == (2, 15, x.nbytes)
    assert buffer.strides == x.strides
    np.testing.assert_array_equal(buffer.numpy(), x)
    np.testing.assert_array_equal(np.asarray(buffer), x)


@pytest.mark.parametrize("of", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("place", PLACES)
def test_slices_share_memory(place: str, of: str) -> None:
    x = elements(of, 24).reshape(4, 3, 2)
    buffer = fw.asarray(x, device=place, copy=True)
    keys: list[Any] = [1, -1, slice(1, 3), (2, slice(1, 3)), (0, 1), (..., slice(None))]
    for key in [*keys, slice(2, 2)]:
        np.testing.assert_array_equal(buffer[key].numpy(), x[key], err_msg=str(key))
    part = buffer[1:3][1]
    part.copy_from(np.full((3, 2), 9, x.dtype))
    x[2] = 9
    np.testing.assert_array_equal(buffer.numpy(), x)
    assert [row.numpy().tolist() for row in buffer] == x.tolist()


@pytest.mark.parametrize("place", PLACES)
def test_slices_with_gaps_are_refused(place: str) -> None:
    buffer = fw.asarray(np.zeros((4, 3), np.float32), device=place)
    keys: list[Any] = [(slice(None), 0), slice(0, 4, 2), (slice(0, 2), slice(0, 2))]
    for key in keys:
        with pytest.raises(ShapeMismatchError, match="numpy"):
            buffer[key]
    with pytest.raises(ShapeMismatchError, match="Index 4"):
        buffer[4]
    with pytest.raises(ShapeMismatchError, match="3 indices"):
        buffer[0, 0, 0]


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("of", ["uint8", "float32"])
def test_copies_go_to_an_offset(source: str, target: str, of: str) -> None:
    x, y = elements(of, 12), elements(of, 5) + np.array(100, of)
    into = fw.asarray(x, device=target, copy=True)
    into.copy_from(fw.asarray(y, device=source), offset=3)
    x[3:8] = y
    np.testing.assert_array_equal(into.numpy(), x)
    into.copy_from(fw.asarray(y, device=source)[1:3], offset=10)
    x[10:12] = y[1:3]
    np.testing.assert_array_equal(into.numpy(), x)
    with pytest.raises(ShapeMismatchError, match="5 elements from offset 8 do not fit"):
        into.copy_from(y, offset=8)
    with pytest.raises(ShapeMismatchError, match="Cast"):
        into.copy_from(y.astype(np.float64))


@pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
def test_copies_on_one_device_do_not_go_through_the_host() -> None:
    x = fw.asarray(np.arange(64, dtype=np.float32), device="webgpu:0")
    y = fw.empty((64,), "float32", "webgpu:0")
    with counted_traffic() as traffic:
        y.copy_from(x)
        y[32:].copy_from(x[:32])
        # Within one buffer, and with an overlap.
        y.copy_from(y[:48], offset=16)
    assert traffic.total == 0
    expected = np.concatenate([np.arange(32), np.arange(32)]).astype(np.float32)
    expected[16:] = expected[:48].copy()
    np.testing.assert_array_equal(y.numpy(), expected)
    with counted_traffic() as traffic:
        fw.asarray(y, device="cpu")
    assert (traffic.to_host, traffic.to_device) == (256, 0)


@pytest.mark.parametrize("place", PLACES)
def test_use_after_release_is_an_error(place: str) -> None:
    with fw.asarray(np.arange(6.0), device=place, copy=True) as x:
        part = x[2:4]
    x.close()
    assert x.is_released
    assert part.is_released
    uses: list[Any] = [x.numpy, part.numpy, x.__enter__, lambda: x[0], x.__dlpack__]
    for use in uses:
        with pytest.raises(ReleasedError, match=f"float64.* on {place} was used after"):
            use()
    with pytest.raises(ReleasedError):
        x.write(np.zeros(6))
    with pytest.raises(ReleasedError):
        fw.empty((6,), "float64", place).copy_from(x)
    assert "released" in repr(x)


@pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
@pytest.mark.parametrize("way", ["close", "collected", "with"])
def test_released_memory_is_used_again(way: str) -> None:
    x: Any = fw.empty((1 << 16,), "float32", "webgpu:0")
    gpu = x.gpu
    if way == "close":
        x.close()
    elif way == "with":
        with x:
            pass
    del x
    gc.collect()
    assert fw.empty((1 << 16,), "float32", "webgpu:0").gpu is gpu  # type: ignore[attr-defined]


def test_the_host_is_shared_unless_a_copy_is_asked_for() -> None:
    x = np.arange(6, dtype=np.float32)
    assert np.shares_memory(fw.asarray(x).numpy(), x)
    assert not np.shares_memory(fw.asarray(x, copy=True).numpy(), x)
    assert fw.asarray(x, "float64").dtype == np.float64
    assert not np.shares_memory(fw.asarray(x[::2]).numpy(), x)
    with pytest.raises(ExportError, match="copy=False"):
        fw.asarray(x[::2], copy=False)
    with pytest.raises(ExportError, match="copy=False"):
        fw.asarray(x, "float64", copy=False)
    buffer = fw.asarray(x)
    assert fw.asarray(buffer) is buffer
    x.flags.writeable = False
    with pytest.raises(ShapeMismatchError, match="read-only"):
        fw.asarray(x).copy_from(np.zeros(6, np.float32))


def test_torch_and_jax_share_the_pointer_in_both_directions() -> None:
    ours = fw.empty((256,), "float32")
    ours.copy_from(np.arange(256, dtype=np.float32))
    pointer = ours.numpy().ctypes.data
    assert torch.from_dlpack(ours).data_ptr() == pointer
    assert jax.dlpack.from_dlpack(ours).unsafe_buffer_pointer() == pointer
    tensor = torch.arange(256, dtype=torch.float32)
    assert fw.from_dlpack(tensor).numpy().ctypes.data == tensor.data_ptr()
    assert fw.asarray(tensor).numpy().ctypes.data == tensor.data_ptr()
    array = jnp.arange(256, dtype=jnp.float32)
    theirs = fw.from_dlpack(array)
    assert theirs.numpy().ctypes.data == array.unsafe_buffer_pointer()
    # A tensor of theirs keeps the memory of a buffer that was released.
    held = torch.from_dlpack(ours)
    ours.close()
    assert held[255].item() == 255.0


def test_a_part_exports_its_own_pointer() -> None:
    ours = fw.asarray(np.arange(8, dtype=np.float32))
    tensor = torch.from_dlpack(ours[2:5])
    assert tensor.tolist() == [2.0, 3.0, 4.0]
    assert tensor.data_ptr() == ours.numpy().ctypes.data + 8


def test_memory_that_cannot_be_shared_says_so() -> None:
    with pytest.raises(ExportError, match="bfloat16"):
        fw.asarray(np.zeros(3, ml_dtypes.bfloat16)).__dlpack__()
    with pytest.raises(ExportError, match="torch"):
        fw.from_dlpack(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(ExportError, match="require gradient"):
        fw.from_dlpack(torch.zeros(3, requires_grad=True))
    with pytest.raises(ExportError, match="has no __dlpack__"):
        fw.from_dlpack([1.0])


@pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
def test_webgpu_memory_is_exported_as_a_copy_only() -> None:
    buffer = fw.asarray(np.arange(4, dtype=np.float32), device="webgpu:0")
    assert buffer.__dlpack_device__() == (15, 0)
    with pytest.raises(ExportError, match="cannot be shared"):
        buffer.__dlpack__()
    assert np.from_dlpack(buffer, device="cpu").tolist() == [0.0, 1.0, 2.0, 3.0]


def test_xla_buffers_of_devices_that_are_not_the_host_are_sliced_and_copied() -> None:
    buffer, x = made(np.arange(6, dtype=np.float32), "jax"), np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(buffer[2:4].numpy(), x[2:4])
    with counted_traffic() as traffic:
        buffer.copy_from(made(np.full(2, 9, np.float32), "jax"), offset=4)
        assert traffic.total == 0
        alone = buffer.extracted(4, TensorType(dtype("float32"), (2,)))
        assert alone is not None
        assert traffic.total == 0
    assert alone.numpy().tolist() == [9.0, 9.0]
    buffer.write(np.full(1, 7, np.float32), 0)
    assert buffer.numpy().tolist() == [7, 1, 2, 3, 9, 9]
    buffer.close()
    with pytest.raises(ReleasedError):
        buffer.read()


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(RegistryError, match="No backend here runs on 'warp:0'"):
        fw.empty((2,), "float32", "warp:0")
    with pytest.raises(OptionsError, match="0 or more"):
        fw.empty((-1,))
    with pytest.raises(DTypeError):
        fw.asarray(np.array([object()]))
    with pytest.raises(TypeError, match="without axes"):
        len(fw.asarray(1.0))
    assert fw.empty(3).shape == (3,)
    assert fw.empty((0, 4), "int8").numpy().shape == (0, 4)


@needs_gpu
def test_memory_that_a_run_has_taken_is_nobody_elses_before_it_is_submitted() -> None:
    backend = REGISTRY.get("webgpu")
    device = first_device(backend)
    graph = fw.trace(lambda x, y: x * 2 + y, *[fw.Spec((4096,), "float32")] * 2)
    executable = build(backend, graph, device)
    ones = np.ones(4096, np.float32)
    x = fw.asarray(ones, device="webgpu:0")
    other: list[Buffer] = []

    class Closing:
        """The second input: as it is taken, x is closed, and another tensor has its memory."""

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            x.close()
            other.append(fw.asarray(1e6 * ones, device="webgpu:0"))
            return ones

    try:
        (found,) = executable.run([x, Closing()])
    except ReleasedError:
        return
    np.testing.assert_array_equal(found.read(), 3 * ones)


@needs_gpu
def test_closing_beside_a_call_is_a_right_answer_or_an_error() -> None:
    ones = np.ones(4096, np.float32)
    program = fw.compile(lambda x: x * 2, ones, backend="webgpu", level=0, fallback="error")
    for _ in range(2):
        program(ones)
    wrong: list[Any] = []

    def call(x: Buffer) -> None:
        try:
            found = program(x, outputs="device").numpy()
        except ReleasedError:
            return
        except BaseException as error:
            wrong.append(error)
            raise
        if not (found == 2).all():
            wrong.append(found)

    for number in range(150):
        x = fw.asarray(ones, device="webgpu:0")
        thread = threading.Thread(target=call, args=(x,))
        thread.start()
        if number % 3:
            time.sleep(2e-4 * (number % 5))
        x.close()
        with fw.asarray(1e6 * ones, device="webgpu:0"):
            thread.join()
    assert not wrong


@pytest.mark.parametrize("place", ["cpu", GPU])
def test_copies_to_and_from_a_state_wait_for_the_call_that_has_it(place: str) -> None:
    state = fw.state(np.zeros(4, np.float32), device=place)
    other = fw.asarray(np.ones(4, np.float32), device=place)
    into = fw.asarray(np.full(2, 5, np.float32), device=place)
    works = [lambda: state.copy_from(other), lambda: into.copy_from(state[1:3])]
    for work in works:
        thread = threading.Thread(target=work)
        with state.lock:
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join(60)
    assert state.numpy().tolist() == [1] * 4
    assert into.numpy().tolist() == [1, 1]


def test_part_of_a_state_is_read_by_another_thread() -> None:
    state, value = (
        fw.state(np.arange(12, dtype=np.float32)),
        Value(TensorType(dtype("float32"), (2,)), "x"),
    )
    with ThreadPoolExecutor(1) as other, held_still(state):
        taken = _taken(value, state[0:2])
        read = other.submit(fetched, taken)
        np.testing.assert_array_equal(read.result(timeout=5), [0, 1])
