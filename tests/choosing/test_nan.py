"""A NaN or an infinity of an input is never lost, whatever form of a graph was chosen."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fusewire as fw
from fusewire.errors import OptionsError
from fusewire.store.disk import Store
from tests.choosing.test_file_candidates import file_entry, options
from tests.onnx.models import graph, model

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
NUMBERS = (np.nan, np.inf, -np.inf)
OWN: dict[str, Any] = {"backend": "openvino", "backend_config": {"nan": "engine"}}


def poisoned(number: float, place: int = 5) -> Any:
    x = X.copy()
    x.reshape(-1)[place] = number
    return x


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def saved(folder: Path, *ops: str) -> Path:
    names = ["x", *(f"half{at}" for at in range(len(ops) - 1)), "y"]
    nodes = [
        helper.make_node(op, [given], [made])
        for op, given, made in zip(ops, names[:-1], names[1:], strict=True)
    ]
    path = folder / "model.onnx"
    onnx.save(model(graph(nodes, {"x": ("float32", [3, 4])}, ["y"]), 17), path)
    return path


def same(answer: Any, right: Any) -> bool:
    return np.array_equal(np.asarray(answer), right, equal_nan=True)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_file_keeps_what_is_in_an_input(number: float, tmp_path: Path, store: Store) -> None:
    path = saved(tmp_path, "Relu")
    entry = file_entry(path, "openvino")
    for x in (X, poisoned(number), X):
        assert same(entry.runner.call([x])[0], relu(x))
    recalled = fw.compile(path, options=options("openvino"))
    assert recalled.plan.steps[0].region.load_file is not None
    for x in (X, poisoned(number), X):
        assert same(recalled(x), relu(x))


@pytest.mark.parametrize("isolate", ["first", "always"])
@pytest.mark.parametrize("number", NUMBERS)
def test_own_nodes_that_are_asked_for_keep_what_is_in_an_input(number: float, isolate: Any) -> None:
    program = fw.compile(relu, X, **OWN, isolate=isolate)
    for x in (X, poisoned(number), X):
        assert same(program(x), relu(x))
    assert program.why().backend == "openvino"


def test_each_place_is_looked_at() -> None:
    program = fw.compile(relu, X, **OWN)
    for place in range(X.size):
        x = poisoned(np.nan, place)
        assert same(program(x), relu(x))
        assert same(program(x.T.copy().T), relu(x))


def test_a_call_that_writes_into_arrays_keeps_it() -> None:
    program, made = fw.compile(relu, X, **OWN), fw.empty(X.shape, "float32")
    for x in (X, poisoned(np.nan), X):
        assert program(fw.asarray(x), out=made) is made
        assert same(made.numpy(), relu(x))
        assert same(program.submit(x).result(), relu(x))


@pytest.mark.filterwarnings("ignore::fusewire.errors.BundleWarning")
def test_a_bundle_keeps_it(tmp_path: Path, store: Store) -> None:
    for name, given in (("own", OWN), ("file", {"options": options("openvino")})):
        path = saved(tmp_path, "Relu")
        if name == "file":
            file_entry(path, "openvino")
        program = fw.compile(path, **given)
        program(X)
        program.save(tmp_path / f"{name}.fw", weights=True)
        opened = fw.open(tmp_path / f"{name}.fw")
        for x in (X, poisoned(np.nan), X):
            assert same(opened(x), relu(x)), name


def test_a_branch_keeps_it() -> None:
    """The host runs the branch, and its bodies run as the call does."""
    branching = fw.compile(_branching, np.array(True), X, **OWN)
    for x in (X, poisoned(np.nan, 3), X):
        assert same(branching(np.array(True), x), relu(x))
        assert same(branching(np.array(False), x), -x)


def _branching(which: Any, x: Any) -> Any:
    def largest(x: Any) -> Any:
        # OpenVINO has no determinant, so that the host runs the branch.
        return np.maximum(x, 0) + 0 * np.linalg.det(x[:3, :3])

    return fw.ops.cond(which, x, then=largest, otherwise=np.negative)


def test_that_a_call_runs_in_another_form_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    program = fw.compile(relu, X, **OWN)
    program(X)
    with caplog.at_level(logging.INFO, "fusewire"):
        program(poisoned(np.nan))
        program(poisoned(np.inf))
    lines = [x.message for x in caplog.records if "NaN or an infinity" in x.message]
    assert len(lines) == 1
    assert "openvino" in lines[0]
    assert not program.why().failures


def test_an_engine_that_keeps_it_is_not_looked_at() -> None:
    program = fw.compile(relu, X, backend="openvino")
    assert same(program(poisoned(np.nan)), relu(poisoned(np.nan)))
    assert len(program.why().contacts) == 1


@pytest.mark.parametrize("engine", ["openvino", "auto"])
def test_forms_that_lose_what_arises_inside_can_be_forbidden(engine: str, tmp_path: Path) -> None:
    path, rows = saved(tmp_path, "Log", "Relu"), {}
    with np.errstate(invalid="ignore"):
        right = relu(np.log(poisoned(np.inf)))
    for nan in ("inputs", "exact"):
        given: Any = {
            "backend": engine,
            "nan": nan,
            "level": 1,
            "budget_seconds": 5,
            "cache": False,
        }
        program = fw.compile(path, abs(X) + 1, start="measured", **given)
        rows[nan] = {row.name: row for row in program.why().tried}
        assert np.allclose(program(poisoned(np.inf)), right, atol=1e-6, equal_nan=True)
        if nan == "exact":
            assert np.isnan(program(-abs(X) - 1)).all()
    own = {"openvino nan=engine", "openvino file"}
    assert not rows["exact"].keys() & own
    # Of all engines, the budget may not reach each.
    assert engine == "auto" or rows["inputs"].keys() >= own
    lossy = [row for name, row in rows["inputs"].items() if name in own]
    for row in lossy:
        if row.status in ("right", "not judged"):
            assert 'nan="exact" forbids that' in row.reason


def test_why_says_what_may_be_lost() -> None:
    for given, count in ((OWN, 1), ({"backend": "openvino"}, 0)):
        notes = fw.compile(relu, X, **given).why().notes
        said = [
            note for note in notes if note.startswith("A NaN or an infinity that arises inside")
        ]
        assert len(said) == count
        assert all(note.endswith('nan="exact" forbids that.') for note in said)


def test_asking_for_both_is_refused() -> None:
    with pytest.raises(OptionsError, match="own nodes"):
        fw.compile(relu, X, **OWN, nan="exact")
    unknown: Any = {"nan": "engine"}
    with pytest.raises(OptionsError, match="'inputs' or 'exact'"):
        fw.compile(relu, X, **unknown)


def test_an_example_with_nan_is_served_by_what_keeps_it() -> None:
    given: Any = {"backend": "openvino", "level": 1, "start": "measured", "budget_seconds": 4}
    for config in ({}, {"nan": "engine"}):
        x = poisoned(np.nan)
        program = fw.compile(relu, x, **given, backend_config=config, cache=False)
        assert same(program(x), relu(x))
        assert not any(row.status == "wrong" for row in program.why().tried)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_int8_keeps_what_is_in_an_input(engine: str) -> None:
    """Its codes have no NaN: ONNX Runtime answers with numbers, or with zeros for an infinity."""
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    int8: dict[str, Any] = {"backend": engine, "backend_config": {"precision": "int8"}}
    program = fw.compile(lambda x: x @ weights, weights[:4], **int8)
    for number in NUMBERS:
        x = weights[:4].copy()
        x[1, 3] = number
        answer = np.asarray(program(x))
        assert not np.isfinite(answer[1]).any()
        assert np.isfinite(answer[[0, 2, 3]]).all()
    with pytest.raises(OptionsError, match="int8"):
        fw.compile(lambda x: x @ weights, weights[:4], **int8, nan="exact")
