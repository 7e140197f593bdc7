"""`import fusewire` is cheap beside numpy, which everyone who uses it has paid for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE

FLOOR_MS = 150.0
TIMES_NUMPY = 1.5


def import_ms(root: Path, name: str) -> float:
    """Time one import in a fresh process, as `python -X importtime` counts it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {name}"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    for line in reversed(done.stderr.splitlines()):
        _, cumulative, module = line.split("|")
        if module.strip() == name:
            return float(cumulative) / 1000
    raise AssertionError(f"no line for {name} in:\n{done.stderr}")


def cost_problem(root: Path, rounds: int) -> str | None:
    """Compare the best of several rounds; they alternate so that a busy machine slows both."""
    pairs = [(import_ms(root, "numpy"), import_ms(root, PACKAGE)) for _ in range(rounds)]
    numpy, ours = (min(times) for times in zip(*pairs, strict=True))
    limit = max(FLOOR_MS, TIMES_NUMPY * numpy)
    if ours <= limit:
        return None
    return f"import {PACKAGE} takes {ours:.0f} ms, over {limit:.0f} (numpy takes {numpy:.0f})"


@pytest.mark.timing
def test_import_is_cheap() -> None:
    problem = cost_problem(SOURCE, rounds=5)
    assert problem is None, problem


def test_planted_slow_import_is_found(plant: Plant) -> None:
    root = plant("__init__.py", "import time\ntime.sleep(5)\n")
    assert cost_problem(root, rounds=1) is not None
