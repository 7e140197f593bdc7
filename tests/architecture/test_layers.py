"""Imports point one way."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.conftest import Plant
from tests.architecture.source import PACKAGE, SOURCE, Import, Module, imports, is_within, modules

# From the top to the bottom: each may import what stands after it, and nothing before it.
LAYERS = (
    "__main__",
    "cli",
    # Jobs on many machines: they compile, as a user does.
    "ray",
    "testing",
    # The server compiles, as a user does.
    "serve",
    # What torch.compile calls: it compiles, as a user does.
    "dynamo",
    "capturing",
    # It compiles and tunes kernels, as a user does programs.
    "fusing",
    "compiler",
    "bundling",
    # What one set of options shares.
    "session",
    "background",
    "choosing",
    "trials",
    "planning",
    # Profiles wrap what programs and plans run.
    "profiling",
    # What a user calls.
    "program",
    "records",
    # What runs a call.
    "plan",
    "show",
    "buffers",
    "options",
    # Samples of a user's inputs, which are one of the options.
    "calibration",
    "registry",
    "store",
    "process",
    "kernel",
    "contract",
    "fusion",
    "rewrite",
    # What integers a graph holds, which rules of rewrite ask.
    "facts",
    "numerics",
    "ops",
    "ir",
    "host_memory",
    "dtypes",
    "tables",
    "example",
    # What differs between operating systems.
    "system",
    "errors",
    # What profiles collect: every layer may note events.
    "events",
    # It loads what a face names, and imports nothing itself.
    "lazy_names",
)
# A leaf imports from here down, and the leaves named beside it. Nobody else imports a leaf: it is
# found by its entry point. Two backends, or two frontends, never import each other.
LEAVES_STAND_ON = "process"
LEAVES = {
    "backends": ("onnx",),
    "frontends": (),
    # Its halves and its op families know each other: one unit.
    "onnx": ("onnx",),
}
# Inductor compiles the very steps that eager PyTorch runs: one lowering for both.
SHARED = {"backends.inductor": "backends.torch"}
# The public faces are above all layers: they may name any of them, but only when a name is asked
# for.
FACES = (f"{PACKAGE}/__init__.py", f"{PACKAGE}/backend.py", f"{PACKAGE}/declare.py")


def layer_problems(root: Path) -> list[str]:
    return [
        f"{module.shown}:{found.line}: {problem}"
        for module in modules(root)
        if module.shown not in FACES
        for found in imports(module)
        if is_within(found.target, PACKAGE)
        if (problem := _problem(module.name, found))
    ]


def face_problems(root: Path) -> list[str]:
    """Find what `import fusewire` would load at once."""
    allowed = (*sys.stdlib_module_names, f"{PACKAGE}.errors", f"{PACKAGE}.lazy_names")
    return [
        f"{module.shown}:{found.line}: imports {found.target} at once; give it in __getattr__"
        for module in modules(root)
        if module.shown in FACES
        for found in _imports_at_once(module)
        if not any(is_within(found.target, name) for name in allowed)
    ]


def _problem(importer: str, found: Import) -> str | None:
    if found.target == PACKAGE:
        return f"imports {PACKAGE} itself; name the module that has what you need"
    upper, lower = _area(importer), _area(found.target)
    for area in (upper, lower):
        if area not in LAYERS and area not in LEAVES:
            return f"{PACKAGE}.{area} is in no layer; name the module itself, or add it to LAYERS"
    if lower in LEAVES:
        if _unit(importer) == _unit(found.target) or lower in LEAVES.get(upper, ()):
            return None
        if SHARED.get(".".join(_unit(importer))) == ".".join(_unit(found.target)):
            return None
        return f"{importer} imports {found.target}; {lower} are found by entry point, not by name"
    floor = LEAVES_STAND_ON if upper in LEAVES else upper
    if LAYERS.index(lower) < LAYERS.index(floor):
        return f"{importer} imports {found.target}, which is above it"
    return None


def _area(name: str) -> str:
    return [*name.split("."), ""][1]


def _unit(name: str) -> tuple[str, ...]:
    """Give what may know itself: `backends.xla` is one unit, `backends.triton` another."""
    return tuple(name.split(".")[1:3])


def _imports_at_once(module: Module) -> Iterator[Import]:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__"):
            continue
        # Type checkers read these, Python does not, and without them users would have no types.
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield from imports(module, node)


def test_imports_point_one_way() -> None:
    problems = layer_problems(SOURCE)
    assert not problems, "\n".join(problems)


def test_the_public_face_imports_lazily() -> None:
    problems = face_problems(SOURCE)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ir/planted.py", "from fusewire.ops import interpret"),
        ("ir/planted.py", "from ..ops import interpret"),
        ("ir/planted.py", "from .. import ops"),
        ("ir/planted.py", "import fusewire.ops.interpret"),
        ("ir/planted.py", "import fusewire"),
        ("ir/planted.py", "def later():\n    import fusewire.registry\n"),
        ("ir/planted.py", "if TYPE_CHECKING:\n    from fusewire.plan import plan\n"),
        ("ir/planted.py", 'importlib.import_module("fusewire.compile")'),
        ("ops/deep/planted.py", "from ...rewrite import rule"),
        ("backends/planted/engine.py", "from fusewire.registry import Registry"),
        ("backends/planted/engine.py", "from fusewire.backends.reference import engine"),
        ("backends/planted/engine.py", "from fusewire.frontends import trace"),
        ("frontends/planted.py", "from fusewire.frontends import trace"),
        ("onnx/planted/reader.py", "from fusewire.backends.reference import info"),
        ("cli/planted.py", "from fusewire.backends.reference import info"),
        ("plan/planted.py", "from fusewire.onnx.read import model_file"),
        ("planted.py", "from fusewire.ir import graph"),
        ("plan/planted.py", "from fusewire import Program"),
    ],
)
def test_planted_import_is_found(plant: Plant, path: str, text: str) -> None:
    assert any("planted" in problem for problem in layer_problems(plant(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ops/planted.py", "from fusewire.ir import graph"),
        ("ir/planted.py", "from . import graph"),
        ("dtypes.py", "from fusewire.errors import FusewireError"),
        ("backends/planted/engine.py", "from fusewire.backends.planted import lowering"),
        ("backends/planted/engine.py", "from fusewire.onnx.write import writer"),
        ("backends/planted/engine.py", "from fusewire.process import guard"),
        ("onnx/ops/planted.py", "from fusewire.onnx.write.emitter import Emitter"),
        ("cli/planted.py", "from fusewire.testing import conformance"),
    ],
)
def test_allowed_import_is_not_reported(plant: Plant, path: str, text: str) -> None:
    name = path.removesuffix(".py")
    assert not any(name in problem for problem in layer_problems(plant(path, text)))


@pytest.mark.parametrize(
    "text",
    [
        "from fusewire.ir import graph",
        "import numpy",
        "try:\n    import fusewire.ops\nfinally: ...",
    ],
)
def test_eager_face_is_found(plant: Plant, text: str) -> None:
    assert face_problems(plant("__init__.py", text))


def test_lazy_face_is_not_reported(plant: Plant) -> None:
    text = (
        "import importlib\nfrom typing import TYPE_CHECKING\n"
        "from fusewire.errors import FusewireError\n"
        "if TYPE_CHECKING:\n    from fusewire.ir import Graph\n"
        "def __getattr__(name):\n    from fusewire import ir\n    return getattr(ir, name)\n"
    )
    assert not face_problems(plant("__init__.py", text))
