"""Programs whose engines stay in child processes give the same answers, and nothing runs here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import fusewire as fw
from fusewire import ops
from fusewire.errors import BackendCrashed, BackendHung, OptionsError
from fusewire.testing.chaos import asking_for

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def _choice(x: Any) -> Any:
    return ops.cond(np.sum(x) > 0, x, then=lambda v: np.sin(v) * 2, otherwise=lambda v: v / 2)


@pytest.fixture
def chaos() -> Iterator[str]:
    yield fw.register("fusewire.testing.chaos:asked_at_value", "chaos")
    fw.unregister("chaos")


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
def test_programs_answer_as_they_do_in_this_process(engine: str) -> None:
    spec = fw.Spec(("n", 4), "float32")
    program = fw.compile(
        lambda x: (np.tanh(x), np.sum(x, axis=0)), spec, backend=engine, isolate="always"
    )
    for count in (1, 3, 5000):
        given = np.linspace(-1, 1, 4 * count, dtype=np.float32).reshape(count, 4)
        first, second = program(given)
        np.testing.assert_allclose(first, np.tanh(given), rtol=1e-5)
        np.testing.assert_allclose(second, np.sum(given, axis=0), rtol=1e-4, atol=1e-4)
    assert all(contact.is_isolated for contact in program.why().contacts)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
def test_large_outputs_stay_as_they_were_returned(engine: str) -> None:
    spec = fw.Spec(("n", 4), "float32")
    program = fw.compile(
        lambda x: (x * 2, x[:1], x + 1), spec, backend=engine, isolate="always", cache=False
    )
    kept: list[Any] = []
    for count in (60_000, 60_000, 30_000, 60_000, 60_000):
        given = np.full((count, 4), len(kept), np.float32)
        kept.append((given, program(given)))
    for given, (twice, first, more) in kept:
        np.testing.assert_array_equal(twice, given * 2)
        np.testing.assert_array_equal(first, given[:1])
        np.testing.assert_array_equal(more, given + 1)


def test_sizes_that_values_decide_are_found_again_in_the_same_shapes() -> None:
    spec = fw.Spec((300_000,), "float32")
    program = fw.compile(
        lambda x: (ops.nonzero(x)[0], x * 2), spec, backend="onnxruntime", isolate="always"
    )
    for every in (3, 3, 1, 7, 1):
        given = (np.arange(300_000) % every == 0).astype(np.float32)
        found, twice = program(given)
        np.testing.assert_array_equal(np.ravel(found), np.nonzero(given)[0])
        np.testing.assert_array_equal(twice, given * 2)


def test_sizes_that_values_decide_are_found_again() -> None:
    spec = fw.Spec(("n",), "float32")
    program = fw.compile(ops.nonzero, spec, backend="reference", isolate="always", cache=False)
    for count in (10, 100_000, 10, 300_000):
        given = (np.arange(count) % 3).astype(np.float32)
        np.testing.assert_array_equal(program(given)[0], np.nonzero(given)[0])


def test_strings_and_sequences_come_back(tmp_path: Path) -> None:
    float_, text = TensorProto.FLOAT, TensorProto.STRING
    sequence = helper.make_tensor_sequence_value_info("y", float_, [2])
    joined = helper.make_tensor_value_info("y", text, [2])
    cases: list[tuple[str, int, Any, list[Any]]] = [
        ("SequenceConstruct", float_, sequence, [np.ones(2, np.float32), np.zeros(2, np.float32)]),
        (
            "StringConcat",
            text,
            joined,
            [np.array(["a", "b"], object), np.array(["c", "ü"], object)],
        ),
    ]
    for op, of, output, given in cases:
        edges = [helper.make_tensor_value_info(name, of, [2]) for name in "ab"]
        node = helper.make_node(op, ["a", "b"], ["y"])
        model = helper.make_model(
            helper.make_graph([node], "g", edges, [output]),
            opset_imports=[helper.make_opsetid("", 20)],
        )
        path = tmp_path / f"{op}.onnx"
        path.write_bytes(model.SerializeToString())
        here, there = (
            fw.compile(path, backend="reference", isolate=mode, cache=False)(*given)
            for mode in ("never", "always")
        )
        assert str(here) == str(there)


def test_control_flow_that_the_host_drives_runs_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    program = fw.compile(_choice, X, backend="webgpu", fallback="allow", isolate="always")
    assert "host" in {step.region.backend for step in program.plan.steps}
    monkeypatch.setattr("fusewire.ops.interpret.Interpreter.__call__", _forbidden)
    for given in (X + 1, X - 1):
        expected = np.sin(given) * 2 if given.sum() > 0 else given / 2
        np.testing.assert_allclose(program(given), expected, rtol=1e-5)


def _forbidden(*_: object) -> None:
    raise AssertionError("the interpreter runs in this process")


_WARM = """
import sys
import numpy as np
import fusewire as fw
program = fw.compile(sys.argv[1], backend="onnxruntime", isolate="always")
answer = program(np.ones(2, np.float32)).tolist()
(contact,) = program.why().contacts
print(contact.cache == "hit", contact.is_isolated, "onnxruntime" in sys.modules)
assert np.allclose(answer, np.tanh(1.0), rtol=1e-5)
"""


def test_warm_start_loads_the_artifact_in_the_child(tmp_path: Path) -> None:
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", edges[:1], edges[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    cache = {"FUSEWIRE_CACHE": str(tmp_path / "cache")}
    told = [_run(_WARM, path, cache).split() for _ in range(2)]
    assert told == [["False", "True", "False"], ["True", "True", "False"]]


def _run(script: str, path: Path, changed: dict[str, str]) -> str:
    command = [sys.executable, "-c", script, str(path)]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **changed}
    )
    return found.stdout


def test_a_call_that_kills_its_engine_fails_alone(chaos: str) -> None:
    program = fw.compile(
        lambda x: x + x, X, backend=chaos, isolate="always", deadline=2.0, fallback="allow"
    )
    program(X)
    for fault, kind in (("segv", BackendCrashed), ("hang", BackendHung)):
        bad = X.copy()
        bad[0, 0] = asking_for(fault)
        with pytest.raises(kind):
            program(bad)
        np.testing.assert_array_equal(program(X), X + X)


def test_unknown_isolation_is_refused() -> None:
    assert fw.Options(isolate=True).isolate == fw.Options().isolate == "first"
    assert fw.Options(isolate=False).isolate == "never"
    with pytest.raises(OptionsError, match="'first', 'always' or 'never'"):
        fw.Options(isolate="sometimes")  # type: ignore[arg-type]  # on purpose
