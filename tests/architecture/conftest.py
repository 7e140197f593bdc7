"""Plant a fault in a copy of the source tree."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, SOURCE

Plant = Callable[[str, str], Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write a file into a copy of the package, and give the folder that holds the copy."""
    root = tmp_path / "src"
    shutil.copytree(SOURCE / PACKAGE, root / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))

    def write(path: str, text: str) -> Path:
        target = root / PACKAGE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return root

    return write
