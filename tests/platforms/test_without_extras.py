"""The suite where an extra is not installed: its tests are skipped, and say why."""

import subprocess
from pathlib import Path

import pytest

from tests.environments import ROOT, without


def test_tests_of_an_extra_that_is_missing_are_skipped_and_counted(tmp_path: Path) -> None:
    python = without(tmp_path / "environment", "torch")
    words = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/frontends/torch/test_samples.py",
    )
    done = subprocess.run([python, *words], cwd=ROOT, capture_output=True, text=True)
    assert "torch is not installed" in done.stdout
    assert "1 skipped" in done.stdout
    assert "failed" not in done.stdout


PLANTED = """
def test_that_needs_it():
    import torch

def test_that_fails():
    raise RuntimeError("torch needs the package torch, which is not installed.")
"""


def test_test_that_fails_for_another_reason_is_not_skipped(tmp_path: Path) -> None:
    python = without(tmp_path / "environment", "torch")
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    words = ("-m", "pytest", "-q", "-p", "tests.needs", "-c", str(ROOT / "pyproject.toml"))
    done = subprocess.run([python, *words, file], cwd=ROOT, capture_output=True, text=True)
    assert "1 failed, 1 skipped" in done.stdout
    assert "test_that_fails - RuntimeError" in done.stdout


def test_extra_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no extra abacus. Extras: docs, onnx, .*xla; or all"):
        without(tmp_path, "abacus")
