"""The campaigns of benchmarks/bundles.py at one hundredth of their size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bundles.py"


@pytest.mark.parametrize(("part", "count"), [("mutations", 100), ("forgeries", 10)])
def test_every_bundle_that_was_tampered_with_is_refused(
    part: str, count: int, tmp_path: Path
) -> None:
    words = [sys.executable, str(SCRIPT), "--part", part, "--count", str(count), "--json"]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["used"] == 0
    assert sum(report["outcomes"].values()) >= count - 1
    assert all(said.endswith("Error") for said in report["outcomes"])
