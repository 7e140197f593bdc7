"""Every code block that people read runs."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs import blocks
from tests.needs import marks_of_code
from tests.own_ops import install

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def marked(page: Path) -> Any:
    """Give a page as a parameter, with marks for what its blocks need."""
    code = "\n".join(block.code for block in blocks.runnable(page.read_text(encoding="utf-8")))
    marks = [getattr(pytest.mark, name) for name in sorted(marks_of_code(code))]
    return pytest.param(page, marks=marks, id=page.relative_to(PROJECT).as_posix())


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a fresh process, an empty folder and an empty cache, with our commands."""
    cache = folder.with_name(f"{folder.name}-cache")
    more = {}
    if page.name == "own-ops.md":
        # Its package is seen by this page alone: its kernels would take part everywhere else.
        more["PYTHONPATH"] = str(install(folder.with_name(f"{folder.name}-packages")))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [sys.executable, blocks.__file__, str(page)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "FUSEWIRE_CACHE": str(cache),
            # Ray 2.60 would replace the loopback by another address of the machine.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("page", [*map(marked, PAGES)])
def test_blocks_of_the_page_run(page: Path, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout


def compared(*rows: str, heads: str = "   engine  median, ms  verdict") -> tuple[str, ...]:
    """A page with a recorded table, whose command prints another one of two engines."""
    printed = ["bench model", "a leads.", "", "   engine  median, us  verdict", "───"]
    printed += [
        ">  a              12  right",
        "   b               -  not tried",
        "",
        "note  of today",
    ]
    table = ["bench model", "b leads.", "", heads, "──────────", *rows, "", "note  of that day"]
    command = f"$ printf '%s\\n' {' '.join(map(shlex.quote, printed))}"
    return ("```console recorded", command, *table, "```")


@pytest.fixture
def said(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Run the page given by the test's parameter; empty when the page is right."""
    page = tmp_path / "page.md"
    page.write_text(request.param, encoding="utf-8")
    done = run_page(page, tmp_path)
    return "" if done.returncode == 0 else done.stdout


def page(*rows: str) -> str:
    return "\n".join(("# Title", "", *rows, ""))


@pytest.mark.parametrize(
    "said",
    [
        page("No code."),
        page("```python", "x = 1", "```", "", "```python", "assert x == 1", "```"),
        page("```python", "open('a', 'w').close()", "```", "```console", "$ ls a", "a", "```"),
        page("```console", "$ printf 'a\\nb\\nc\\n'", "a", "...", "c", "$ true", "```"),
        page("```console", "$ printf 'a\\nb\\n'", "...", "```"),
        page("```console", "$ echo a \\", "  b", "a b", "```"),
        page("- item", "  ```python", "  if True:", "      x = 1", "  ```"),
        page("```python no-run", "# not run: needs a GPU", "1 / 0", "```"),
        page("```text", "1 / 0", "```"),
        page(*compared(">  b              30  right", "   a              31  right")),
        page(*compared(">  c             1.2  right, split")),
        page("````text", "```python", "1 / 0", "```", "````"),
    ],
    indirect=True,
)
def test_right_page_passes(said: str) -> None:
    assert said == ""


@pytest.mark.parametrize(
    ("said", "line", "words"),
    [
        (page("```python", "x = 1", "1 / 0", "```"), 5, "ZeroDivisionError"),
        (page("```python", "x = 1", "```", "```python", "assert x == 2", "```"), 7, "Assertion"),
        (page("```python", "x = = 1", "```"), 4, "invalid syntax"),
        (page("```python", "raise SystemExit(0)", "```"), 4, "SystemExit"),
        (page("```python no-run", "1 / 0", "```"), 3, "says why"),
        (page("```python norun", "1 / 0", "```"), 3, "not a tag"),
        (
            page(*compared(">  b          30  right", heads="   engine  best, ms  verdict")),
            4,
            "best",
        ),
        (page(*compared(">  b              30")), 4, "3 columns were expected"),
        (page("```console recorded", "$ echo a", "a", "```"), 4, "one table"),
        (page("```python recorded", "x = 1", "```"), 3, "not a tag"),
        (page("```py", "1 / 0", "```"), 3, "'py' is none of"),
        (page("```", "1 / 0", "```"), 3, "'' is none of"),
        (page("```console", "$ true", "$ false", "```"), 5, "ended with 1"),
        (page("```console", "$ echo a", "b", "```"), 4, "the page shows:\nb\nit said:\na"),
        (page("```console", "$ printf 'a\\nb\\n'", "a", "```"), 4, "the page shows"),
        (page("```console", "$ printf 'a\\nb\\n'", "...", "a", "```"), 4, "the page shows"),
        (page("```console", "echo a", "```"), 4, "starts with"),
        (page("```python", "x = 1"), 3, "no end"),
    ],
    indirect=["said"],
)
def test_wrong_page_fails_and_names_the_line(said: str, line: int, words: str) -> None:
    assert f"page.md:{line}: " in said
    assert words in said
