"""A function is read at one glance. A file may be long if it is one idea."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import SOURCE, Module, function_lines, functions, modules

FUNCTION_LINES = 40

# "fusewire/x.py::Class.function" -> why it is better long.
EXCEPTIONS: dict[str, str] = {}


def size_problems(root: Path, exceptions: Mapping[str, str]) -> list[str]:
    """Find what is too long and not excepted, and exceptions that nothing needs any more."""
    too_long = {
        name: f"{name} has {lines} lines, over {FUNCTION_LINES}: split it by idea, or except it"
        for module in modules(root)
        for name, lines in _sizes(module)
        if lines > FUNCTION_LINES
    }
    unexpected = [problem for name, problem in too_long.items() if name not in exceptions]
    stale = [f"{name} is excepted and not too long" for name in exceptions if name not in too_long]
    unreasoned = [
        f"{name} is excepted without a reason" for name, why in exceptions.items() if not why
    ]
    return unexpected + stale + unreasoned


def _sizes(module: Module) -> Iterator[tuple[str, int]]:
    for name, node in functions(module.tree):
        yield f"{module.shown}::{name}", function_lines(node)


def test_functions_are_short() -> None:
    problems = size_problems(SOURCE, EXCEPTIONS)
    assert not problems, "\n".join(problems)


LONG_FUNCTION = "def long():\n" + "    x = 1\n" * FUNCTION_LINES
LONG_METHOD = "class A:\n    def long(self):\n" + "        x = 1\n" * FUNCTION_LINES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LONG_FUNCTION, "fusewire/ir/planted.py::long"),
        (LONG_METHOD, "fusewire/ir/planted.py::A.long"),
        ("if True:\n    async def long():\n" + "        x = 1\n" * FUNCTION_LINES, "::long"),
    ],
)
def test_planted_length_is_found(plant: Plant, text: str, name: str) -> None:
    assert any(
        name in problem for problem in size_problems(plant("ir/planted.py", text), EXCEPTIONS)
    )


def test_exception_with_a_reason_is_accepted(plant: Plant) -> None:
    root = plant("ir/planted.py", LONG_FUNCTION)
    excepted = {**EXCEPTIONS, "fusewire/ir/planted.py::long": "planted"}
    assert not any("planted.py" in problem for problem in size_problems(root, excepted))


@pytest.mark.parametrize(("text", "reason"), [("x = 1\n", "was long once"), (LONG_FUNCTION, "")])
def test_stale_or_unreasoned_exception_is_found(plant: Plant, text: str, reason: str) -> None:
    root = plant("ir/planted.py", text)
    excepted = {**EXCEPTIONS, "fusewire/ir/planted.py::long": reason}
    assert any(
        "planted.py::long is excepted" in problem for problem in size_problems(root, excepted)
    )
