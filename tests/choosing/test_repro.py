"""What is written down of a fault runs by itself: it fails while the fault is there, not after."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewire as fw
from fusewire.choosing.bisect import Culprit, engine, find_culprit
from fusewire.choosing.judge import Judgement
from fusewire.choosing.repro import write_repro
from fusewire.contract.backend import Config, Device
from fusewire.contract.region import first_device
from fusewire.numerics.judge import Alone
from fusewire.registry import REGISTRY
from fusewire.testing.chaos import ChaosBackend

X = np.random.default_rng(8).normal(size=(5, 16)).astype(np.float32)
W = np.random.default_rng(9).normal(size=(16, 24)).astype(np.float32)
ROWS = np.arange(10, dtype=np.int64) % 5
CHAOS = "fusewire.testing.chaos:"
CPU = Device("cpu", "chaos")


def ran(path: Path) -> tuple[int, str]:
    """Run it as whoever gets it would: from elsewhere."""
    command = [sys.executable, str(path)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def culprit_of(graph: fw.Graph, *inputs: Any) -> Culprit:
    """Blame a graph that nothing is wrong with."""
    expected = tuple(Alone(graph, inputs).expected)
    judged = Judgement("wrong", 9.0, reason='it says """so""" \\')
    node = graph.nodes[0]
    return Culprit(0, node.op, "", False, judged, graph, inputs, expected, 1)


@pytest.mark.parametrize("kind", ["element", "stale"])
def test_fault_is_shown_while_it_is_there(kind: str, tmp_path: Path) -> None:
    reference = f"{CHAOS}{kind}_at_run"
    graph = fw.trace(lambda x: np.tanh(x @ W) + 1, X)
    culprit = find_culprit(graph, [X], engine(reference, CPU, Config(), isolate=False))
    assert culprit is not None
    path = write_repro(tmp_path, culprit, ChaosBackend(), CPU, Config(), reference)
    assert path is not None
    code, said = ran(path)
    assert code == 1, said
    assert "WRONG: output0" in said
    path.write_text(path.read_text().replace(f"{kind}_at_run", "none_at_run"))
    assert ran(path) == (0, "right\n")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "xla", "torch"])
def test_script_needs_numpy_and_the_engine_alone(name: str, tmp_path: Path) -> None:
    backend = REGISTRY.backends.get(name)
    graph = fw.trace(lambda x, rows: (np.tanh(x @ W) + 1)[rows], X, ROWS)
    culprit = culprit_of(graph, X, ROWS)
    device = first_device(backend)
    right = write_repro(tmp_path / "right", culprit, backend, device, Config(threads=1), "")
    assert right is not None
    assert "import fusewire" not in right.read_text()
    assert "from fusewire" not in right.read_text()
    assert ran(right) == (0, "right\n")
    (expected,) = culprit.expected
    off = replace(expected, wide=expected.wide + 100 * expected.tolerance * (expected.wide > 0))
    wrong = write_repro(
        tmp_path / "wrong", replace(culprit, expected=(off,)), backend, device, Config(), ""
    )
    assert wrong is not None
    code, said = ran(wrong)
    assert code == 1, said
    assert "elements are off" in said


def test_dtypes_that_numpy_lacks_are_written_and_read(tmp_path: Path) -> None:
    graph = fw.trace(lambda x: x * 2, X.astype(ml_dtypes.bfloat16))
    culprit = culprit_of(graph, X.astype(ml_dtypes.bfloat16))
    backend, reference = ChaosBackend(), f"{CHAOS}none_at_run"
    path = write_repro(tmp_path, culprit, backend, CPU, Config(), reference)
    assert path is not None
    assert ran(path) == (0, "right\n")


def test_what_holds_no_tensors_is_not_written(tmp_path: Path) -> None:
    graph = fw.trace(np.exp, X)
    culprit = replace(culprit_of(graph, X), inputs=([X],))
    assert write_repro(tmp_path, culprit, ChaosBackend(), CPU, Config(), "") is None
