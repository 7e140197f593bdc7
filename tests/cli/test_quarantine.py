"""`fusewire quarantine` lists what is banned and why, and lifts it; `bench --retry` tries it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.cli import main
from fusewire.records.quarantine import Fact, quarantine
from fusewire.registry import REGISTRY
from fusewire.store.disk import Store
from fusewire.store.key import Key

QUICK = ("--budget", "2", "--backends", "chaos,reference")


@pytest.fixture(autouse=True)
def cache_folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands use the store of the test."""
    monkeypatch.setenv("FUSEWIRE_CACHE", str(store.path))


def invoke(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, [str(word) for word in words])


def listed() -> Any:
    return json.loads(invoke("quarantine", "--json").stdout)["entries"]


def put(store: Store, engine: str, **fields: Any) -> None:
    key = Key.of("artifact", region=f"{engine} {fields}", backend=engine, device="cpu")
    quarantine(store, key, Fact("crashed", f"{engine} died of SIGSEGV.", **fields))


def test_list_has_model_engine_time_and_reason_in_80_columns(store: Store) -> None:
    put(store, "onnxruntime", model="magika", candidate="onnxruntime expanded")
    put(store, "openvino", when="2020-01-01 10:00", model="a-model-with-a-very-long-name-indeed")
    put(store, "xla")
    text = invoke("quarantine").stdout
    assert all(len(line) <= 80 for line in text.splitlines())
    said = " ".join(text.split())
    for word in ("magika", "onnxruntime expanded", "2020-01-01 10:00", "unknown", "SIGSEGV"):
        assert word in said
    rows = {row["engine"]: row for row in listed()}
    assert rows["xla"]["model"] == "unknown"
    assert rows["openvino"]["when"] == "2020-01-01 10:00"
    assert rows["onnxruntime"]["code"] == "crashed"


def test_fact_of_an_older_version_is_listed_as_unknown(store: Store) -> None:
    put(store, "xla")
    (entry,) = store.entries("quarantine")
    payload = store.get(entry.key)
    assert payload is not None
    older = {k: v for k, v in json.loads(payload).items() if k not in ("model", "candidate")}
    store.put(entry.key, json.dumps(older).encode())
    (row,) = listed()
    assert (row["model"], row["engine"]) == ("unknown", "xla")


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ((), set()),
        (("magika",), {("mnist", "xla")}),
        (("some/folder/magika.onnx", "xla"), {("magika", "openvino"), ("mnist", "xla")}),
        (("any", "xla"), {("magika", "openvino")}),
        (("any", "openvino nan=engine"), {("magika", "xla"), ("mnist", "xla")}),
    ],
)
def test_lift_takes_out_what_matches_and_says_so(
    store: Store, words: tuple[str, ...], left: set[Any]
) -> None:
    put(store, "xla", model="magika")
    put(store, "openvino", model="magika", candidate="openvino nan=engine")
    put(store, "xla", model="mnist")
    done = invoke("quarantine", "lift", *words)
    assert done.exit_code == 0
    assert done.stdout.count("Lifted: ") == 3 - len(left)
    assert {(row["model"], row["engine"]) for row in listed()} == left


def test_lift_of_nothing_ends_with_1(store: Store) -> None:
    assert "Nothing is in quarantine." in invoke("quarantine").stdout
    put(store, "xla", model="mnist")
    done = invoke("quarantine", "lift", "mnist", "openvino")
    assert (done.exit_code, "openvino for mnist is in quarantine" in done.stdout) == (1, True)
    found = invoke("quarantine", "lift", "magika", "--json")
    assert (found.exit_code, json.loads(found.stdout)["lifted"]) == (1, [])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small model.onnx"
    x = fw.Spec((4, 6), "float32")
    fw.save_onnx(fw.trace(lambda x: np.exp(x) @ np.cos(x).T, x), path)
    return path


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(REGISTRY.backends, "names", lambda: ["chaos", "reference"])
    fw.register("fusewire.testing.chaos:element_at_run")
    yield
    fw.unregister("chaos")


def statuses(*words: object) -> dict[str, Any]:
    done = invoke("bench", *words, *QUICK, "--json")
    return {row["backend"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.usefixtures("chaos")
def test_bench_names_the_command_that_lifts_and_retries(store: Store, model: Path) -> None:
    assert statuses(model)["chaos"]["status"] == "wrong"
    row = statuses(model)["chaos"]
    assert row["status"] == "quarantined"
    assert row["lift"] == "fusewire quarantine lift 'small model' chaos"
    text = " ".join(invoke("bench", model, *QUICK).stdout.split())
    assert "To lift it: fusewire quarantine lift 'small model' chaos" in text
    (found,) = {(row["model"], row["candidate"], row["code"]) for row in listed()}
    assert found == ("small model", "chaos", "wrong")
    # It is tried again, and is as wrong as before.
    assert statuses(model, "--retry")["chaos"]["status"] == "wrong"
    assert statuses(model)["chaos"]["status"] == "quarantined"
    assert invoke("quarantine", "lift", model, "chaos").exit_code == 0
    assert not list(store.entries("quarantine"))
    assert statuses(model)["chaos"]["status"] == "wrong"


@pytest.mark.usefixtures("chaos")
def test_retry_lifts_what_is_right_now(model: Path) -> None:
    statuses(model)
    assert listed()
    fw.unregister("chaos")
    fw.register("fusewire.testing.chaos:none_at_run")
    assert statuses(model)["chaos"]["status"] == "quarantined"
    assert statuses(model, "--retry")["chaos"]["status"] == "right"
    assert not listed()


@pytest.mark.usefixtures("chaos")
def test_choice_that_was_made_without_an_engine_is_forgotten_when_it_is_lifted(
    store: Store, model: Path
) -> None:
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    options = fw.Options(
        level=1, start="measured", budget_seconds=2.0, fallback="allow", backend="auto"
    )
    statuses(model, "--seed", 0)
    made = fw.compile(model, options=options)
    made(x)
    assert {row.status for row in made.why().tried if row.backend == "chaos"} == {"quarantined"}
    plans = len(list(store.entries("plan")))
    assert plans
    done = invoke("quarantine", "lift", model)
    assert "choices are made again" in done.stdout
    assert len(list(store.entries("plan"))) < plans
