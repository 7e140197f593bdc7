"""A file is read in one sitting, and a function at one glance."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import SOURCE, Module, modules

FILE_LINES = 300
FUNCTION_LINES = 40

# "fusewire/x.py" or "fusewire/x.py::Class.function" -> why it is better long.
EXCEPTIONS: dict[str, str] = {
    "fusewire/ir/dims.py": "one algebra: simplifying, bounding and dividing sizes need each other",
}


def size_problems(root: Path, exceptions: Mapping[str, str]) -> list[str]:
    """Find what is too long and not excepted, and exceptions that nothing needs any more."""
    too_long = {
        name: f"{name} has {lines} lines, over {limit}: split it by idea, or except it"
        for module in modules(root)
        for name, lines, limit in _sizes(module)
        if lines > limit
    }
    unexpected = [problem for name, problem in too_long.items() if name not in exceptions]
    stale = [f"{name} is excepted and not too long" for name in exceptions if name not in too_long]
    unreasoned = [
        f"{name} is excepted without a reason" for name, why in exceptions.items() if not why
    ]
    return unexpected + stale + unreasoned


def _sizes(module: Module) -> Iterator[tuple[str, int, int]]:
    yield module.shown, len(module.text.splitlines()), FILE_LINES
    for name, node in _functions(module.tree, ""):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        yield f"{module.shown}::{name}", lines, FUNCTION_LINES


def _functions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}" if prefix else node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from _functions(node, name)


def test_files_and_functions_are_short() -> None:
    problems = size_problems(SOURCE, EXCEPTIONS)
    assert not problems, "\n".join(problems)


LONG_FILE = "x = 1\n" * (FILE_LINES + 1)
LONG_METHOD = "class A:\n    def long(self):\n" + "        x = 1\n" * FUNCTION_LINES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LONG_FILE, "fusewire/ir/planted.py"),
        (LONG_METHOD, "fusewire/ir/planted.py::A.long"),
        ("if True:\n    async def long():\n" + "        x = 1\n" * FUNCTION_LINES, "::long"),
    ],
)
def test_planted_length_is_found(plant: Plant, text: str, name: str) -> None:
    assert any(
        name in problem for problem in size_problems(plant("ir/planted.py", text), EXCEPTIONS)
    )


def test_exception_with_a_reason_is_accepted(plant: Plant) -> None:
    root = plant("ir/planted.py", LONG_FILE)
    excepted = {**EXCEPTIONS, "fusewire/ir/planted.py": "planted"}
    assert not any("planted.py" in problem for problem in size_problems(root, excepted))


@pytest.mark.parametrize(("text", "reason"), [("x = 1\n", "was long once"), (LONG_FILE, "")])
def test_stale_or_unreasoned_exception_is_found(plant: Plant, text: str, reason: str) -> None:
    root = plant("ir/planted.py", text)
    excepted = {**EXCEPTIONS, "fusewire/ir/planted.py": reason}
    assert any("planted.py is excepted" in problem for problem in size_problems(root, excepted))
