"""Pools say what they hold, free it, and survive allocations that fail."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import wgpu

import fusewire as fw
from fusewire.backends.webgpu.context import Context, Pool
from fusewire.contract.backend import Config
from fusewire.errors import BudgetError, EngineOutOfMemory
from fusewire.host_memory import LARGE, POOL, PoolUse, aligned_empty
from fusewire.registry import REGISTRY

HAS_GPU = bool(REGISTRY.meet("webgpu").devices)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="WebGPU has no adapter here")
X = np.arange(4096, dtype=np.float32).reshape(64, 64)


def use_of(device: str) -> PoolUse:
    return next(use for use in fw.memory() if use.device == device)


def test_the_pool_of_the_host_counts() -> None:
    fw.collect()
    before = use_of("cpu")
    first = aligned_empty((LARGE,), np.dtype(np.uint8))
    during = use_of("cpu")
    assert during.in_use == before.in_use + LARGE
    assert during.peak >= during.in_use
    assert during.misses == before.misses + 1
    del first
    after = use_of("cpu")
    assert (after.in_use, after.idle) == (before.in_use, LARGE)
    second = aligned_empty((LARGE,), np.dtype(np.uint8))
    assert use_of("cpu").hits == before.hits + 1
    del second
    assert fw.collect() >= LARGE
    assert use_of("cpu").idle == 0


@needs_gpu
def test_the_pool_of_a_device_counts() -> None:
    x: Any = fw.empty((1 << 18,), "float32", "webgpu:0")
    gc.collect()
    before = use_of("webgpu:0")
    assert before.in_use >= 1 << 20
    x.close()
    after = use_of("webgpu:0")
    assert (after.in_use, after.idle) == (before.in_use - (1 << 20), before.idle + (1 << 20))
    x = fw.empty((1 << 18,), "float32", "webgpu:0")
    assert use_of("webgpu:0").hits == before.hits + 1
    del x
    assert fw.collect() >= 1 << 20
    assert use_of("webgpu:0").idle == 0


class FailingDevice:
    """A device that has no memory for every k-th buffer, as a real one says it."""

    def __init__(self, device: Any, every: int) -> None:
        self._device = device
        self._every = every
        self.requests = 0
        self.fails = True

    def create_buffer(self, **description: Any) -> Any:
        self.requests += 1
        if self.fails and self.requests % self._every == 0:
            raise wgpu.GPUOutOfMemoryError("Not enough memory left")
        return self._device.create_buffer(**description)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], FailingDevice]]:
    backend: Any = REGISTRY.get("webgpu")
    context: Context = backend.context(REGISTRY.meet("webgpu").devices[0])

    def install(every: int) -> FailingDevice:
        device = FailingDevice(context.gpu, every)
        monkeypatch.setattr(context, "pool", Pool(context.id, device, 0))
        return device

    yield install
    gc.collect()


@needs_gpu
def test_an_allocation_that_fails_once_is_repeated(
    failing: Callable[[int], FailingDevice],
) -> None:
    failing(2)
    told: list[PoolUse] = []
    stop = fw.on_memory_pressure(told.append)
    try:
        kept = [fw.empty((64,), "float32", "webgpu:0") for _ in range(5)]
    finally:
        stop()
    assert len(kept) == 5
    assert [use.device for use in told] == ["webgpu:0"] * 4
    assert use_of("webgpu:0").failures == 0


@needs_gpu
def test_a_callback_may_free_what_is_needed(failing: Callable[[int], FailingDevice]) -> None:
    device = failing(1)
    stop = fw.on_memory_pressure(lambda use: setattr(device, "fails", False))
    try:
        assert fw.empty((64,), "float32", "webgpu:0").shape == (64,)
    finally:
        stop()
    device.fails = True
    with pytest.raises(EngineOutOfMemory, match="webgpu ran out of memory"):
        fw.empty((64,), "float32", "webgpu:0")
    assert use_of("webgpu:0").failures == 1


def mixed(x: Any) -> Any:
    return np.cumsum(x, axis=0) @ x, np.cumsum(x, axis=1)


@needs_gpu
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 7, 11])
def test_failures_at_every_kth_allocation_leave_nothing_behind(
    every: int, failing: Callable[[int], FailingDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the second attempt, each failure is seen.
    monkeypatch.setattr("fusewire.backends.webgpu.context.allocated", lambda pool, make: make())
    device = failing(every)
    device.fails = False
    options: dict[str, Any] = {
        "backend": "webgpu",
        "level": 0,
        "fallback": "error",
        "isolate": "never",
    }
    program = fw.compile(mixed, X, **options)
    expected = [x.numpy() for x in program(X, outputs="device")]
    gc.collect()
    before = use_of("webgpu:0").in_use
    device.fails = True
    outs = [np.full_like(x, -1) for x in expected]
    failures = 0
    for _ in range(12):
        try:
            program(X, out=tuple(outs))
        except EngineOutOfMemory:
            failures += 1
            assert all((out == -1).all() for out in outs)
        else:
            for out, wanted in zip(outs, expected, strict=True):
                np.testing.assert_array_equal(out, wanted)
                out.fill(-1)
        gc.collect()
        assert use_of("webgpu:0").in_use == before
    assert failures == 12 if every <= 3 else 0 < failures < 12
    device.fails = False
    program.close()


def test_callbacks_are_called_when_a_number_of_bytes_is_passed() -> None:
    POOL.clear()
    told: list[PoolUse] = []
    stop = fw.on_memory_pressure(told.append, above=use_of("cpu").in_use + LARGE)
    first = aligned_empty((LARGE,), np.dtype(np.uint8))
    assert not told
    second = aligned_empty((LARGE,), np.dtype(np.uint8))
    third = aligned_empty((LARGE,), np.dtype(np.uint8))
    assert [use.device for use in told] == ["cpu"]
    stop()
    stop()
    del first, second, third
    assert len(told) == 1


def test_peak_bytes_is_the_greatest_live_set() -> None:
    program = fw.compile(
        lambda x: np.sum(np.exp(x) * np.sin(x), axis=0), X, backend="onnxruntime", level=0
    )
    # exp, sin and their product are live at once.
    assert program.run(X).peak_bytes == 3 * X.nbytes
    assert program.run(fw.asarray(X)).peak_bytes == 3 * X.nbytes


def test_a_limit_that_was_asked_for_holds_on_every_call() -> None:
    options: dict[str, Any] = {"backend": "onnxruntime", "level": 0, "isolate": "never"}
    function = lambda x: np.exp(x) @ np.transpose(np.sin(x))  # noqa: E731 - compiled twice
    wide = fw.compile(function, fw.Spec(("n", 64)), memory_limit=1 << 20, **options)
    assert wide(np.zeros((64, 64), np.float32)).shape == (64, 64)
    large = np.zeros((512, 64), np.float32)
    for given in (large, fw.asarray(large)):
        with pytest.raises(BudgetError, match="at once on onnxruntime; the limit is 1,048,576"):
            wide(given)
    # The next call may be fine, and without a limit all are.
    assert wide(np.zeros((8, 64), np.float32)).shape == (8, 8)
    assert fw.compile(function, fw.Spec(("n", 64)), **options)(large).shape == (512, 512)


@needs_gpu
def test_large_outputs_that_lend_their_memory_are_right() -> None:
    def chain(x: Any) -> Any:
        for _ in range(3):
            x = np.cumsum(np.cumsum(x, axis=0) % 7, axis=1) % 5
        return x, np.max(x, axis=0)

    x = np.random.default_rng(0).integers(0, 5, (512, 640)).astype(np.float32)
    program = fw.compile(chain, x, backend="webgpu", level=0, fallback="error", isolate="never")
    (region,) = program.plan.regions()
    backend: Any = REGISTRY.get("webgpu")
    schedule = backend.lower(region.graph, region.device, Config()).schedule
    assert any(memory.kind == "lent" for memory in schedule.allocations)
    kept = []
    for scale in (1, 2, 3):
        kept.append((program(fw.asarray(x * scale)), chain(x * scale)))
    for found, expected in kept:
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.numpy(), wanted)
