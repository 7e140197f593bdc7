"""New sizes of input: engines that take any size are made ready once."""

import threading
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.program.parameters import InputNames
from fusewire.program.program import Program
from fusewire.registry import REGISTRY

WEIGHT = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
SIZES = (1, 7, 2, 300, 7, 5000, 1)


@pytest.mark.parametrize(
    ("engine", "times"),
    [("reference", 1), ("onnxruntime", 1), ("openvino", 1), ("xla", len(set(SIZES)))],
)
def test_new_size_compiles_again_only_where_sizes_must_be_known(
    monkeypatch: pytest.MonkeyPatch, engine: str, times: int
) -> None:
    kind = type(REGISTRY.backends.get(engine))
    counts = {"compile": 0, "load": 0}
    for name in counts:
        monkeypatch.setattr(kind, name, _counted(kind, name, counts))

    def layer(x: Any) -> Any:
        return np.maximum(x @ WEIGHT, 0)

    spec = fw.Spec(("n", 16), "float32")
    program = fw.compile(layer, spec, backend=engine, fallback="error", isolate=False)
    counts |= {"compile": 0, "load": 0}
    for rows in SIZES:
        x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
        np.testing.assert_allclose(program(x), layer(x), rtol=1e-4, atol=1e-5)
    assert counts == {"compile": times, "load": times}
    assert len(program.signatures) == 1


def _counted(kind: type, name: str, counts: dict[str, int]) -> Any:
    method = getattr(kind, name)

    def counted(*arguments: Any) -> Any:
        counts[name] += 1
        return method(*arguments)

    return counted


def test_program_forgets_signatures_of_which_it_has_seen_very_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.program.program._KEPT", 4)
    program = fw.compile(lambda x: x + x, fw.Spec(("n",), "float32"), backend="reference")
    for size in (*range(20), *range(20)):
        assert program(np.ones(size, np.float32)).shape == (size,)
    assert len(program._entries) <= 4


def test_function_lets_go_of_signatures_long_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.program.program._KEPT", 4)
    closed: list[object] = []
    monkeypatch.setattr("fusewire.plan.regions._close", closed.append)
    program = fw.compile(lambda x: x + x, backend="reference")
    for size in range(1, 21):
        assert program(np.ones(size, np.float32)).shape == (size,)
    assert program.signatures == [f"float32[{size}]" for size in range(17, 21)]
    assert len(program._calls) == 4
    assert len(closed) == 16
    np.testing.assert_array_equal(program(np.ones(0, np.float32)), [])
    assert len(program.signatures) == 4


def test_signature_that_is_let_go_during_its_calls_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.program.program._KEPT", 2)
    program = fw.compile(lambda x: np.exp(x) * 2, backend="reference")
    wrong: list[int] = []

    def call(first: int) -> None:
        for count in range(60):
            size = (first + count) % 7
            x = np.full(size, size, np.float32)
            if not np.allclose(program(x), np.exp(x) * 2):
                wrong.append(size)

    threads = [threading.Thread(target=call, args=[first]) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(program.signatures) == 2


def test_runner_of_several_signatures_stays_while_one_of_them_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusewire.program.program._KEPT", 2)
    closed: list[object] = []
    monkeypatch.setattr("fusewire.plan.regions._close", closed.append)
    graph = fw.trace(lambda x: x + x, fw.Spec(("n",), "float32"))
    made = fw.compile(graph, backend="reference")
    names = InputNames("open", lambda: ["x"])
    program = Program("open", lambda arguments: made.entry(arguments), parameters=names)
    for size in range(8):
        assert program(np.ones(size, np.float32)).shape == (size,)
    assert len(program._entries) == 2
    assert not closed


def test_executables_of_sizes_long_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewire.plan.regions._KEPT", 3)
    closed: list[object] = []
    monkeypatch.setattr("fusewire.plan.regions._close", closed.append)
    spec = fw.Spec(("n",), "float32")
    program = fw.compile(lambda x: x + x, spec, backend="xla", fallback="error", isolate=False)
    for size in (1, 2, 3, 4, 5, 1):
        np.testing.assert_array_equal(program(np.ones(size, np.float32)), np.full(size, 2.0))
    assert len(closed) == 3
