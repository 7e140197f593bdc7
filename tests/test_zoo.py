"""The small models of the zoo: they load, run on the reference and on engines, and agree.

All of the zoo, judged by the oracle, is a command: `python benchmarks/zoo.py right`.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.numerics.oracle import Oracle

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "zoo"))
zoo: Any = import_module("zoo")
SMALL = [name for name, model in zoo.MODELS.items() if "small" in model["tags"]]
# Quick enough on the reference to be run as often as an oracle needs.
JUDGED = {"mnist", "silero-vad", "silero-vad-sequence", "mel-frontend"}


def path_of(name: str) -> str:
    try:
        zoo.fetch([name])
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{name} cannot be fetched: {error}")
    return str(zoo.path(name))


@pytest.mark.parametrize("name", SMALL)
def test_small_model_runs_alike_on_the_reference_and_an_engine(name: str) -> None:
    path = path_of(name)
    program = fw.compile(path, backend="onnxruntime", fallback="error")
    for variant in range(1 + len(zoo.MODELS[name]["variants"])):
        made = zoo.inputs(name, variant=variant)
        given = [made[str(value.name)] for value in program.graph.inputs]
        found = program(*given)
        outputs = list(found) if isinstance(found, tuple) else [found]
        if variant:
            assert all(np.isfinite(x).all() for x in outputs)
        elif name in JUDGED:
            verdict = Oracle(fw.load(path), given, runs=4).judge(outputs)
            assert verdict.status == "right", verdict.reason
        else:
            wanted = fw.compile(path, backend="reference")(*given)
            pairs = zip(outputs, wanted if isinstance(wanted, tuple) else [wanted], strict=True)
            for x, y in pairs:
                assert x.shape == y.shape
                assert np.abs(x - y).max() <= 1e-4 * np.abs(y).max()
