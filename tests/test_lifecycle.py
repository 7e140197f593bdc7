"""Engines are closed at the end of a `with`, or by `fw.close()`, and open again when needed."""

import threading

import numpy as np
import pytest

import fusewire as fw
from fusewire.contract.backend import Backend
from fusewire.registry import REGISTRY


def doubled(backend: str, registry: fw.Registry | None = None) -> list[float]:
    program = fw.compile(lambda x: x + x, backend=backend, fallback="error", registry=registry)
    answer: list[float] = program(np.ones(2, np.float32)).tolist()
    return answer


def test_close_is_safe_to_repeat_and_everything_opens_again() -> None:
    assert doubled("webgpu") == [2.0, 2.0]
    for _ in range(2):
        fw.close()
        assert REGISTRY.known("webgpu") is None
    assert doubled("webgpu") == [2.0, 2.0]
    fw.close("webgpu")
    assert REGISTRY.known("webgpu") is None


def test_a_program_survives_the_close_of_its_engine() -> None:
    program = fw.compile(lambda x: x * 3, backend="webgpu", fallback="error")
    x = np.ones(2, np.float32)
    assert program(x).tolist() == [3.0, 3.0]
    fw.close()
    assert program(x).tolist() == [3.0, 3.0]


def test_registry_closes_at_the_end_of_the_outermost_with() -> None:
    with fw.Registry() as registry:
        backend: Backend = registry.get("webgpu")
        with registry as same:
            assert same is registry
            assert registry.meet("webgpu").devices
        assert registry.known("webgpu") is not None
        assert registry.get("webgpu") is backend
    assert registry.known("webgpu") is None
    with registry:
        assert doubled("webgpu", registry) == [2.0, 2.0]
    assert registry.known("webgpu") is None


def test_an_error_inside_is_raised_and_the_registry_is_closed() -> None:
    registry = fw.Registry()
    registry.meet("reference")
    with pytest.raises(KeyError, match="mine"), registry:
        raise KeyError("mine")
    assert registry.known("reference") is None


def test_threads_may_close_at_once() -> None:
    with fw.Registry() as registry:
        registry.meet("webgpu")
        threads = [threading.Thread(target=registry.close) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert registry.meet("webgpu").devices
