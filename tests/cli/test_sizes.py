"""Inputs that are written on the command line, and sizes that nobody gave."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.choosing.budget import DecisionBudget
from fusewire.cli import main


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def window(path: Path, least: int) -> Path:
    """Write a model that needs so many samples, and a batch of one in its state."""

    def network(x: Any, state: Any) -> Any:
        return np.sum(x[:, least:], axis=1)[:, None] / x[:, least - 1 : least] + state[0]

    signal, state = fw.Spec((1, "n"), "float32"), fw.Spec((2, "m", 3), "float32")
    fw.save_onnx(fw.trace(network, signal, state), path)
    return path


def test_sizes_at_which_nothing_runs_are_replaced_by_usual_ones(tmp_path: Path) -> None:
    model = window(tmp_path / "model.onnx", 200)
    done = invoke("run", model, "--backend", "reference", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["assumed"]["n"] == 256
    assert "Nothing runs at the assumed sizes (n = 16, m = 16)" in done.stderr
    assert "at which the reference runs" in done.stderr


def test_user_is_asked_where_no_usual_size_runs(tmp_path: Path) -> None:
    model = window(tmp_path / "model.onnx", 2000)
    done = invoke("run", model, "--backend", "reference")
    assert done.exit_code == 2
    assert "16, 64, 256, 512, 1024 were tried too" in done.output
    assert "--shape x=" in done.output
    sized = invoke("run", model, "--backend", "reference", "--shape", "x=1,2000")
    assert sized.exit_code == 0, sized.output


def test_samples_to_calibrate_with_are_inputs_too(tmp_path: Path) -> None:
    model, samples = tmp_path / "model.onnx", tmp_path / "samples.npz"
    fw.save_onnx(fw.trace(lambda x: x + 1, fw.Spec(("n", 2))), model)
    # Numbers that nobody would generate.
    np.savez(samples, x=np.full((8, 5, 2), 70, np.float32))
    how = ["--backend", "reference", "--accuracy", "1e-2", "--calibrate", samples, "--budget", "1"]
    for more, expected in [([], 71), (["--shape", "x=3,2"], 1)]:
        done = invoke("run", model, *how, *more, "--output", tmp_path / "out.npz")
        assert done.exit_code == 0, done.output
        # Those that are generated are below 1.
        assert (np.floor(np.load(tmp_path / "out.npz")["output"]) == expected).all()


@pytest.mark.timing
def test_bench_has_one_budget_for_all_guesses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[DecisionBudget] = []

    def budget(seconds: float, start: float) -> DecisionBudget:
        budgets.append(DecisionBudget(seconds, start))
        return budgets[-1]

    monkeypatch.setattr("fusewire.choosing.decide.DecisionBudget", budget)
    model = window(tmp_path / "model.onnx", 200)
    before = time.monotonic()
    done = invoke("bench", model, "--backends", "onnxruntime", "--budget", "3", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["assumed"]["n"] == 256
    assert "Nothing runs at the assumed sizes" in done.stderr
    assert len({budget.start for budget in budgets}) == 1
    searched = json.loads(done.stdout)["seconds"]
    assert budgets[0].start - before < 0.5 * searched


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    path = tmp_path / "scaled.onnx"
    specs = fw.Spec((), "int64"), fw.Spec(("n",), "float32"), fw.Spec((1, 3), "float32")
    fw.save_onnx(fw.trace(lambda rate, x, y: (rate * 2, x + 1, y * 2), *specs), path)
    return path


def test_numbers_are_inputs(scaled: Path) -> None:
    words = ("--input", "rate=16000", "--input", "x=1,2.5,3", "--input", "y=1,2,3")
    done = invoke("run", scaled, "--backend", "reference", *words, "--json")
    assert done.exit_code == 0, done.output
    rate, x, y = json.loads(done.stdout)["inputs"]
    assert (rate["dtype"], rate["shape"], rate["min"]) == ("int64", [], 16000)
    assert (x["dtype"], x["shape"], x["max"]) == ("float32", [3], 3)
    assert y["shape"] == [1, 3]
    assert json.loads(done.stdout)["outputs"][0]["max"] == 32000


@pytest.mark.parametrize("text", ["rate=fast", "rate=1.5", "rate=1,2", "y=1,2"])
def test_numbers_that_do_not_fit_end_with_2(scaled: Path, text: str) -> None:
    done = invoke("run", scaled, "--backend", "reference", "--input", text)
    assert done.exit_code == 2, done.output
    assert text.partition("=")[2] in done.output or "found" in done.output


def test_bench_brings_an_example() -> None:
    words = ("--backends", "reference,onnxruntime", "--budget", "1", "--json")
    done = invoke("bench", "--example", *words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert Path(report["model"]).name == "mnist.onnx"
    assert report["chosen"]


@pytest.mark.parametrize("words", [(), ("--example", __file__)])
def test_bench_needs_a_model_or_the_example(words: tuple[str, ...]) -> None:
    done = invoke("bench", *words)
    assert done.exit_code == 2
    assert "--example" in done.output
