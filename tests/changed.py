"""Print the tests that a change needs: of the rooms that it touches, and of the rooms above them.

    python -m tests.changed [BASE]

A room is a package or module right below ``fusewire``; of backends and frontends, each is one. What
a room stands on follows from imports, those inside functions among them. A file of tests is of the
rooms that it imports and of that whose folder mirrors its own. BASE is a commit, by default what
this branch has in common with main; files that are not committed count, too. Prints nothing if no
test is needed, and ``tests`` if the change may matter to any.
"""

import functools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.architecture.source import (
    PACKAGE,
    PROJECT,
    SOURCE,
    imports_when_run,
    is_within,
    modules,
)
from tests.needs import imported_names

TESTS = PROJECT / "tests"
# A change to one of these may matter to any test.
ANY = ("pyproject.toml", ".ci/", "tests/conftest.py", "tests/needs.py")
# Of these every file is found by its entry point, and imported by nobody.
LEAVES = ("backends", "frontends")
# Tests that read the whole source, and take few seconds.
ALWAYS = ("tests/architecture",)
# What is no source of ours, and the tests that read it.
READERS = {
    "docs/": ("tests/docs",),
    "examples/": ("tests/examples",),
    "benchmarks/": ("tests/benchmarks",),
    ".github/": ("tests/release",),
    "README.md": ("tests/docs", "tests/release"),
    "SECURITY.md": ("tests/docs",),
    "llms.txt": ("tests/docs",),
}


def room(name: str) -> str:
    """Give the room of a module: `runtime`, `backends.xla`, or none for the public face."""
    parts = name.split(".")[1:]
    return ".".join(parts[: 2 if parts[:1] and parts[0] in LEAVES else 1])


@functools.cache
def users() -> Mapping[str, frozenset[str]]:
    """Tell for each room which others import it at any time."""
    found = defaultdict[str, set[str]](set)
    for module in modules(SOURCE):
        for target in imports_when_run(module):
            if is_within(target.target, PACKAGE):
                found[room(target.target)].add(room(module.name))
    return {name: frozenset(above) for name, above in found.items()}


def affected(touched: Iterable[str]) -> set[str]:
    """List rooms, and all that stand on them."""
    found, left = set[str](), list(touched)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += users().get(name, ())
    return found


def needed_tests(files: Iterable[str]) -> list[str]:
    """List the files and folders of tests that changed files need."""
    needed, touched, helpers = set[str](), set[str](), set[str]()
    for file in files:
        if file.startswith(ANY):
            return ["tests"]
        if file.startswith(f"src/{PACKAGE}/"):
            touched.add(room(_dotted(file.removeprefix("src/"))))
        elif Path(file).name.startswith("test_") and file.startswith("tests/"):
            needed.add(file)
        elif file.startswith("tests/"):
            helpers.add(_dotted(file))
        for start, readers in READERS.items():
            needed |= set(readers) if file.startswith(start) else set()
    rooms = affected(touched)
    for test in sorted(TESTS.rglob("test_*.py")):
        if _is_of(test, rooms) or not helpers.isdisjoint(imported_names(test)):
            needed.add(test.relative_to(PROJECT).as_posix())
    if needed:
        needed |= set(ALWAYS)
    return sorted(x for x in needed if (PROJECT / x).exists() and not _is_below(x, needed))


def _is_of(test: Path, rooms: set[str]) -> bool:
    names = imported_names(test)
    own = {room(name) for name in names if is_within(name, PACKAGE) and name != PACKAGE}
    own.add(test.relative_to(TESTS).parts[0].removeprefix("test_").removesuffix(".py"))
    if PACKAGE in names:
        # It compiles as users do.
        own.add("compiler")
    text = test.read_text(encoding="utf-8")
    leaves = {name.split(".")[1] for name in rooms if name.startswith(LEAVES) and "." in name}
    return not own.isdisjoint(rooms) or any(f'"{leaf}"' in text for leaf in leaves)


def _is_below(name: str, others: Iterable[str]) -> bool:
    return any(name != other and name.startswith(f"{other}/") for other in others)


def _dotted(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def changed_files(base: str | None) -> list[str]:
    """List what differs from a commit, and what git does not know."""
    start = base or _git("merge-base", "HEAD", "main")[0]
    return [*_git("diff", "--name-only", start), *_git("ls-files", "-o", "--exclude-standard")]


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=PROJECT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print("\n".join(needed_tests(changed_files(next(iter(sys.argv[1:]), None)))))
