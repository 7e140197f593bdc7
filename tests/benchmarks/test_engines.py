"""The command that compares engines: a tiny row is run, and verdicts are by the bars."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.engines_table import summary
from benchmarks.match import Match, apart, verdict
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
# Rounds of an engine, undisturbed.
STEADY = np.linspace(0.999, 1.001, 15)


def played(seconds: float, ours: float, spread: float = 1.0) -> Match:
    """Make a match of one engine, ours so many times as long, and noise."""
    match = Match({})
    times = seconds * STEADY
    noise = np.resize([1 / spread, 1, spread], len(times))
    match.samples = {
        "onnxruntime": list(times),
        "again": list(times * noise),
        "fusewire": list(ours * times),
    }
    match.twice, match.rounds = "onnxruntime", len(times)
    return match


@pytest.mark.parametrize(
    ("seconds", "ours", "spread", "expected"),
    [
        (1e-2, 1.04, 1.0, "pass"),
        (1e-2, 1.06, 1.0, "fail"),
        (1e-2, 1.06, 1.3, "unclear"),
        (1e-2, 1.04, 1.3, "pass"),
        (5e-5, 1.24, 1.0, "pass"),
        (5e-5, 1.27, 1.0, "fail"),
        (5e-6, 1.75, 1.0, "pass"),
        (5e-6, 1.85, 1.0, "fail"),
    ],
)
def test_verdict_is_by_the_bar(seconds: float, ours: float, spread: float, expected: str) -> None:
    assert verdict(played(seconds, ours, spread))["verdict"] == expected


def test_speed_ups_wins_and_cliffs_are_counted() -> None:
    def row(name: str, other: float) -> dict[str, object]:
        times = {"onnxruntime": {"seconds": 1.0}, "openvino": {"seconds": other}}
        return {
            "name": name,
            "is_zoo": False,
            "verdict": "pass",
            "ratio": 1.0,
            "bare": times,
            "ours": {"seconds": 1.0},
            "choice": {"backend": "openvino"},
        }

    found = summary([row("a", 2.0), row("b", 8.0)])
    assert found["passes"]
    assert found["speedup"]["openvino"]["times"] == pytest.approx(4.0)
    assert [(x["row"], x["engine"]) for x in found["cliffs"]] == [("b", "openvino")]
    won = found["wins"]["onnxruntime"]
    assert (won["rows"], won["of"], won["chosen"]) == (["a", "b"], 2, 0)
    assert won["lead"] == pytest.approx(4.0)
    lost = found["wins"]["openvino"]
    assert (lost["rows"], lost["of"], lost["chosen"], lost["lead"]) == ([], 2, 2, None)
    assert not summary([{**row("a", 2.0), "verdict": "unclear"}])["passes"]


def test_answers_that_differ_are_apart(tmp_path: Path) -> None:
    answers: dict[str, Sequence[float]] = {
        "onnxruntime": [1.0, 2.0],
        "same": [1.0, 2.0],
        "off": [1.0, 3.0],
        "short": [1.0],
        "broken": [1.0, np.nan],
    }
    for who, values in answers.items():
        np.savez(tmp_path / f"{who}.npz", np.array(values))
    far = apart(tmp_path, list(answers))
    assert far["same"] == 0
    assert far["off"] == pytest.approx(0.5)
    assert min(far["short"], far["broken"]) > 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("encoder x6 384, batch 1", {"MatMul": 48, "LayerNormalization": 12, "Gelu": 6}),
        ("MobileNet block, batch 1", {"Conv": 3, "BatchNormalization": 3, "Relu": 2}),
        ("LSTM, batch 1", {"LSTM": 1}),
        ("embedding + sum", {"Gather": 1, "ReduceSum": 1}),
    ],
)
def test_original_has_the_nodes_of_an_exporter(
    tmp_path: Path, name: str, wanted: dict[str, int]
) -> None:
    WORKLOADS[name].save(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    found = Counter(node.op_type for node in model.graph.node)
    assert {op: found[op] for op in wanted} == wanted
    assert not model.functions


@pytest.mark.slow
def test_row_is_run_and_kept(tmp_path: Path) -> None:
    assert len(WORKLOADS) == 29
    command = [sys.executable, str(ROOT / "benchmarks" / "engines.py"), "--only", "tiny MLP"]
    done = subprocess.run(
        [*command, "--seconds", "0.5", "--budget", "1", "--json"],
        check=False,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert set(row["bare"]) == {"onnxruntime", "openvino", "torch", "xla", "numpy"}
    assert row["best"] in row["bare"]
    assert row["ratio"] > 0
    assert max(row["apart"].values()) < 1e-5
    assert list((tmp_path / "fusewire-engines" / "rows").iterdir())
