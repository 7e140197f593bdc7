"""docs/architecture.md is a map of the package: no part is missing, and no name is stale."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "fusewire"
PAGE = PROJECT / "docs" / "architecture.md"
# A file or folder in backticks: `rewrite/rules/`, `engine.py`, `tests/docs`.
NAMED = re.compile(r"`((?:tests/)?[a-z_/]+(?:\.py|/)|tests/[a-z_/]+)`")
# Packages that are only a shelf: the page names what is on it.
SHELVES = ("frontends",)
# What the face of the package consists of.
FACE = ("__init__.py", "backend.py", "py.typed")


def page_problems(text: str) -> list[str]:
    """Find parts of the package that the page leaves out, and names that do not exist."""
    parts = [path for path in sorted(PACKAGE.iterdir()) if path.name not in ("__pycache__", *FACE)]
    names = [path.name if path.is_file() else f"{path.name}/" for path in parts]
    missing = [
        f"{name} is not on the page"
        for name in names
        if f"`{name}" not in text and name.rstrip("/") not in SHELVES
    ]
    files = {path.as_posix() for path in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*/"))}
    stale = [
        f"`{name}` does not exist"
        for name in NAMED.findall(text)
        if not (PROJECT / name).exists()
        and not any(f"{file}/".endswith(f"/{name.rstrip('/')}/") for file in files)
    ]
    return missing + stale


def test_page_has_every_part_and_no_stale_name() -> None:
    problems = page_problems(PAGE.read_text(encoding="utf-8"))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("`store/`", "the store", "store/ is not on the page"),
        ("`guard.py`", "`warden.py`", "`warden.py` does not exist"),
        ("`lower/`", "`lower_still/`", "`lower_still/` does not exist"),
    ],
)
def test_planted_fault_is_found(old: str, new: str, said: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert old in text
    assert said in page_problems(text.replace(old, new))
