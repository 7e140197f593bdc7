"""The reference has every public name, and llms.txt every page."""

from pathlib import Path

import fusewire
from docs.generate import REFERENCE, ROOT, llms


def test_every_public_name_is_described_once() -> None:
    described = [name for names in REFERENCE.values() for name in names]
    assert sorted(described) == sorted(fusewire.__all__)


def test_assistants_are_told_of_every_page() -> None:
    text = llms()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert [page for page in sorted(pages) if f"(docs/{page}): " not in text] == []


def test_every_page_that_is_listed_exists() -> None:
    paths = [line.partition("](")[2].partition(")")[0] for line in llms().splitlines()]
    assert [path for path in paths if path and not Path(ROOT, path).is_file()] == []
