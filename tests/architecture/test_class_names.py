"""A public class name stands for one idea: it is used once in the package, outside backends/."""

import ast
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE, is_within, modules

# Every backend has the same file names and may have the same class names.
BACKENDS = f"{PACKAGE}.backends"

# Names that are still used twice, each to be renamed. The list only shrinks.
KNOWN: frozenset[str] = frozenset()


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


def class_name_problems(root: Path, known: Collection[str]) -> list[str]:
    """Find class names that are used twice, and known clashes that are gone."""
    clashes = {name: files for name, files in public_classes(root).items() if len(files) > 1}
    unexpected = [
        f"{name} is defined in {' and '.join(files)}: rename one after what it is"
        for name, files in clashes.items()
        if name not in known
    ]
    gone = [
        f"{name} is no longer used twice: remove it from KNOWN in {Path(__file__).name}"
        for name in sorted(set(known) - set(clashes))
    ]
    return unexpected + gone


def test_class_names_are_used_once() -> None:
    problems = class_name_problems(SOURCE, KNOWN)
    assert not problems, "\n".join(problems)


def test_planted_clash_is_found(plant: Plant) -> None:
    root = plant("ir/planted.py", "class Planted: ...\n")
    plant("store/planted.py", "class Planted: ...\n")
    (problem,) = class_name_problems(root, ())
    assert "Planted is defined in fusewire/ir/planted.py and fusewire/store/planted.py" in problem
    assert not class_name_problems(root, {"Planted"})


@pytest.mark.parametrize(
    ("path", "name"), [("backends/planted.py", "Planted"), ("store/planted.py", "_Planted")]
)
def test_backends_and_private_classes_may_share_names(plant: Plant, path: str, name: str) -> None:
    root = plant("ir/planted.py", f"class {name}: ...\n")
    plant(path, f"class {name}: ...\n")
    assert not class_name_problems(root, ())


def test_known_clash_that_is_gone_is_found(plant: Plant) -> None:
    root = plant("ir/planted.py", "class Planted: ...\n")
    (problem,) = class_name_problems(root, {"Planted"})
    assert "remove it from KNOWN" in problem
