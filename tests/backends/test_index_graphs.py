"""An index is what the reference says, or refused, however far the numbers on the way to it are.

Each group of models runs in a process of its own: what goes wrong here ends it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.index_graphs import GROUPS

ROOT = Path(__file__).parents[2]
ENGINES = ("openvino", "onnxruntime", "xla")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("engine", ENGINES)
def test_index_is_what_the_reference_says(engine: str, group: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.index_graphs", engine, group]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert lines == dict.fromkeys(GROUPS[group], "as the reference"), done.stderr
    assert done.returncode == 0
