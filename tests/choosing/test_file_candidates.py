"""The model file itself as a candidate: built, recalled, checked and rescued like any other."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import fusewire as fw
from fusewire.compiler import Session
from fusewire.errors import CheckError, FormatError
from fusewire.options import Options
from fusewire.planning.candidates import Candidate, candidates
from fusewire.program.entry import Entry
from fusewire.session.context import reference_target
from fusewire.session.model_source import ModelSource
from fusewire.store.disk import Store
from tests.onnx.models import graph, model

ENGINES = ("onnxruntime", "openvino")
RNG = np.random.default_rng(7)
TABLE = RNG.standard_normal((50, 32)).astype(np.float32)
WEIGHT = RNG.standard_normal((32, 32)).astype(np.float32)


def saved(folder: Path, **saving: Any) -> Path:
    """Save a model that looks words up and mixes them."""
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["taken"]),
        helper.make_node("MatMul", ["taken", "weight"], ["mixed"]),
        helper.make_node("Tanh", ["mixed"], ["answer"]),
    ]
    constants = {"table": TABLE, "weight": WEIGHT}
    made = model(graph(nodes, {"words": ("int64", [4])}, ["answer"], constants), 17)
    path = folder / "model.onnx"
    onnx.save(made, path, **saving)
    return path


def expected(words: Any) -> Any:
    return np.tanh(TABLE[words] @ WEIGHT)


def options(engine: str, **fields: Any) -> Options:
    return Options.of(None, {"backend": engine, "level": 1, **fields})


def file_entry(path: Path, engine: str, **fields: Any) -> Entry:
    """Make the entry of the file form, and save its plan, as if it had won."""
    session = Session(options(engine, **fields))
    reading = ModelSource(path).read()
    key = session.warm_start.key(reading.digest, (), False)
    found = candidates(
        session.rewrite(reading.graph),
        session.context.finder.targets(engine),
        reference_target(),
        session.options.config,
        may_fall_back=True,
        file=reading.file,
    )
    (candidate,) = (x for x in found if isinstance(x, Candidate) and x.form == "file")
    assert candidate.name == f"{engine} file"
    return session.decider.entries.ready_entry(reading, candidate, key)


def answer(entry: Entry, words: Any) -> Any:
    (found,) = entry.runner.call([words])
    return found


WORDS = np.array([3, 1, 49, 0], np.int64)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("is_external", [False, True])
def test_the_file_is_built_in_a_child_and_runs(
    engine: str, is_external: bool, tmp_path: Path
) -> None:
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    path = saved(tmp_path, **(saving if is_external else {}))
    entry = file_entry(path, engine)
    if not is_external:
        # The engine reads no path: what was checked is what it gets.
        path.write_bytes(b"")
    assert np.allclose(answer(entry, WORDS), expected(WORDS), atol=1e-5)
    other = WORDS[::-1].copy()
    assert np.allclose(answer(entry, other), expected(other), atol=1e-5)
    (contacted,) = entry.details.why().contacts
    assert (contacted.outcome, contacted.runs_on) == ("ready", engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_is_checked_before_the_engine_sees_it(engine: str, tmp_path: Path) -> None:
    entry = file_entry(saved(tmp_path), engine)
    answer(entry, WORDS)
    with pytest.raises(CheckError, match="words"):
        answer(entry, np.array([1, 50, 2, 3], np.int64))
    assert entry.details.why().guards


@pytest.mark.parametrize("engine", ENGINES)
def test_the_file_is_recalled_and_made_again_if_its_artifact_is_lost(
    engine: str, tmp_path: Path, store: Store
) -> None:
    path = saved(tmp_path)
    answer(file_entry(path, engine), WORDS)
    recalled = fw.compile(path, options=options(engine))
    assert recalled.plan.steps[0].region.load_file is not None
    assert np.allclose(recalled(WORDS), expected(WORDS), atol=1e-5)
    assert [x.cache for x in recalled.why().contacts] == ["hit"]
    lose_artifacts(store)
    rebuilt = fw.compile(path, options=options(engine))
    assert np.allclose(rebuilt(WORDS), expected(WORDS), atol=1e-5)
    assert [x.cache for x in rebuilt.why().contacts] != ["hit"]


def lose_artifacts(store: Store) -> None:
    for entry in list(store.entries("artifact")):
        store.drop(entry.key)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_file_is_not_read_in_the_place_of_a_lost_artifact(
    engine: str, tmp_path: Path, store: Store
) -> None:
    path = saved(tmp_path)
    answer(file_entry(path, engine), WORDS)
    recalled = fw.compile(path, options=options(engine))
    lose_artifacts(store)
    other = onnx.load(path)
    other.graph.node[2].op_type = "Neg"
    onnx.save(other, path)
    with pytest.raises(FormatError, match="changed"):
        recalled(WORDS)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_file_runs_in_a_child_that_stays(engine: str, tmp_path: Path) -> None:
    entry = file_entry(saved(tmp_path), engine, isolate="always", threads=1, deterministic=True)
    assert np.allclose(answer(entry, WORDS), expected(WORDS), atol=1e-5)


def test_what_openvino_cannot_hold_is_answered_by_the_reference(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.FLOAT)]
    path = tmp_path / "model.onnx"
    onnx.save(model(graph(nodes, {"x": ("int64", [2])}, ["y"]), 17), path)
    entry = file_entry(path, "openvino")
    assert answer(entry, np.array([1, 2], np.int64)).tolist() == [1.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert answer(entry, np.array([1, 2**40], np.int64)).tolist() == [1.0, 2.0**40]


def test_settings_in_the_file_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime takes options of a session from the file where the environment allows it."""
    path = tmp_path / "model.onnx"
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    made = model(graph(nodes, {"x": ("float32", [2])}, ["y"]), 17)
    broken = '{"session_options": {"graph_optimization_level": "no such level"}}'
    made.metadata_props.add(key="ort_config", value=broken)
    onnx.save(made, path)
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    with pytest.raises(Exception, match=r"(?i)json|config|level|option"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    entry = file_entry(path, "onnxruntime")
    assert answer(entry, np.ones(2, np.float32)).tolist() == [-1.0, -1.0]


def test_the_file_races_and_is_judged(tmp_path: Path) -> None:
    options = fw.Options(backend="onnxruntime", level=1, start="measured", budget_seconds=4)
    program = fw.compile(saved(tmp_path), options=options)
    assert np.allclose(program(WORDS), expected(WORDS), atol=1e-5)
    (row,) = (row for row in program.why().tried if row.name == "onnxruntime file")
    assert row.status in ("right", "not judged", "not tried"), row.reason


def test_file_whose_recurrent_layer_may_have_no_steps_is_not_run_as_it_is(tmp_path: Path) -> None:
    # ONNX Runtime 1.31 ends the process then.
    from tests.plan.test_fitting import recurrent_file

    with pytest.raises(ValueError, match="not enough values"):
        file_entry(recurrent_file(tmp_path, skips=3), "onnxruntime")
