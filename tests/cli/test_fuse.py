"""`fusewire fuse`: what becomes one kernel, as a table and as JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fusewire as fw
from fusewire.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)

    def network(x: Any) -> Any:
        return fw.ops.softmax(np.tanh(x @ weights))

    path = tmp_path / "model.onnx"
    fw.save_onnx(fw.trace(network, fw.Spec(("n", 3), "float32")), path)
    return path


def test_groups_and_refusals_as_json(model: Path) -> None:
    words = ["fuse", str(model), "--shape", "x=4,3", "--json"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["patterns"] == {"softmax": 1, "linear + activation": 1}
    assert found["kernels"] == {"before": 7, "after": 2}
    assert found["groups"][0]["ops"] == ["matmul", "tanh"]
    assert found["refused"][0]["reason"] == "it finishes what is computed before it"


def test_the_table_says_what_is_saved(model: Path) -> None:
    words = ["fuse", str(model), "--shape", "x=4,3", "--groups", "--backend", "reference"]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0
    for word in ("kernels", "linear + activation", "softmax", "matmul tanh", "because"):
        assert word in done.stdout


def test_an_engine_that_is_not_there_ends_with_2(model: Path) -> None:
    done = CliRunner().invoke(main, ["fuse", str(model), "--shape", "x=4,3", "--backend", "no"])
    assert done.exit_code == 2
    assert "no" in done.output
