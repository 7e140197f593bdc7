"""Find and run the code blocks of one Markdown file.

Run as a script, it is the fresh process of that file: `python blocks.py FILE`. The blocks run in
the order of the page, in one namespace and in the current folder.
"""

import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

RUN = ("python", "console")
# Shown as they are. Any other tag is refused, so that no code escapes by another spelling.
SHOWN = ("text", "toml", "json", "yaml", "diff", "mermaid", "ebnf", "pycon")
SKIP = "no-run"
# A table of measurements, as it was on another day: its title and its columns must be the same.
RECORDED = "recorded"
REASON = re.compile(r"# not run: \S")
SECONDS = 600

_RULE = re.compile(r"\s*─+\s*")
_GAP = re.compile(r"\s{2,}")
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>[^`]*)$")


@dataclass(frozen=True)
class Block:
    """Code between two fences; `line` is the line of the first fence."""

    line: int
    language: str
    tags: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class Command:
    """One `$` line of a console block, and the output that is shown below it."""

    line: int
    text: str
    shown: tuple[str, ...]
    is_recorded: bool = False


class BlockError(Exception):
    """Carry the line of the page that is wrong, and what is wrong with it."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def blocks(text: str) -> Iterator[Block]:
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not (start := _FENCE.match(line)):
            continue
        indent, fence = start["indent"], start["fence"]
        language, *tags = start["info"].split() or [""]
        code = []
        for _, inner in lines:
            if inner.strip() == fence:
                break
            code.append(inner.removeprefix(indent))
        else:
            raise BlockError(number, "this block has no end")
        yield Block(number, language, tuple(tags), "".join(f"{row}\n" for row in code))


def runnable(text: str) -> list[Block]:
    """Give the blocks to run, and refuse those that are neither run nor excused."""
    found = []
    for block in blocks(text):
        if block.language in SHOWN:
            continue
        if block.language not in RUN:
            raise BlockError(block.line, f"{block.language!r} is none of {', '.join(RUN + SHOWN)}")
        known = (SKIP, RECORDED) if block.language == "console" else (SKIP,)
        if unknown := [tag for tag in block.tags if tag not in known]:
            is_one_of = " and ".join(map(repr, known))
            raise BlockError(block.line, f"{unknown[0]!r} is not a tag; there is {is_one_of}")
        if SKIP not in block.tags:
            found.append(block)
        elif not REASON.search(block.code):
            raise BlockError(block.line, f"a {SKIP} block says why: '# not run: <reason>'")
    return found


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    rows = list(enumerate(block.code.splitlines(), start=block.line + 1))
    if rows and not rows[0][1].startswith("$ "):
        raise BlockError(rows[0][0], "a console block starts with '$ '")
    while rows:
        line, text = rows.pop(0)
        while text.endswith("\\") and rows:
            text += f"\n{rows.pop(0)[1]}"
        shown = []
        while rows and not rows[0][1].startswith("$ "):
            shown.append(rows.pop(0)[1])
        is_recorded = RECORDED in block.tags
        found.append(Command(line, text.removeprefix("$ "), tuple(shown), is_recorded))
    return found


def matches(shown: tuple[str, ...], actual: list[str]) -> bool:
    """Compare line by line; a shown line `...` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if row.strip() == "..." else re.escape(row.rstrip()) + r"\n" for row in shown
    )
    return re.fullmatch(pattern, "".join(f"{row.rstrip()}\n" for row in actual)) is not None


def outline(lines: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first line, and the headings of the table without units; ValueError if it is odd.

    Every row has a cell for each heading. How many rows there are, and in which order, is of a day.
    """
    rules = [place for place, line in enumerate(lines) if _RULE.fullmatch(line)]
    if len(rules) != 1 or rules[0] == 0:
        raise ValueError("one table, with a line below its headings, was expected")
    headings = [cell.partition(",")[0] for cell in _GAP.split(lines[rules[0] - 1].strip())]
    rows = list(takewhile(str.strip, lines[rules[0] + 1 :]))
    odd = [row for row in rows if len(_GAP.split(row.removeprefix(">").strip())) != len(headings)]
    if odd or not rows:
        raise ValueError(f"{len(headings)} columns were expected, found: {''.join(odd[:1])!r}")
    return lines[0].strip(), headings


def recorded_problem(shown: Sequence[str], actual: Sequence[str]) -> str | None:
    """Say how the outlines of two outputs differ."""
    try:
        theirs, ours = outline(shown), outline(actual)
    except ValueError as error:
        return str(error)
    return None if theirs == ours else f"the page has {theirs}, and it is {ours} now"


def run_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in runnable(page.read_text(encoding="utf-8")):
        if block.language == "python":
            _run_python(page, block, namespace)
        else:
            for command in commands(block):
                _run_command(command)


def _run_python(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    # The empty lines make every line number that of the page, in a traceback too.
    source = "\n" * block.line + block.code
    try:
        exec(compile(source, str(page), "exec"), namespace)
    except SyntaxError as error:
        raise BlockError(error.lineno or block.line, f"{error.msg}") from error
    except BaseException as error:
        rows = traceback.extract_tb(error.__traceback__)
        ours = [row.lineno for row in rows if row.filename == str(page) and row.lineno]
        raise BlockError(ours[-1] if ours else block.line, traceback.format_exc()) from error


def _run_command(command: Command) -> None:
    done = subprocess.run(
        ["bash", "-c", command.text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        message = f"$ {command.text}\nended with {done.returncode} and said:\n{done.stdout}"
        raise BlockError(command.line, message)
    lines = done.stdout.splitlines()
    if command.is_recorded:
        if problem := recorded_problem(command.shown, lines):
            raise BlockError(command.line, f"$ {command.text}\n{problem}:\n{done.stdout}")
    elif command.shown and not matches(command.shown, lines):
        shown = "\n".join(command.shown)
        message = f"$ {command.text}\nthe page shows:\n{shown}\nit said:\n{done.stdout}"
        raise BlockError(command.line, message)


def main() -> None:
    page = Path(sys.argv[1])
    try:
        run_page(page)
    except BlockError as error:
        raise SystemExit(f"{page}:{error.line}: {error}") from None


if __name__ == "__main__":
    main()
