"""An engine that is faster at known sizes compiles for those that are called often."""

import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fusewire as fw
from fusewire.contract.backend import Config
from fusewire.errors import BackendCrashed
from fusewire.plan import fitting
from fusewire.plan.plan import Region
from fusewire.plan.regions import RegionRunner
from fusewire.records.keys import artifact_key
from fusewire.registry import REGISTRY
from fusewire.trials.build import PlanBuilder
from tests.choosing.test_race import CPU
from tests.onnx.models import graph, model

SIZES = [((n, 3),) for n in range(2, 9)]


def _norm(x: Any) -> Any:
    return np.tanh(x) / (1 + np.sum(x * x, axis=1, keepdims=True))


def _rows(count: int) -> Any:
    return np.linspace(-1, 1, 3 * count, dtype=np.float32).reshape(count, 3)


def _program() -> Any:
    fitted = {"sizes": "fitted"}
    spec = fw.Spec(("n", 3), "float32")
    return fw.compile(_norm, spec, backend="openvino", level=0, backend_config=fitted)


def _region(program: Any, count: int) -> RegionRunner:
    entry, _ = program.prepared((_rows(count),))
    (region,) = entry.runner._runners
    assert isinstance(region, RegionRunner)
    return region


def _wait(*, seconds: float = 60.0) -> None:
    for thread in threading.enumerate():
        if thread.name == "fusewire-fitting":
            thread.join(seconds)
            assert not thread.is_alive()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "FITTING_CALLS", 3)
    monkeypatch.setattr(fitting, "MOST_FITTED", 2)


@pytest.mark.usefixtures("soon")
def test_sizes_that_are_called_often_get_an_executable_of_their_own() -> None:
    program = _program()
    for count in (4, 4, 4):
        np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
    made = _region(program, 4)._made
    assert list(made) == [((4, 3),)]
    for count in (5, 6, 7, 5):
        np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
    # One for any size, since none of them came often.
    assert set(made) == {((4, 3),), ()}
    for _ in range(3):
        program(_rows(6))
    _wait()
    # So many are fitted, and no more.
    for _ in range(5):
        program(_rows(8))
    assert set(made) == {((4, 3),), (), ((6, 3),)}
    np.testing.assert_allclose(program(_rows(6)), _norm(_rows(6)), rtol=1e-5)
    program.close()


