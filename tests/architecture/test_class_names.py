"""A public class name stands for one idea: it is used once in the package, outside backends/."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE, is_within, modules

# Every backend has the same file names and may have the same class names.
BACKENDS = f"{PACKAGE}.backends"


def public_classes(root: Path) -> dict[str, list[str]]:
    """Map the name of every public class outside backends/ to the files that define it."""
    files: dict[str, list[str]] = defaultdict(list)
    for module in modules(root):
        if is_within(module.name, BACKENDS):
            continue
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(module.shown)
    return files


def class_name_problems(root: Path) -> list[str]:
    """Find class names that are used twice."""
    return [
        f"{name} is defined in {' and '.join(files)}: rename one after what it is"
        for name, files in public_classes(root).items()
        if len(files) > 1
    ]


def test_class_names_are_used_once() -> None:
    problems = class_name_problems(SOURCE)
    assert not problems, "\n".join(problems)


def test_planted_clash_is_found(plant: Plant) -> None:
    root = plant("ir/planted.py", "class Planted: ...\n")
    plant("store/planted.py", "class Planted: ...\n")
    (problem,) = class_name_problems(root)
    assert "Planted is defined in fusewire/ir/planted.py and fusewire/store/planted.py" in problem


@pytest.mark.parametrize(
    ("path", "name"), [("backends/planted.py", "Planted"), ("store/planted.py", "_Planted")]
)
def test_backends_and_private_classes_may_share_names(plant: Plant, path: str, name: str) -> None:
    root = plant("ir/planted.py", f"class {name}: ...\n")
    plant(path, f"class {name}: ...\n")
    assert not class_name_problems(root)
