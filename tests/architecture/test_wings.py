"""Wings are parts that nothing else needs: without one of them, the rest of the package works."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE, imports_when_run, is_within, modules

# The modules of each wing, with the commands that are its own. Faces name what is in a wing when
# somebody asks for it, and type checkers may read all: neither imports it. benchmarks/wings.py
# deletes each and runs what is left.
WINGS: Mapping[str, tuple[str, ...]] = {
    "serve": ("serve", "cli.serve"),
    "ray": ("ray", "cli.map", "cli.tune"),
    "torch": ("dynamo", "frontends.torch", "backends.torch", "backends.inductor"),
    "kernels": ("kernel", "fusing", "cli.fuse", "backends.triton", "backends.webgpu"),
    "xla": ("backends.xla",),
}
# Looked up by name when somebody asks.
FACES = (PACKAGE, f"{PACKAGE}.backend", f"{PACKAGE}.declare")
# Ray Serve answers with the server's own application.
ALLOWED = {"ray": ("serve",)}


def wing_of(name: str) -> str | None:
    """Name the wing that a module is in."""
    for wing, members in WINGS.items():
        if any(is_within(name, f"{PACKAGE}.{member}") for member in members):
            return wing
    return None


def wing_problems(root: Path) -> list[str]:
    """List the imports of what is in a wing by what is not."""
    return [
        f"{module.shown}:{found.line}: imports {found.target}, of the wing {wing}"
        for module in modules(root)
        if module.name not in FACES
        for found in imports_when_run(module)
        if (wing := wing_of(found.target)) is not None
        if wing not in (own := wing_of(module.name), *ALLOWED.get(own or "", ()))
    ]


def test_nothing_else_imports_a_wing() -> None:
    problems = wing_problems(SOURCE)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("member", [name for members in WINGS.values() for name in members])
def test_members_of_wings_exist(member: str) -> None:
    path = SOURCE / PACKAGE / Path(*member.split("."))
    assert path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize(
    "text",
    ["from fusewire.serve import model", "def later():\n    import fusewire.kernel.form\n"],
)
def test_planted_import_of_a_wing_is_found(plant: Plant, text: str) -> None:
    (problem,) = wing_problems(plant("plan/planted.py", text))
    assert "planted.py" in problem


def test_type_checkers_and_own_commands_may_name_a_wing(plant: Plant) -> None:
    root = plant("plan/planted.py", "if TYPE_CHECKING:\n    from fusewire.serve import model\n")
    plant("cli/serve.py", "from fusewire.serve import model\n")
    assert wing_problems(root) == []
