"""Every command: a table for people, JSON for programs, and help."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.backends.triton.info import INFO
from fusewire.cli import COMMANDS, devices, main
from fusewire.contract.backend import Device, Unavailable
from fusewire.errors import install_advice
from fusewire.ops.table import all_ops
from fusewire.planning.target import Target
from fusewire.registry import REGISTRY, Met


def _run(*words: str) -> str:
    done = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout  # Progress goes to stderr.


ARGUMENTS = {
    "bench": ("model.onnx", "--backends", "reference,onnxruntime", "--budget", "1"),
    "cache": ("ls",),
    "check": ("some.lock",),
    "conform": ("reference", "--op", "gelu", "--op", "add", "--slice", "1/8"),
    "compile": ("model.onnx", "--target", "cuda:sm_80", "-o", "out"),
    "diff": ("some.lock", "some.lock"),
    "eval": ("model.onnx", "--data", "samples.npz", "--backend", "onnxruntime"),
    "fuse": ("model.onnx",),
    "explain": ("model.onnx", "--backend", "onnxruntime"),
    "run": ("model.onnx", "--backend", "reference"),
    "show": ("model.onnx",),
    "store": ("signers",),
    "tune": ("model.onnx", "--engines", "reference", "--budget", "0.5"),
    "map": ("model.onnx", "rows.parquet", "out", "--backend", "reference"),
}


# A server prints logs until it is told to stop: tests/serve starts it.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "serve"])
def test_command_prints_a_table_and_json(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fw.save_onnx(fw.trace(lambda x: x + x, fw.Spec((3,), "float32")), tmp_path / "model.onnx")
    (tmp_path / "some.lock").touch()
    np.savez(tmp_path / "samples.npz", x=np.ones((2, 3), np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSEWIRE_CACHE", str(tmp_path / "cache"))
    if name == "map":
        parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'fusewire[ray]'")
        table = pytest.importorskip("pyarrow").table({"x": np.ones(6, np.float32)})
        parquet.write_table(table, "rows.parquet")
    words = (name, *ARGUMENTS.get(name, ()))
    monkeypatch.setenv("COLUMNS", "80")
    text = _run(*words)
    assert "───" in text
    # Names are whole, and no vertical rules take the room that they need.
    assert "…" not in text
    assert "│" not in text
    assert json.loads(_run(*words, "--json"))


@pytest.mark.triton
def test_compile_writes_a_plan_where_no_node_has_a_kernel(tmp_path: Path) -> None:
    model, folder = tmp_path / "model.onnx", tmp_path / "made" / "here"
    fw.save_onnx(fw.trace(np.linalg.det, fw.Spec((3, 3), "float32")), model)
    words = ["compile", str(model), "--target", "cuda:sm_90", "-o", str(folder)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 1, done.output
    assert "det has no kernel" in done.output
    assert not json.loads((folder / "plan.json").read_text())["is_whole"]


@pytest.mark.triton
@pytest.mark.parametrize("name", ["file/out", "plan"])
def test_compile_says_that_a_folder_cannot_be_written(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(np.linalg.det, fw.Spec((3, 3), "float32")), model)
    (tmp_path / "file").touch()
    (tmp_path / "plan" / "plan.json").mkdir(parents=True)
    words = ["compile", str(model), "--target", "cuda:sm_90", "-o", str(tmp_path / name)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 2, done.output
    assert "cannot be written" in " ".join(done.output.split())


def test_compile_says_how_to_install_what_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(np.linalg.det, fw.Spec((3, 3), "float32")), model)
    monkeypatch.setattr("fusewire.backends.triton.engine.INFO", replace(INFO, version="none"))
    words = ["compile", str(model), "--target", "cuda:sm_90", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 2, done.output
    assert install_advice("triton") in " ".join(done.output.split())


def test_help_lists_every_command() -> None:
    text = _run("--help")
    assert all(name in text for name in COMMANDS)


def test_ops_lists_every_op_with_its_dtypes_and_what_it_lacks() -> None:
    rows = {row["name"]: row for row in json.loads(_run("ops", "--json"))}
    assert rows.keys() == all_ops().keys()
    assert len(rows) >= 170
    for row in rows.values():
        assert row["dtypes"]
        assert {"empty", "scalar", "broadcast"} == {*row["cases"], *row["lacks"]}


def test_unknown_family_lists_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["ops", "--family", "nothing"])
    assert done.exit_code == 2
    assert "elementwise" in done.output


def test_backends_name_the_reference_and_where_it_comes_from() -> None:
    (row,) = [row for row in json.loads(_run("backends", "--json")) if row["name"] == "reference"]
    assert row["state"] == "ready"
    assert row["distribution"] == "fusewire"
    assert row["devices"][0]["id"] == "cpu"
    assert row["credits"]["license"]
    assert row["options"] == []


def test_backends_list_options_with_their_meanings() -> None:
    (row,) = [row for row in json.loads(_run("backends", "--json")) if row["name"] == "openvino"]
    defaults = {x["name"]: x["default"] for x in row["options"]}
    known = {"nan": "exact", "precision": "f32", "block": 128, "sizes": "open"}
    assert defaults == {**known, "calibrated": [], "exact_nodes": ""}
    assert "NaN" in row["options"][0]["meaning"]


def test_devices_list_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = Device("cpu", "some"), Unavailable("no-device", "No driver.", "Get it.", "cuda")
    reference = REGISTRY.backends.describe("reference").reference
    monkeypatch.setitem(REGISTRY._met, "reference", Met("reference", reference, (cpu, cuda)))
    rows = json.loads(_run("devices", "--json", "--backend", "reference"))
    assert [(row["id"], row["state"]) for row in rows] == [
        ("cpu", "ready"),
        ("cuda", "unavailable"),
    ]
    assert (rows[1]["reason"], rows[1]["fix"]) == ("No driver.", "Get it.")
    text = _run("devices", "--backend", "reference")
    assert "reference on cuda cannot be used: No driver. Get it." in text


def test_interpreters_are_measured_only_when_they_are_named() -> None:
    device = Device("cpu", "some", facts={"interprets": True})
    target = Target(REGISTRY.get("reference"), device)
    (found,) = devices._measured([target], is_named=False, end=0.0)
    assert found.missing == {"all": "It interprets kernels, for debugging."}


@pytest.fixture
def broken() -> Iterator[str]:
    """Register a backend whose process dies when it is asked for devices."""
    name = REGISTRY.register("fusewire.testing.chaos:segv_at_probe", "chaos")
    yield name
    REGISTRY.unregister(name)


def test_doctor_says_what_is_broken_and_ends_with_1(broken: str) -> None:
    done = CliRunner().invoke(main, ["doctor", "--json"], catch_exceptions=False)
    assert done.exit_code == 1
    report = json.loads(done.output)
    assert not report["ok"]
    rows = {row["name"]: row for row in report["backends"]}
    assert rows[broken]["state"] == "broken"
    assert "SIGSEGV" in rows[broken]["reason"]
    assert rows["reference"]["state"] == "ready"
    assert all(row["state"] == "ready" for row in report["checks"])


def test_engine_that_is_not_installed_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Met("xla", "none:none", (Unavailable("not-installed", "No jax.", "pip install"),))
    monkeypatch.setitem(REGISTRY._met, "xla", missing)
    done = CliRunner().invoke(main, ["doctor", "--json"], catch_exceptions=False)
    (row,) = [row for row in json.loads(done.output)["backends"] if row["name"] == "xla"]
    assert (row["state"], row["reason"]) == ("unavailable", "No jax. pip install")
    assert done.exit_code == 0
