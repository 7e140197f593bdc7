"""Captured programs: several as one, with the same answers, planned and judged like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import GraphError, OptionsError, TraceError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)


def _chain(backend: str = "reference", count: int = 4) -> list[Any]:
    functions = [lambda x, k=k: np.tanh(x @ W + k) for k in range(count)]
    return [fw.compile(function, X, backend=backend, level=0) for function in functions]


def _one_by_one(programs: list[Any]) -> Any:
    def run(x: Any) -> Any:
        for program in programs:
            x = program(x)
        return x

    return run


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_captured_sequence_gives_the_same_answer_in_one_region(backend: str) -> None:
    run = _one_by_one(_chain(backend))
    captured = fw.capture(run, X)
    for x in (X, X + 1, -X):
        assert np.allclose(captured(x), run(x), atol=1e-6)
    assert [region.backend for region in captured.plan.regions()] == [backend]


def test_code_between_programs_is_captured() -> None:
    first, second = _chain(count=2)
    captured = fw.capture(lambda x: second(np.flip(first(x), 0) * 2) + x, X)
    assert np.allclose(captured(X), second(np.flip(first(X), 0) * 2) + X, atol=1e-6)


def test_program_of_a_file_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    fw.save_onnx(lambda x: np.tanh(x @ W), path, fw.Spec(("rows", 4), "float32"))
    model = fw.compile(str(path), backend="reference")
    captured = fw.capture(lambda x: model(model(x) + 1), X, backend="reference")
    assert np.allclose(captured(X), model(model(X) + 1), atol=1e-6)
    more = np.ones((5, 4), np.float32)
    assert np.allclose(captured(more), model(model(more) + 1), atol=1e-6)


def test_program_with_several_outputs_is_captured(tmp_path: Path) -> None:
    graph = fw.trace(lambda x: (x.sum(axis=0), x * 2), X)
    model = fw.compile(graph, backend="reference")

    def run(x: Any) -> Any:
        total, double = model(x)
        return {"total": total, "both": double + total}

    captured = fw.capture(run, X)
    assert np.allclose(captured(X)["both"], X * 2 + X.sum(axis=0), atol=1e-6)


def test_arrays_among_the_arguments_are_constants() -> None:
    model = fw.compile(fw.trace(lambda x, y: x + y, X, X), backend="reference")
    captured = fw.capture(lambda x: model(x, X), X)
    assert np.array_equal(captured(X), X + X)


def test_captured_program_outlives_its_parts() -> None:
    programs = _chain()
    run = _one_by_one(programs)
    wanted = run(X)
    captured = fw.capture(run, X)
    captured(X)
    for program in programs:
        program.close()
    assert np.allclose(captured(X), wanted, atol=1e-6)


def test_options_are_those_of_the_programs() -> None:
    one = fw.compile(lambda x: x + 1, X, backend="openvino", level=0, threads=1)
    two = fw.compile(lambda x: x * 2, X, backend="onnxruntime", level=0, threads=1)
    captured = fw.capture(lambda x: two(one(x)), X)
    assert captured.options.backend == ("openvino", "onnxruntime")
    assert captured.options.threads == 1
    named = fw.capture(lambda x: two(one(x)), X, backend="onnxruntime")
    assert named.options.backend == "onnxruntime"


def test_options_that_differ_are_asked_for() -> None:
    one = fw.compile(lambda x: x + 1, X, backend="reference", threads=1)
    two = fw.compile(lambda x: x * 2, X, backend="reference", threads=2)
    with pytest.raises(OptionsError, match=r"threads 1 and 2.*threads=\.\.\."):
        fw.capture(lambda x: two(one(x)), X)
    assert np.array_equal(fw.capture(lambda x: two(one(x)), X, threads=1)(X), (X + 1) * 2)


def test_function_without_programs_is_refused() -> None:
    with pytest.raises(GraphError, match="calls no program"):
        fw.capture(lambda x: x + 1, X)


def test_capture_without_an_example_is_refused() -> None:
    (program,) = _chain(count=1)
    with pytest.raises(GraphError, match="Give arrays or Specs"):
        fw.capture(program)


def test_signature_that_a_graph_does_not_have_is_said() -> None:
    model = fw.compile(fw.trace(lambda x: x + 1, X), backend="reference")
    with pytest.raises(TraceError, match=r"was called with float32\[4, 3\]"):
        fw.capture(lambda x: model(x.T), X)


def test_comparison_includes_calling_one_by_one() -> None:
    programs = [fw.compile(lambda x, k=k: np.tanh(x) + k, X) for k in range(2)]
    captured = fw.capture(_one_by_one(programs), X, budget_seconds=5.0, start="measured")
    y = captured(X)
    assert np.allclose(y, np.tanh(np.tanh(X)) + 1, atol=1e-5)
    assert any(row.backend == "function" for row in captured.why().tried)
