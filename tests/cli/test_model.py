"""`fusewire run` and `fusewire show`: a model with inputs that are given, or made up loudly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import fusewire as fw
from fusewire.cli import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)

    def network(x: Any, y: Any) -> Any:
        return np.tanh(x @ weights) + y

    graph = fw.trace(network, fw.Spec(("n", 3), "float32"), fw.Spec(("n", 1), "float32"))
    path = tmp_path / "model.onnx"
    fw.save_onnx(graph, path)
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def report(*words: object) -> Any:
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_run_makes_up_inputs_and_says_so(model: Path) -> None:
    done = invoke("run", model, "--backend", "reference")
    assert done.exit_code == 0, done.output
    assert "n = 1" in done.stderr
    assert "--shape x=" in done.stderr
    assert "output" in done.stdout
    found = report("run", model, "--backend", "reference")
    assert found["assumed"] == {"n": 1}
    assert [row["shape"] for row in found["inputs"]] == [[1, 3], [1, 1]]
    assert found["outputs"][0]["shape"] == [1, 2]
    assert found["outputs"][0]["min"] <= found["outputs"][0]["mean"] <= found["outputs"][0]["max"]
    assert found["backend"] == "reference"
    assert found["seconds"] > 0


def test_run_takes_shapes_and_says_nothing(model: Path) -> None:
    done = invoke("run", model, "--shape", "x=4,3", "--backend", "reference")
    assert (done.exit_code, done.stderr) == (0, "")
    assert report("run", model, "--shape", "x=4,3")["outputs"][0]["shape"] == [4, 2]


def test_run_takes_arrays_and_writes_outputs(model: Path, tmp_path: Path) -> None:
    x, y = np.ones((2, 3), np.float32), np.full((2, 1), 5, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    done = invoke(
        "run",
        model,
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--input",
        f"y={tmp_path / 'y.npy'}",
        "--backend",
        "onnxruntime",
        "--fallback",
        "error",
        "-o",
        tmp_path / "out.npz",
    )
    assert done.exit_code == 0, done.output
    wanted = np.tanh(x @ np.arange(6, dtype=np.float32).reshape(3, 2)) + y
    with np.load(tmp_path / "out.npz") as found:
        (name,) = found.files
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def test_seed_decides_what_is_made_up(model: Path) -> None:
    first, again, other = (
        report("run", model, "--backend", "reference", "--seed", seed)["outputs"][0]["mean"]
        for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shape", "z=1,3"], "x, y"),
        (["--shape", "x"], "x, y"),
        (["--shape", "x=a,b"], "1,3,48,320"),
        (["--shape", "x=1,4"], "expected 3"),
        (["--shape", "x=1,3,1"], "float32[n, 3]"),
        (["--shape", "x=2,3", "--shape", "y=5,1"], "n is 2"),
        (["--input", "x=nowhere.npy"], "nowhere.npy"),
        (["--backend", "nobody"], "nobody"),
        (["--fallback", "maybe"], "allow"),
        (["--threads", "0", "--backend", "onnxruntime"], "threads=0"),
    ],
)
def test_wrong_option_ends_with_2(model: Path, words: list[str], said: str) -> None:
    done = invoke("run", model, *words)
    assert done.exit_code == 2, done.output
    assert said in done.output


def test_array_of_another_dtype_ends_with_2(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    done = invoke("run", model, "--input", f"x={tmp_path / 'x.npy'}")
    assert done.exit_code == 2
    assert "float64" in done.output


def test_file_that_is_no_model_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07not a model")
    for name in ("run", "show"):
        done = invoke(name, tmp_path / "model.onnx")
        assert done.exit_code == 1, done.output
        assert "model.onnx" in done.output


@pytest.fixture
def split(tmp_path: Path) -> Iterator[Path]:
    """A model with a node that the backend "split" does not take."""
    path = tmp_path / "split.onnx"
    fw.save_onnx(fw.trace(lambda x: np.cos(np.tanh(x)), fw.Spec((3,), "float32")), path)
    fw.register("tests.toy:split", name="split")
    yield path
    fw.unregister("split")


def test_engine_that_refuses_ends_with_1(split: Path) -> None:
    done = invoke("run", split, "--backend", "split", "--fallback", "error")
    assert done.exit_code == 1
    assert "cos" in done.output


def test_fallback_is_said_loudly(split: Path) -> None:
    done = invoke("run", split, "--backend", "split", "--fallback", "warn")
    assert done.exit_code == 0, done.output
    assert "do not run on split" in done.stderr


def test_show_tells_what_a_model_is(model: Path) -> None:
    found = report("show", model)
    assert found["inputs"] == [
        {"name": "x", "type": "float32[n, 3]"},
        {"name": "y", "type": "float32[n, 1]"},
    ]
    assert [row["type"] for row in found["outputs"]] == ["float32[n, 2]"]
    assert {row["op"]: row["count"] for row in found["ops"]} == {"matmul": 1, "tanh": 1, "add": 1}
    assert (found["parameters"], found["parameter_bytes"]) == (6, 24)
    assert found["dynamic"] == [{"dim": "n", "told_by": ["x[0]", "y[0]"]}]
    # Six products and as many sums, eight operations a tanh, one a sum, for each of two.
    assert (found["flops"], found["flops_at"]) == (12 + 16 + 2, {"n": 1})
    text = invoke("show", model).stdout
    assert all(word in text for word in ("matmul", "float32[n, 3]", "n (x[0], y[0])", "0.00 MB"))


def test_show_takes_sizes(model: Path) -> None:
    found = report("show", model, "--shape", "x=10,3")
    assert found["dynamic"] == []
    assert found["flops"] == 10 * 30


def test_show_raw_is_the_file_as_it_is(tmp_path: Path) -> None:
    graph = fw.trace(lambda x: x * 1.0 + 0.0 * 2, fw.Spec(("n",), "float32"))
    fw.save_onnx(graph, tmp_path / "model.onnx")
    assert report("show", tmp_path / "model.onnx", "--raw")["nodes"] == len(graph.nodes)
    assert report("show", tmp_path / "model.onnx")["nodes"] < len(graph.nodes)
