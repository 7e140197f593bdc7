"""`fusewire eval`: candidates in every precision, scored on the user's samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.cli import main
from fusewire.numerics.metrics import cosine, relative, top1

W = 0.1 * np.random.default_rng(1).standard_normal((24, 8)).astype(np.float32)
SAMPLES = np.random.default_rng(2).standard_normal((5, 16, 24)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(lambda x: np.tanh(x @ W), fw.Spec(("n", 24), "float32")), path)
    np.savez(tmp_path / "samples.npz", x=SAMPLES)
    monkeypatch.chdir(tmp_path)
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["eval", "model.onnx", "--data", "samples.npz", *words])


def scored(*words: str) -> Any:
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_every_precision_is_scored_on_the_samples(model: Path) -> None:
    name = fw.register("tests.toy:narrow")
    try:
        found = scored("--backend", name, "--metric", "relative", "--isolate", "never")
    finally:
        fw.unregister(name)
    assert (found["samples"], found["metric"]) == (5, "relative")
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["narrow"]["error"] < 1e-6 < rows["narrow digits=12"]["error"] < 1e-3
    few = rows["narrow digits=4"]
    assert few["is_reduced"]
    assert 1e-3 < few["least"] <= few["mean"] <= few["largest"] < 0.1
    # The metric is rounded to float32, the error is not.
    assert few["largest"] == pytest.approx(few["error"], rel=1e-4)


def test_engine_agrees_with_the_reference(model: Path) -> None:
    found = scored("--backend", "onnxruntime", "--metric", "top1")
    assert next(row["mean"] for row in found["rows"] if row["status"] == "scored") == 1.0
    table = invoke("--backend", "onnxruntime", "--metric", "cosine")
    assert "cosine of model.onnx on 5 samples" in table.output
    assert max(map(len, table.output.splitlines())) <= 80


def test_function_of_the_user_scores(model: Path) -> None:
    text = "def largest(right, outputs):\n    return abs(right[0] - outputs[0]).max()\n"
    Path("scores_of_mine.py").write_text(text, encoding="utf-8")
    found = scored("--backend", "onnxruntime", "--metric", "scores_of_mine:largest")
    assert 0 <= found["rows"][0]["largest"] < 1e-5
    done = invoke("--metric", "scores_of_mine:least")
    assert (done.exit_code, "has no function 'least'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": SAMPLES}, "the model takes x"),
        ({"x": SAMPLES.astype(np.float64)}, "but the file holds float64"),
        ({"x": SAMPLES[0, 0]}, "Put samples along the first axis"),
        ({"x": SAMPLES[:0]}, "give as many of each"),
    ],
)
def test_samples_that_do_not_fit_are_refused(model: Path, arrays: Any, message: str) -> None:
    np.savez("samples.npz", **arrays)
    done = invoke("--backend", "onnxruntime")
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_samples_may_lie_along_the_batch(model: Path) -> None:
    np.savez("samples.npz", x=SAMPLES[0])
    assert scored("--backend", "onnxruntime")["samples"] == 16


def test_metrics_say_how_far_outputs_are() -> None:
    count = np.array([3])
    right = [np.array([[1, 0], [0, 1]], np.float32), count]
    turned = [np.array([[0, 1], [0, 1]], np.float32), count]
    assert (top1(right, turned), top1(right, right)) == (0.5, 1.0)
    assert cosine(right, turned) == pytest.approx(0.5)
    assert relative(right, turned) == pytest.approx(1.0)
    assert cosine(right, right) == pytest.approx(1.0)
    assert relative(right, right) == 0.0


def test_calibrated_int8_is_scored_beside_the_others(model: Path, tmp_path: Path) -> None:
    wide = 0.1 * np.random.default_rng(3).standard_normal((24, 64)).astype(np.float32)
    fw.save_onnx(fw.trace(lambda x: np.tanh(x @ wide), fw.Spec(("n", 24), "float32")), model)
    samples = np.random.default_rng(4).standard_normal((16, 16, 24)).astype(np.float32)
    np.savez(tmp_path / "others.npz", x=samples)
    name = fw.register("tests.toy:calibrated")
    try:
        found = scored("--backend", name, "--isolate", "never", "--calibrate", "others.npz")
    finally:
        fw.unregister(name)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["calibrated"]["error"] < 1e-6
    assert 1e-4 < rows["calibrated calibrated"]["error"] < 5e-2
