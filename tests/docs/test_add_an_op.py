"""The steps of docs/add-an-op.md, carried out on a copy: each touches one file and just works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"# not run: add to the end of (\S+)\n")


def _steps() -> dict[str, str]:
    """Map the files that the page changes to what it adds to them."""
    page = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
    found = {}
    for block in blocks(page):
        if place := PLACE.match(block.code):
            found[place[1]] = block.code[place.end() :]
    return found


def _copy(folder: Path, changed: str | None = None, added: str = "") -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("src", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if changed is not None:
        file = folder / changed
        file.write_text(file.read_text(encoding="utf-8") + added, encoding="utf-8")
    return folder


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


CHECKS = {
    "src/fusewire/ops/activation.py": ("tests/conformance/test_ops.py", "serf"),
    "src/fusewire/ops/elementwise.py": ("tests/conformance/test_ops.py", "bessel_i0"),
    "src/fusewire/rewrite/rules/algebra.py": ("tests/rewrite/test_rules.py", "square-of-negative"),
}


def test_page_has_a_composite_a_primitive_and_a_rule() -> None:
    assert _steps().keys() == CHECKS.keys()


@pytest.mark.parametrize("changed", list(CHECKS))
def test_step_touches_one_file_and_passes_the_suite(changed: str, tmp_path: Path) -> None:
    suite, name = CHECKS[changed]
    folder = _copy(tmp_path, changed, _steps()[changed])
    done = _run(folder, "pytest", "-q", "-p", "no:cacheprovider", suite, "-k", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout
    types = _run(folder, "mypy", "--no-incremental", changed)
    assert types.returncode == 0, types.stdout
    style = _run(folder, "ruff", "check", changed)
    assert style.returncode == 0, style.stdout
