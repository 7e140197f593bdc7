"""Some steps of the random walk that benchmarks/program_walk.py takes for hours.

What a step does has a test of its own beside this; the walk finds orders that nobody thought of.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import PROJECT

STEPS = 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a step of it forks")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_steps_break_nothing(seed: int, tmp_path: Path) -> None:
    script = PROJECT / "benchmarks" / "program_walk.py"
    command = [sys.executable, str(script), "--steps", str(STEPS), "--seed", str(seed)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "nothing wrong" in done.stdout
