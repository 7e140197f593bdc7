"""Every script in examples/ runs to its end, by itself, in under a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_script_runs(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "FUSEWIRE_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip()
    # Nothing is left beside the cache: an example cleans up behind itself.
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}
