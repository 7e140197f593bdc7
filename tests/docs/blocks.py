"""Find and run the code blocks of one Markdown file.

Run as a script, it is the fresh process of that file: `python blocks.py FILE`. The blocks run in
the order of the page, in one namespace and in the current folder.
"""

import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN = ("python", "console")
# Shown as they are. Any other tag is refused, so that no code escapes by another spelling.
SHOWN = ("text", "toml", "json", "yaml", "diff", "mermaid", "ebnf", "pycon")
SKIP = "no-run"
REASON = re.compile(r"# not run: \S")
SECONDS = 600

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
        if unknown := [tag for tag in block.tags if tag != SKIP]:
            raise BlockError(block.line, f"{unknown[0]!r} is not a tag; there is {SKIP!r}")
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
        found.append(Command(line, text.removeprefix("$ "), tuple(shown)))
    return found


def matches(shown: tuple[str, ...], actual: list[str]) -> bool:
    """Compare line by line; a shown line `...` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if row.strip() == "..." else re.escape(row.rstrip()) + r"\n" for row in shown
    )
    return re.fullmatch(pattern, "".join(f"{row.rstrip()}\n" for row in actual)) is not None


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
    if command.shown and not matches(command.shown, done.stdout.splitlines()):
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
