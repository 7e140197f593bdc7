"""States: buffers that calls replace, in place where the engine can."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.backends.webgpu.context import WebGpuBuffer
from fusewire.contract.buffer import Buffer
from fusewire.dtypes import dtype
from fusewire.errors import OptionsError, ReleasedError, ShapeMismatchError
from fusewire.ir.graph import Graph
from fusewire.registry import REGISTRY
from tests.program.test_updates import COLUMNS, ROWS, arrays_of, cache_graph

HAS_GPU = bool(REGISTRY.meet("webgpu").devices)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
EVERY = ["reference", "onnxruntime", "openvino", "xla", pytest.param("webgpu", marks=needs_gpu)]


def program_of(graph: Graph, backend: str) -> fw.Program:
    program = fw.compile(graph, backend=backend, level=0, fallback="error")
    # The first call is answered by a child, the second by the engine in this process.
    for _ in range(2):
        program(np.zeros((ROWS, COLUMNS), np.float32), *arrays_of(0))
    return program


def place_of(backend: str) -> str:
    return "webgpu:0" if backend == "webgpu" else "cpu"


@pytest.mark.parametrize("backend", EVERY)
@pytest.mark.parametrize("kind", ["set", "read", "computed", "add"])
def test_every_engine_replaces_a_state(backend: str, kind: str) -> None:
    program = program_of(cache_graph(kind), backend)
    cache = fw.state(np.zeros((ROWS, COLUMNS), np.float32), device=place_of(backend))
    expected = np.zeros((ROWS, COLUMNS), np.float32)
    for step in range(5):
        before = expected.sum(axis=0)
        expected[step] += step + 1
        total, new = program(cache, *arrays_of(step))
        assert new is cache
        wanted = expected.sum(axis=0) + (before if kind == "read" else 0)
        np.testing.assert_allclose(total.numpy(), wanted)
    np.testing.assert_array_equal(cache.numpy(), expected)


@pytest.mark.parametrize("backend", EVERY)
def test_what_a_call_writes_to_is_not_the_state_afterwards(backend: str) -> None:
    """In the next call, an engine would write the state that it still reads."""
    x = np.arange(60_000, dtype=np.float32)
    graph = fw.trace(lambda state: np.concatenate([state[-1:], state[:-1]]), x)
    program = fw.compile(graph, backend=backend, level=0, fallback="error")
    state = fw.state(x, output=0, device=place_of(backend))
    out: Any = np.zeros_like(x) if place_of(backend) == "cpu" else fw.empty(x.shape, x.dtype)
    for step in range(1, 5):
        program.run(state, out=out)
        np.testing.assert_array_equal(np.asarray(out), np.roll(x, step))
        np.testing.assert_array_equal(state.numpy(), np.roll(x, step))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_the_memory_of_a_state_is_written_to_after_it_was_read(backend: str) -> None:
    x = np.arange(60_000, dtype=np.float32)
    graph = fw.trace(lambda state: np.concatenate([state[-1:], state[:-1]]), x)
    program = fw.compile(graph, backend=backend, level=0, fallback="error")
    for _ in range(4):
        state = fw.state(x.copy(), output=0)
        program.run(state, out=state.numpy())
        np.testing.assert_array_equal(state.numpy(), np.roll(x, 1))


@needs_gpu
def test_webgpu_replaces_in_place() -> None:
    program = program_of(cache_graph(), "webgpu")
    cache = fw.state(np.zeros((ROWS, COLUMNS), np.float32), device="webgpu:0")
    held = cache.held
    assert isinstance(held, WebGpuBuffer)
    for step in range(3):
        place, row = arrays_of(step)
        found = program.run(cache, place, row)
        assert cache.held is held
        # Only the row and its place go to the device.
        assert found.host_bytes == place.nbytes + row.nbytes
    np.testing.assert_array_equal(cache.numpy()[:4, 0], [1, 2, 3, 0])
    # The same memory given twice is not written to while it is read.
    other = fw.asarray(cache)
    assert other is cache


@needs_gpu
@pytest.mark.parametrize("kind", ["read", "add"])
def test_webgpu_does_not_write_to_a_state_that_is_read_otherwise(kind: str) -> None:
    program = program_of(cache_graph(kind), "webgpu")
    cache = fw.state(np.zeros((ROWS, COLUMNS), np.float32), device="webgpu:0")
    held = cache.held
    program(cache, *arrays_of(0))
    assert cache.held is not held
    assert held.is_released
    assert cache.remade_bytes == held.nbytes


def test_onnx_runtime_replaces_in_place() -> None:
    program = program_of(cache_graph(), "onnxruntime")
    cache = fw.state(np.zeros((ROWS, COLUMNS), np.float32))
    pointer = cache.numpy().ctypes.data
    for step in range(3):
        program(cache, *arrays_of(step))
    assert cache.numpy().ctypes.data == pointer
    assert cache.remade_bytes == 0
    np.testing.assert_array_equal(cache.numpy()[:4, 0], [1, 2, 3, 0])


def step(cache: Any, row: Any, position: Any) -> Any:
    cache[position] = row
    return {"mean": cache.mean(axis=0), "cache": cache}


def write_row(cache: Any, row: Any, position: Any) -> Any:
    cache[position] = row
    return {"cache": cache}


def decoder(keys: Any, values: Any, row: Any, position: Any) -> Any:
    """Write a row into two caches of one type, which are returned in another order."""
    keys[position] = row
    values[position] = row * 2
    return {"sum": (keys + values).sum(axis=0), "values": values, "keys": keys}


def decoding(rows: int, columns: int = 1024) -> tuple[fw.Program, list[Any]]:
    start = np.zeros((rows, columns), np.float32)
    shapes: list[Any] = [start, start, start[0], np.zeros(1, np.int64)]
    program = fw.compile(decoder, *shapes, backend="xla", level=0, fallback="error")
    # The first call is answered by a child, the second by the engine in this process.
    for _ in range(2):
        program(*shapes)
    return program, shapes


def test_xla_replaces_in_place_what_it_returned() -> None:
    program, (start, *_) = decoding(16384)
    keys, values = fw.state(start), fw.state(start)
    expected = np.zeros(1024, np.float32)
    pointers = set()
    for step in range(4):
        row = np.full(1024, step + 1, np.float32)
        found = program(keys, values, row, np.array([step]))
        # What is read after the update is new.
        expected += 3 * row
        np.testing.assert_array_equal(found["sum"].numpy(), expected)
        pointers.add((keys.numpy().ctypes.data, values.numpy().ctypes.data))
        # The first call takes the memory of the caller, and makes XLA's own of it.
        assert keys.remade_bytes == values.remade_bytes == start.nbytes
    assert len(pointers) == 1
    np.testing.assert_array_equal(keys.numpy()[:5, 0], [1, 2, 3, 4, 0])
    np.testing.assert_array_equal(values.numpy()[:5, 0], [2, 4, 6, 8, 0])
    assert not start.any()
    *_, entry = program._entries.values()
    runner: Any = entry.runner
    (loaded,) = runner._runners[0]._made.values()
    # Nothing of their size is made within a run either.
    executable = loaded._executable._update.__self__
    stats = executable.executables[0].get_compiled_memory_stats()
    assert stats.alias_size_in_bytes == 2 * start.nbytes
    assert stats.temp_size_in_bytes < start.nbytes / 100


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_xla_replaces_narrow_elements_in_place(name: str) -> None:
    start = np.zeros((512, 1024), dtype(name).numpy)
    row, place = np.ones(1024, start.dtype), np.zeros(1, np.int64)
    program = fw.compile(write_row, start, row, place, backend="xla", level=0, fallback="error")
    for _ in range(2):
        program(start, row, place)
    cache = fw.state(start)
    for position in range(4):
        program(cache, row, place + position)
    assert cache.remade_bytes == start.nbytes
    assert cache.numpy()[:6, 0].astype(int).tolist() == [1, 1, 1, 1, 0, 0]


def test_xla_leaves_what_is_not_a_state_alone() -> None:
    program, (start, _, row, place) = decoding(256)
    keys, values = fw.state(start), fw.state(start)
    for step in range(3):
        program(keys, values, row + 1, place + step)
    view, before = keys.numpy(), keys.numpy().copy()
    # The memory is XLA's own, but nobody said that it may be written to.
    found = program(view, view, row + 7, place)
    np.testing.assert_array_equal(view, before)
    assert found["keys"][0, 0] == 7
    assert found["values"][0, 0] == 14
    # An array over the memory outlives the state.
    program(keys, values, row + 5, place)
    keys.close()
    del keys, values, found
    np.testing.assert_array_equal(view[:4, 0], [5, 1, 1, 0])


def difference(cache: Any, other: Any, row: Any, position: Any) -> Any:
    cache[position] = row
    return {"difference": cache - other, "cache": cache}


@pytest.mark.parametrize("backend", EVERY)
@pytest.mark.parametrize("kind", ["array", "part", "reversed"])
def test_another_input_in_the_memory_of_a_state_is_read_as_it_was(backend: str, kind: str) -> None:
    start, row = np.zeros((256, 128), np.float32), np.ones(128, np.float32)
    shapes: list[Any] = [start, start, row, np.zeros(1, np.int64)]
    program = fw.compile(difference, *shapes, backend=backend, level=0, fallback="error")
    for _ in range(2):
        program(*shapes)
    cache = fw.state(start, device=place_of(backend))
    for position in range(3):
        program(cache, start, row, np.array([position]))
    if kind == "part":
        other: Any = cache[0:256]
    else:
        other = cache.numpy()[:: -1 if kind == "reversed" else 1]
    before = np.array(other)
    found = program(cache, other, row * 5, np.array([2]))
    np.testing.assert_array_equal(found["difference"].numpy(), cache.numpy() - before)
    assert cache.numpy()[:4, 0].tolist() == [1, 1, 5, 0]


@pytest.mark.parametrize("backend", ["onnxruntime", pytest.param("webgpu", marks=needs_gpu)])
def test_a_traced_function_writes_to_its_state(backend: str) -> None:
    start = np.zeros((16, 8), np.float32)
    program = fw.compile(step, start, start[0], np.array([0]), backend=backend, level=0)
    cache = fw.state(start, device=place_of(backend))
    found: dict[str, Any] = {}
    for position in range(4):
        row = np.full(8, position + 1, np.float32)
        found = program(cache, row, np.array([position]))
    assert isinstance(found["mean"], Buffer)
    np.testing.assert_allclose(found["mean"].numpy(), np.full(8, 10 / 16), rtol=1e-6)
    np.testing.assert_array_equal(cache.numpy()[:5, 0], [1, 2, 3, 4, 0])
    assert not start.any()


def test_a_state_is_used_while_engines_are_compared() -> None:
    program = fw.compile(lambda total, x: {"total": total + x})
    total = fw.state(np.zeros(64, np.float32))
    for _ in range(10):
        program(total, np.ones(64, np.float32))
    program.wait(120)
    for _ in range(10):
        program(total, np.ones(64, np.float32))
    np.testing.assert_array_equal(total.numpy(), np.full(64, 20, np.float32))


def test_the_result_that_replaces_a_state_is_named() -> None:
    x = np.ones(4, np.float32)
    program = fw.compile(lambda a, b: (a + b, a * b), x, x, backend="onnxruntime", level=0)
    a = fw.state(x, output=1)
    program(a, x * 3)
    assert a.numpy().tolist() == [3.0] * 4
    named = fw.state(x, output="output0")
    program(named, x)
    assert named.numpy().tolist() == [2.0] * 4
    with pytest.raises(
        OptionsError, match=r"no result is called 'a': output0, output1\. Say which"
    ):
        program(fw.state(x), x)
    shorter = fw.compile(lambda a: a[:2], x, backend="onnxruntime", level=0)
    with pytest.raises(ShapeMismatchError, match="replaces it is"):
        shorter(fw.state(x, output=0))


@needs_gpu
def test_parts_follow_a_state_to_other_memory() -> None:
    x = np.arange(8, dtype=np.float32)
    program = fw.compile(lambda a: {"a": a + 1}, x, backend="webgpu", level=0)
    state = fw.state(x, device="webgpu:0")
    part = state[2:4]
    program(state)
    program(state)
    assert part.numpy().tolist() == [4.0, 5.0]
    state.close()
    with pytest.raises(ReleasedError):
        part.numpy()
    with pytest.raises(ReleasedError):
        program(state)


@pytest.mark.parametrize("place", ["cpu", pytest.param("webgpu:0", marks=needs_gpu)])
def test_threads_take_turns_with_a_state(place: str) -> None:
    backend = "webgpu" if place.startswith("webgpu") else "reference"
    step = fw.compile(lambda total, x: {"total": total + x}, backend=backend, level=0)
    total, one = fw.state(np.zeros(4, np.float32), device=place), np.ones(4, np.float32)
    step(total, one)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                step(total, one)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    np.testing.assert_array_equal(total.numpy(), np.full(4, 201, np.float32))


def test_one_state_for_two_inputs_is_refused() -> None:
    both = fw.compile(lambda a, b: {"a": a + 1, "b": b + 2}, level=0)
    state = fw.state(np.zeros(2))
    with pytest.raises(OptionsError, match="for two inputs"):
        both(state, state)


def test_states_and_parts_are_not_given_away() -> None:
    step = fw.compile(lambda total, x: {"total": total + x}, level=0)
    whole = fw.asarray(np.zeros((2, 2)))
    with pytest.raises(OptionsError, match="is a state"):
        step(fw.state(np.zeros(2)), np.ones(2), donate="total")
    with pytest.raises(OptionsError, match="a part of another buffer"):
        step(whole[0], np.ones(2), donate=0)
    assert not whole.is_released


def slow_step(cache: Any, row: Any, position: Any) -> Any:
    """Write a row into a cache, and compute for some tenths of a second."""
    cache[position] = row
    x = cache[:512, :512]
    for _ in range(30):
        x = np.tanh(x @ x)
    return {"x": x, "cache": cache}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timer")
def test_an_interrupted_call_leaves_a_state_its_memory() -> None:
    start = np.ones((1024, 1024), np.float32)
    shapes: list[Any] = [start, start[0], np.zeros(1, np.int64)]
    program = fw.compile(slow_step, *shapes, backend="xla", level=0, fallback="error")
    for _ in range(2):
        program(*shapes)
    cache = fw.state(start)
    for step in range(2):
        program(cache, start[0] * 5, np.array([step]))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            program(cache, start[0] * 7, np.array([2]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # Memory that was freed would be that of others now.
    others = [np.full_like(start, 3) for _ in range(8)]
    assert cache.numpy()[[0, 1, 2, 3], 0].tolist() == [5, 5, 7, 1]
    program(cache, start[0] * 9, np.array([3]))
    assert cache.numpy()[[0, 1, 2, 3, 4], 0].tolist() == [5, 5, 7, 9, 1]
    assert cache.remade_bytes == start.nbytes
    assert all((other == 3).all() for other in others)
