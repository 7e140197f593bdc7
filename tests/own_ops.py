"""The example package of examples/own_ops, installed as anyone would install it."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
SOURCE = PROJECT / "examples" / "own_ops"


def install(folder: Path) -> Path:
    """Install the package into a folder, without reaching for an index."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    done = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
