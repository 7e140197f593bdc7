"""A copy of the tree in which a test carries out what a page or a rule of the house says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("src", "tests", "docs", "benchmarks")


def copied(folder: Path) -> Path:
    """Copy what tests, tools and documents need, with the bytecode of all that stays as it is."""
    ignored = shutil.ignore_patterns(".cache")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    for file in (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "llms.txt",
    ):
        shutil.copy(ROOT / file, folder)
    return folder


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module of Python's, or with "-c" a text, on the copy."""
    words = command if command[0] == "-c" or command[0].endswith(".py") else ("-m", *command)
    return subprocess.run(
        [sys.executable, *words],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
            "FUSEWIRE_CACHE": str(root / ".cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def passes(root: Path, *command: str) -> str:
    """Run on the copy, insist that it succeeds, and give what it printed."""
    done = run(root, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
