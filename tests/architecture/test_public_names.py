"""The public surface changes on purpose."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE

LISTED = Path(__file__).with_name("public_names.txt")
# Public names that are modules.
MODULES = frozenset(("ops",))


def listed_names(path: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line}


def exported_names(root: Path) -> set[str]:
    """Read `__all__`, which must be written out so that people and tools can read it too."""
    face = root / PACKAGE / "__init__.py"
    if not face.exists():
        return set()
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                return set(ast.literal_eval(value))
    return set()


def name_problems(root: Path, listed: set[str]) -> list[str]:
    exported = exported_names(root)
    return [
        *(f"{name} is public and not in {LISTED.name}" for name in sorted(exported - listed)),
        *(f"{name} is in {LISTED.name} and not public" for name in sorted(listed - exported)),
    ]


def test_public_names_are_the_listed_ones() -> None:
    problems = name_problems(SOURCE, listed_names(LISTED))
    assert not problems, "\n".join(problems)


def test_every_public_name_exists() -> None:
    # In a process of its own: what this one has imported already must not help.
    script = (
        "import fusewire, sys\n"
        "for name in sys.argv[1:]:\n"
        "    getattr(fusewire, name)\n"
        "    assert name in dir(fusewire), f'{name} is not in dir(fusewire)'\n"
    )
    names = sorted(exported_names(SOURCE))
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ('__all__ = ["Planted"]', set[str]()),
        ('__all__ = ["Graph"]', {"Graph", "Planted"}),
        ('__all__: tuple[str, ...] = ("Planted",)', set[str]()),
        ("", {"Planted"}),
    ],
)
def test_planted_difference_is_found(plant: Plant, text: str, listed: set[str]) -> None:
    assert any(
        "Planted" in problem for problem in name_problems(plant("__init__.py", text), listed)
    )


def shadow_problems(root: Path) -> list[str]:
    """Find modules with the name of a public function: importing one takes its place."""
    return [
        f"{PACKAGE}.{name} is public, and a module would take its place: call {path.name} otherwise"
        for name in sorted(exported_names(root) - MODULES)
        for path in (root / PACKAGE / name, root / PACKAGE / f"{name}.py")
        if path.exists()
    ]


def test_no_module_has_the_name_of_a_public_function() -> None:
    problems = shadow_problems(SOURCE)
    assert not problems, "\n".join(problems)


def test_planted_module_is_found(plant: Plant) -> None:
    (problem,) = shadow_problems(plant("profile/__init__.py", ""))
    assert "fusewire.profile is public" in problem
