"""The plan that serves first is there as soon as one engine can answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusewire as fw
from fusewire.backends.onnxruntime.discovery import SUM
from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.contract.backend import Config, Device
from fusewire.process.isolate import Contact, first_contact, rerun
from fusewire.records.quarantine import Fact, quarantine
from fusewire.session.candidate_entries import CandidateEntries
from fusewire.store.disk import Store
from fusewire.store.key import Key

REFERENCE = "fusewire.backends.onnxruntime.engine:OnnxRuntimeBackend"
CPU = Device("cpu", "cpu")
X = np.linspace(-1, 1, 4 * 32, dtype=np.float32).reshape(4, 32)
W = np.linspace(-0.02, 0.01, 32 * 32, dtype=np.float32).reshape(32, 32)

# Prints what a first call asks of children, and what it imports before it answers.
FIRST = """
import json
import sys
import numpy as np
import fusewire as fw
from fusewire.session import decider
from fusewire.process import isolate, pool

asked = []
given = pool.Seat.ask

def ask(seat, header, blobs, limits, what, read):
    asked.append((header["kind"], bool(header.get("artifact")), header.get("has_region", False)))
    return given(seat, header, blobs, limits, what, read)

pool.Seat.ask = ask
# So that an engine serves first, however small the model is.
decider._LITTLE_WORK = 0
program = fw.compile(sys.argv[1])
y = program(np.linspace(-1, 1, 128, dtype=np.float32).reshape(4, 32))
late = [x for x in sys.modules if x.startswith(("fusewire.kernel", "openvino", "jax"))]
print(json.dumps([asked, sorted(pool.shared_pool()._seats), late, y.tolist()]))
"""


def network(x: Any) -> Any:
    return np.tanh(x @ W)


def model_file(folder: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(W, "w")],
    )
    path = folder / "network.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_probe_runs_a_valid_model() -> None:
    onnx.checker.check_model(onnx.load_from_string(SUM), full_check=True)
    session = onnxruntime.InferenceSession(SUM, providers=["CPUExecutionProvider"])
    (doubled,) = session.run(None, {"x": np.array([1, 2, 3], np.float32)})
    assert doubled.tolist() == [2, 4, 6]
    (found,) = OnnxRuntimeBackend().probe()
    assert isinstance(found, Device)


def test_child_loads_an_artifact_that_it_did_not_compile() -> None:
    region = fw.trace(network, X)
    written = OnnxRuntimeBackend().write_artifact(region, CPU, Config())
    assert any(slot.role == "weight" for slot in written.slots)
    contact = first_contact(REFERENCE, region, CPU, Config(), [X], artifact=written)
    assert isinstance(contact, Contact)
    assert contact.artifact == written
    assert "compile_seconds" not in contact.metrics
    np.testing.assert_allclose(contact.outputs[0], network(X), rtol=1e-5)
    again = rerun(contact, [2 * X])
    assert isinstance(again, list)
    np.testing.assert_allclose(again[0], network(2 * X), rtol=1e-5)


def test_first_answer_asks_one_child_to_load_and_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FIRST, str(model_file(tmp_path))]
    environment = {**os.environ, "FUSEWIRE_CACHE": str(tmp_path / "cache")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    asked, children, late, y = json.loads(found.stdout.splitlines()[0])
    # No claim, no region to parse, nothing compiled ahead.
    assert asked == [["probe", False, False], ["contact", True, False]]
    assert children == [REFERENCE]
    assert late == []
    np.testing.assert_allclose(y, network(X), rtol=1e-5)


def test_first_artifact_is_recorded_apart_also_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "cache")
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: store)
    monkeypatch.setattr("fusewire.background.first._LateSearch.begin", lambda *given: None)
    fw.compile(fw.trace(network, X), backend="onnxruntime", level=0)(X)
    (lasting,) = [entry.key for entry in store.entries("artifact")]
    store.drop(lasting)
    quarantine(store, lasting, Fact("crashed", "SIGSEGV."))
    with fw.compile(fw.trace(network, X), backend="onnxruntime", level=1) as program:
        np.testing.assert_allclose(program(X), network(X), rtol=1e-5)
    (made,) = [entry.key for entry in store.entries("artifact")]
    assert made.fields == (*lasting.fields, ("made", "first"))


def test_accusation_of_a_stranger_has_the_first_engine_met_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "cache")
    monkeypatch.setattr("fusewire.session.context.shared_store", lambda: store)
    monkeypatch.setattr("fusewire.background.first._LateSearch.begin", lambda *given: None)

    def is_loaded() -> bool:
        with fw.compile(fw.trace(network, X), backend="onnxruntime", level=1) as program:
            program(X)
            (contact,) = program.why().contacts
            return contact.cache == "hit"

    assert [is_loaded(), is_loaded()] == [False, True]
    (made,) = [entry.key for entry in store.entries("artifact")]
    lasting = Key(made.kind, made.fields[:-1])
    quarantine(store, lasting, Fact("crashed", "It said so.", is_imported=True))
    assert not is_loaded()


def test_faults_of_a_first_plan_name_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[str] = []
    built = CandidateEntries.built

    def noted(entries: CandidateEntries, *given: Any, **named: Any) -> Any:
        models.append(entries.context.records.model)
        return built(entries, *given, **named)

    monkeypatch.setattr(CandidateEntries, "built", noted)
    monkeypatch.setattr("fusewire.background.first._LateSearch.begin", lambda *given: None)
    with fw.compile(model_file(tmp_path)) as program:
        program(X)
    assert models == ["network"]
