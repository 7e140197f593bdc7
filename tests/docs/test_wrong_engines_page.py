"""docs/wrong-engines.md says which functions put an engine in quarantine: they exist."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "wrong-engines.md"
# A function after its file: `choosing/race.py`, `_try`.
FUNCTION = re.compile(r"`([a-z_/]+\.py)`, `(\w+)`")


def stale_functions(text: str) -> list[str]:
    """Find functions that the page names and that their file does not define."""
    named = FUNCTION.findall(text)
    assert named, "the page names no functions"
    sources = {file: PROJECT / "src" / "fusewire" / file for file, _ in named}
    return [
        f"{file} does not define {name}"
        for file, name in named
        if f"def {name}(" not in sources[file].read_text(encoding="utf-8")
    ]


def test_functions_on_the_page_exist() -> None:
    assert not stale_functions(PAGE.read_text(encoding="utf-8"))


def test_planted_name_is_found() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("`_try`", "`_attempt`")
    assert stale_functions(text) == ["choosing/race.py does not define _attempt"]