@pytest.mark.usefixtures("soon", "store")
def test_both_forms_are_recorded() -> None:
    with _program() as program:
        for count in (4, 4, 5, 5):
            program(_rows(count))
    with _program() as program:
        for count in (4, 5):
            np.testing.assert_allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5)
        found = [x.cache for x in program.why().contacts]
        assert found == ["hit", "hit"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("config", [{}, {"sizes": "fitted"}])
def test_what_was_chosen_at_some_sizes_serves_others(config: Any) -> None:
    options: Any = {"backend": "openvino", "level": 1, "backend_config": config}
    options |= {"start": "measured", "budget_seconds": 4.0}
    for _ in range(2):
        with fw.compile(_norm, fw.Spec(("n", 3), "float32"), **options) as program:
            for count in (4, 4, 5, 6, 4):
                found = program(_rows(count))
                np.testing.assert_allclose(found, _norm(_rows(count)), rtol=1e-5)
            rows = {row.name: row for row in program.why().tried}
        if config:
            # The user's choice is judged with open sizes, too.
            assert rows["openvino sizes=open"].status == "right"


@pytest.mark.usefixtures("soon")
def test_sizes_stay_open_if_the_engine_does_not_compile_for_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fusewire")
    program = _program()
    for count in (4, 4, 5, 5):
        program(_rows(count))
    region = _region(program, 4)

    def refused(*given: Any) -> Any:
        raise BackendCrashed("It ends.")

    monkeypatch.setattr(PlanBuilder, "_compile", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            np.testing.assert_allclose(program(_rows(5)), _norm(_rows(5)), rtol=1e-5)
        _wait()
    assert set(region._made) == {((4, 3),), ()}
    assert "openvino does not compile for sizes that are called often: It ends." in caplog.text
    # Nothing runs elsewhere, and nobody is told so.
    assert {x.runs_on for x in program.why().contacts} == {"openvino"}
    program.close()


@pytest.mark.usefixtures("soon")
def test_threads_that_cannot_start_leave_sizes_open(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program()
    for count in (4, 4, 5, 5):
        program(_rows(count))

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _ in range(4):
            np.testing.assert_allclose(program(_rows(5)), _norm(_rows(5)), rtol=1e-5)
    program.close()


def test_calls_are_counted_by_sizes() -> None:
    graph = fw.trace(_norm, fw.Spec(("n", 3), "float32"))
    found = fitting.SizeFitting(Region.of(graph, "openvino", CPU, "dynamic"))
    assert [found.is_first(sizes) for sizes in (SIZES[0], SIZES[0], SIZES[1])] == [
        True,
        True,
        False,
    ]
    calls = range(fitting.FITTING_CALLS + 9)
    for sizes in SIZES[1 : fitting.MOST_FITTED]:
        assert [call for call in calls if found.is_due(sizes)] == [fitting.FITTING_CALLS - 1]
    assert not any(found.is_due(SIZES[-1]) for _ in calls)
    assert found.is_first(SIZES[0])


@pytest.mark.parametrize(
    ("shape", "shapes", "sizes", "is_fitted"),
    [
        (("n", 3), "dynamic", "fitted", True),
        ((4, 3), "dynamic", "fitted", False),
        (("n", 3), "static", "fitted", False),
        (("n", 3), "dynamic", "open", False),
    ],
)
def test_only_open_sizes_are_fitted(shape: Any, shapes: Any, sizes: str, is_fitted: bool) -> None:
    region = Region.of(fw.trace(_norm, fw.Spec(shape, "float32")), "openvino", CPU, shapes)
    assert fitting.is_fitted(region, Config(options={"sizes": sizes})) == is_fitted


def test_what_serves_any_size_is_that_of_the_candidate_with_open_sizes() -> None:
    region = Region.of(fw.trace(_norm, fw.Spec(("n", 3), "float32")), "openvino", CPU, "dynamic")
    backend, config = REGISTRY.backends.get("openvino"), Config(options={"sizes": "fitted"})
    opened = artifact_key(region, SIZES[0], backend, Config())
    assert artifact_key(region, SIZES[0], backend, config) == opened
    fitted = fitting.at_known_sizes(region)
    assert artifact_key(fitted, SIZES[0], backend, config) != opened


_ENDING = """
import numpy as np
import fusewire as fw
from fusewire.plan import fitting

fitting.FITTING_CALLS = 2
spec, fitted = fw.Spec(("n", 64), "float32"), {"sizes": "fitted"}
weights = np.ones((64, 64), np.float32)
program = fw.compile(
    lambda x: np.tanh(x @ weights) @ weights, spec, backend="openvino", level=0,
    backend_config=fitted, isolate="never",
)
for count in (4, 4, 5, 5, 5, 5):
    program(np.ones((count, 64), np.float32))
"""


def test_process_may_end_while_sizes_are_fitted() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_many_threads_get_right_answers_while_sizes_are_fitted() -> None:
    program, wrong = _program(), list[int]()
    program(_rows(2))
    end = time.monotonic() + 4

    def work(seed: int) -> None:
        order = np.random.default_rng(seed)
        while time.monotonic() < end:
            count = int(order.integers(2, 9))
            if not np.allclose(program(_rows(count)), _norm(_rows(count)), rtol=1e-5):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _wait()
    assert not wrong
    program.close()


def recurrent_file(folder: Path, *, skips: int = 0) -> Path:
    """Save a recurrent layer over all but the first steps."""
    rng = np.random.default_rng(3)
    weights = {"w": rng.normal(size=(1, 12, 3)), "r": rng.normal(size=(1, 12, 4))}
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    ends = {"first": skips, "end": 2**31, "axis": 0}
    constants |= {name: np.array([value]) for name, value in ends.items()}
    nodes = [
        helper.make_node("Slice", ["x", "first", "end", "axis"], ["z"]),
        helper.make_node("GRU", ["z", "w", "r"], ["y"], hidden_size=4),
    ]
    made = model(graph(nodes, {"x": ("float32", ["t", "b", 3])}, ["y"], constants), 17)
    onnx.save(made, path := folder / "model.onnx")
    return path


@pytest.mark.parametrize("policy", ["error", "warn"])
def test_sizes_that_an_engine_does_not_compile_for_run_with_open_ones(
    tmp_path: Path, policy: Any
) -> None:
    path = recurrent_file(tmp_path, skips=3)
    config = {"sizes": "fitted"}
    program = fw.compile(
        path, backend="onnxruntime", level=0, backend_config=config, fallback=policy
    )
    wanted = fw.compile(path, backend="reference", level=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Without steps, the layer alone is refused.
        for count in (3, 2, 3, 5, 3, 6, 5):
            x = np.ones((count, 2, 3), np.float32)
            np.testing.assert_allclose(program(x), wanted(x), rtol=1e-4, atol=1e-5)
    entry, _ = program.prepared((np.zeros((5, 2, 3), np.float32),))
    runner: Any = entry.runner
    assert {*runner._runners[0]._made} == {(), ((5, 2, 3),)}
    assert {x.runs_on for x in program.why().contacts} == {"onnxruntime"}


def test_onnxruntime_fits_a_recurrent_layer_and_serves_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    path = recurrent_file(tmp_path)
    fitted = fw.compile(
        path, backend="onnxruntime", level=0, backend_config={"sizes": "fitted"}, isolate="never"
    )
    wanted = fw.compile(path, backend="reference", level=0)
    for shape in ((0, 2, 3), (5, 2, 3), (4, 1, 3), (0, 2, 3), (5, 2, 3)):
        x = rng.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(fitted(x), wanted(x), rtol=1e-4, atol=1e-5)
    entry, _ = fitted.prepared((np.zeros((5, 2, 3), np.float32),))
    runner: Any = entry.runner
    (region,) = runner._runners
    assert {*region._made} == {(), ((5, 2, 3),)}
