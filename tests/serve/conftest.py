"""A real server in a process of its own, with a small model."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "zoo"), str(BENCHMARKS)]
campaigns: Any = import_module("serving")


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = campaigns.mlp_file(tmp_path_factory.mktemp("mlp"))
    return path


@pytest.fixture(scope="session")
def served(mlp: Path) -> Iterator[Any]:
    options = ["--backend", "onnxruntime", "--threads", "1", "--batch", "8", "--max-body", "1"]
    with campaigns.serving(campaigns.ours(mlp, *options)) as server:
        yield server


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of a model whose two inputs are texts."""
    path = tmp_path_factory.mktemp("texts") / "texts.onnx"
    spec = fw.Spec(("n",), "string")
    fw.save_onnx(lambda x, y: fw.ops.concat(x, y, axis=0), path, (spec, spec))
    with campaigns.serving(campaigns.ours(path, "--backend", "reference")) as server:
        yield server


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
