"""Nothing outlives a process that compares engines: a sample of the campaign."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="It looks into /proc")
def test_sample_of_ends_leaves_nothing() -> None:
    # Apart, because it adopts orphans. Cores that others use may make it late.
    command = [sys.executable, "benchmarks/leftover.py", "--count", "2", "--most", "5"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
