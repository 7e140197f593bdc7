"""Trials: each recorded once for a host, whoever runs them and however often."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.cli import main
from fusewire.errors import JobError, RegistryError
from fusewire.options import Options
from fusewire.ray import TunedModel, tune
from fusewire.ray.host import host_id, machine_kind, one_at_a_time
from fusewire.ray.shared_model import SharedModel
from fusewire.ray.trials import FleetTrial
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store
from tests.ray.tables import save_model

BRIEF = Options(budget_seconds=0.5)


@pytest.fixture
def model(tmp_path: Path) -> TunedModel:
    return TunedModel(save_model(tmp_path), {"x": np.ones((2, 4), np.float32)})


def recorded(store: Store) -> list[dict[str, Any]]:
    """List the records of trials by host."""
    found = []
    for entry in store.entries("measurement"):
        fields = dict(entry.key.fields)
        if "trial" in fields and fields["host"] != "any":
            held = store.get(entry.key)
            assert held is not None
            found.append(json.loads(held))
    return found


def test_trial_is_recorded_once(model: TunedModel, store: Store) -> None:
    engines = ["onnxruntime", "reference"]
    first = tune([model], engines=engines, options=BRIEF)
    # A busy machine may leave no time to judge within the budget.
    assert {row["status"] for row in first} <= {"right", "not judged"}
    assert all(row["seconds"] > 0 for row in first)
    assert {row["host"] for row in first} == {host_id()}
    assert len(recorded(store)) == 2
    again = tune([model], engines=engines, options=BRIEF)
    assert all(row["is_recalled"] for row in again)
    assert [row["seconds"] for row in again] == [row["seconds"] for row in first]
    assert len(recorded(store)) == 2


def test_other_sizes_are_other_trials(model: TunedModel, store: Store) -> None:
    more = TunedModel(model.path, {"x": np.ones((5, 4), np.float32)})
    tune([model, more], engines=["reference"], options=BRIEF)
    assert {row["shapes"] for row in recorded(store)} == {"x=float32[2,4]", "x=float32[5,4]"}


@pytest.mark.timing
@pytest.mark.parametrize("engine", ["onnxruntime", "auto"])
def test_every_size_is_measured(tmp_path: Path, store: Store, engine: str) -> None:
    weights = np.ones((256, 256), np.float32) / 256
    path = tmp_path / "wide.onnx"
    fw.save_onnx(lambda x: np.tanh(x @ weights) @ weights, path, fw.Spec(("n", 256), "float32"))
    sizes = [TunedModel(path, {"x": np.ones((n, 256), np.float32)}) for n in (1, 2048)]
    few, many = tune(sizes, engines=[engine], options=Options(budget_seconds=2, threads=1))
    # A thousand times the work; the plan of the first size must not answer for the second.
    assert many["seconds"] > 5 * few["seconds"]


def test_record_of_another_host_of_the_kind_is_enough(
    model: TunedModel, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune([model], engines=["reference"], options=BRIEF)
    monkeypatch.setattr("fusewire.ray.trials.host_id", lambda: "another")
    (row,) = tune([model], engines=["reference"], options=BRIEF)
    assert row["is_recalled"]
    assert len(recorded(store)) == 1


def test_refusal_is_a_record(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "sort.onnx"
    fw.save_onnx(lambda x: np.linalg.det(x), path, fw.Spec((3, 3), "float64"))
    model = TunedModel(path, {"x": np.eye(3)})
    (row,) = tune([model], engines=["webgpu"], options=Options(budget_seconds=1, fallback="error"))
    assert row["status"] in ("refused", "unavailable")
    assert row["reason"]


def test_auto_records_the_plan_that_compile_recalls(model: TunedModel, store: Store) -> None:
    (row,) = tune([model], engines=["auto"], options=Options(budget_seconds=3))
    assert row["status"] == "right"
    with fw.compile(model.path, level="recall", budget_seconds=3) as program:
        program(model.inputs["x"])
        assert program.why().backend == row["backend"]


def test_trials_are_shared_with_other_machines(
    model: TunedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="pip install 'fusewire[remote]'")
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    remote = tmp_path / "shared"
    remote.mkdir()
    options = Options(budget_seconds=0.5, remote=str(remote))

    def tuned(name: str) -> dict[str, Any]:
        monkeypatch.setattr("fusewire.session.context.shared_store", lambda: Store(tmp_path / name))
        monkeypatch.setattr("fusewire.ray.trials.host_id", lambda: name)
        (row,) = tune([model], engines=["reference"], options=options)
        return row

    assert "no key" in tuned("keyless")["unpublished"]
    words = ["store", "keygen", "--allow"]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    first, second = tuned("one"), tuned("two")
    assert first["unpublished"] is None
    assert not first["is_recalled"]
    assert (second["is_recalled"], second["host"]) == (True, "one")


def test_unknown_engine_or_kind_is_refused(model: TunedModel) -> None:
    with pytest.raises(RegistryError, match="nothing"):
        tune([model], engines=["nothing"])
    with pytest.raises(JobError, match=machine_kind()):
        tune([model], engines=["reference"], kinds=["other"])


def test_command_prints_trials(
    model: TunedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CACHE", str(tmp_path / "cache"))
    words = ["tune", str(model.path), "--shapes", "x=3,4", "--engines", "reference"]
    words += ["--budget", "0.5"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "1 trials" in done.output
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    (trial,) = json.loads(done.stdout)["trials"]
    assert trial["shapes"] == "x=float32[3,4]"


_HOLDER = """
import time
from fusewire.ray.host import one_at_a_time
with one_at_a_time():
    print("held", flush=True)
    time.sleep(60)
"""


def test_host_measures_one_thing_at_a_time() -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    taken = threading.Event()

    def take() -> None:
        with one_at_a_time():
            taken.set()

    try:
        assert holder.stdout.readline() == "held\n"
        waiting = threading.Thread(target=take, daemon=True)
        waiting.start()
        assert not taken.wait(0.3)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    # The lock ends with its process.
    assert taken.wait(30)
    waiting.join()


def test_locks_of_threads_exclude_each_other() -> None:
    held: list[int] = []

    def take() -> None:
        with one_at_a_time():
            held.append(1)
            assert len(held) == 1
            time.sleep(0.02)
            held.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not held


@pytest.mark.parametrize("engine", ["onnxruntime", "auto"])
def test_trial_is_another_one_with_another_version_of_an_engine(
    engine: str, model: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = FleetTrial(SharedModel.of(model.path), "m", "x", engine, "kind", BRIEF)
    before = trial.key()
    backend = REGISTRY.backends.get("onnxruntime")
    newer = replace(backend.info, version="99.0")
    monkeypatch.setattr(type(backend), "info", property(lambda self: newer))
    assert trial.key() != before
    assert replace(trial, engine="reference").key() == replace(trial, engine="reference").key()


def test_trial_is_another_one_with_other_options(model: TunedModel) -> None:
    trial = FleetTrial(SharedModel.of(model.path), "m", "x", "auto", "kind", BRIEF)
    assert replace(trial, options=replace(BRIEF, level=3)).key() != trial.key()
