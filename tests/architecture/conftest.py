"""Plant a fault in a copy of the source tree."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, SOURCE

Plant = Callable[[str, str], Path]


# A check reads every file of a copy, so a copy has few: what makes folders packages, and the base.
KEPT = ("__init__.py", "errors.py", "dtypes.py")


def _rest(folder: str, names: list[str]) -> list[str]:
    files = [name for name in names if (Path(folder) / name).is_file() and name not in KEPT]
    return [*files, "__pycache__"]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write a file into a small copy of the package, and give the folder that holds the copy."""
    root = tmp_path / "src"
    shutil.copytree(SOURCE / PACKAGE, root / PACKAGE, ignore=_rest)

    def write(path: str, text: str) -> Path:
        target = root / PACKAGE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        return root

    return write
