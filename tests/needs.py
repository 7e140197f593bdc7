"""What tests need beyond NumPy: a mark for each, and a skip where it is not installed.

The marks of a test follow from what its file imports, also by way of other files of tests, and from
the names of its parameters. `pytest -m "not torch"` leaves out what needs PyTorch.

Where something is not installed, what needs it is skipped before it runs, and counted: a file that
cannot be imported without it, and a test whose code imports it or names its engine. What cannot be
seen in the code of a test is declared by one of the same marks. A test that runs and fails has
failed.
"""

import ast
import copy
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The modules that a mark stands for; a test needs the mark if its file imports one of them.
MARKS = {
    "browser": ("tests.chromium",),
    "children": ("fusewire.process", "fusewire.trials", "multiprocessing", "subprocess"),
    "onnx": ("onnx", "onnxscript"),
    "onnxruntime": ("onnxruntime", "fusewire.backends.onnxruntime"),
    "openvino": ("openvino", "fusewire.backends.openvino"),
    "ray": ("ray", "pyarrow", "fusewire.ray"),
    "remote": ("cryptography", "obstore"),
    "server": (
        "google", "grpc", "httptools", "orjson", "prometheus_client", "starlette", "tritonclient",
        "uvicorn", "uvloop", "fusewire.serve",
    ),
    "torch": (
        "torch", "fusewire.backends.inductor", "fusewire.backends.torch", "fusewire.dynamo",
    ),
    "triton": ("triton", "fusewire.backends.triton"),
    "webgpu": ("wgpu", "fusewire.backends.webgpu"),
    "xla": ("jax", "jaxlib", "fusewire.backends.xla"),
}  # fmt: skip
# Engines by the mark of what they need; the second is of tests/plugin.
ENGINES = {
    **{name: name for name in ("onnxruntime", "openvino", "torch", "triton", "webgpu", "xla")},
    "inductor": "torch",
    "torch-eager": "torch",
}
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+([\w, ]+))?", re.MULTILINE
)
# A backend of tests, as it is registered.
_REFERENCE = re.compile(r'"(tests(?:\.\w+)+):')
# An engine in the text of a test: alone, in a list, quoted in code, or given to an option.
_NAMED = re.compile(rf"(?:^|[,:=\"']|--\w+ )({'|'.join(ENGINES)})(?=$|[,:\"'])", re.MULTILINE)
# An engine anywhere in code, or in what it prints.
_SHOWN = re.compile(rf"(?<![\w.])({'|'.join(ENGINES)})(?!\w)")


@functools.cache
def marks_of(file: Path) -> frozenset[str]:
    """List what the tests of a file need, as far as imports tell."""
    return _marks(imported_names(file))


def marks_of_code(code: str) -> frozenset[str]:
    """List what code needs that is run as it is: what it imports, and engines that it shows."""
    return _marks(_names(code)) | {ENGINES[name] for name in _SHOWN.findall(code)}


@functools.cache
def imported_names(file: Path) -> frozenset[str]:
    """List what a file of tests imports, also by way of other files of tests."""
    return frozenset(_imported(file, {file}))


def needs_of(file: Path, names: Iterable[str], parameters: str = "") -> frozenset[str]:
    """List what a test needs, given its name and those of its fixtures, and its parameters.

    Follows what they use of their file and of other files of tests.
    """
    found = {ENGINES[name] for name in _SHOWN.findall(parameters)}
    left = [(home, name) for name in names for home in (file, *_conftests(file))]
    seen = set[tuple[Path, str]]()
    while left:
        if (place := left.pop()) not in seen:
            seen.add(place)
            needed, used = _needs_and_uses(*place)
            found |= needed
            left += used
    return frozenset(found)


@functools.cache
def _needs_and_uses(file: Path, name: str) -> tuple[set[str], list[tuple[Path, str]]]:
    """List the marks of what one definition needs by itself, and the definitions that it uses."""
    needed, used = set[str](), list[tuple[Path, str]]()
    for node in _nodes(_definitions(file).get(name)):
        if isinstance(node, ast.Name):
            used.append((file, node.id))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            needed |= {ENGINES[engine] for engine in _NAMED.findall(node.value)}
            needed |= _marks(_names(node.value))
            # Fixtures may be named by texts.
            used.append((file, node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for module, member in _members(node):
                needed |= _marks([module, f"{module}.{member}"])
                used.append((_path(module), member))
    return needed, used


def missing_of(marks: Iterable[str]) -> str | None:
    """Name a package that is not installed, of those that marks stand for; None if all are."""
    tops = (_top(module) for mark in sorted(marks) for module in MARKS.get(mark, ()))
    return next((top for top in tops if top in _absent()), None)


def missing_import(error: BaseException | None) -> str | None:
    """Name the package whose import failed, if it is one that is not installed."""
    while error is not None:
        if isinstance(error, ImportError) and _top(error.name or "") in _absent():
            return _top(error.name or "")
        error = error.__cause__ or error.__context__
    return None


def _conftests(file: Path) -> list[Path]:
    return [folder / "conftest.py" for folder in file.parents if folder.is_relative_to(ROOT)]


@functools.cache
def _definitions(file: Path) -> Mapping[str, ast.stmt]:
    """Tell which statements of a file define or import its names."""
    if not file.exists():
        return {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {name: part for statement in body for name, part in _defined(statement)}


def _defined(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, node
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            own = copy.copy(node)
            own.names = [alias]
            yield alias.asname or _top(alias.name), own
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for part in (part for x in targets if x is not None for part in ast.walk(x)):
            if isinstance(part, ast.Name):
                yield part.id, node


def _nodes(statement: ast.stmt | None) -> Iterator[ast.AST]:
    """Walk what a statement runs when it is used: its decorators hold values of other tests."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        for part in (statement.args, *statement.body):
            yield from ast.walk(part)
    elif statement is not None:
        yield from ast.walk(statement)


def _members(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield what is imported: modules and their members, or modules alone."""
    for alias in node.names:
        of = node.module if isinstance(node, ast.ImportFrom) else None
        yield (of, alias.name) if of is not None else (alias.name, "")


def _path(module: str) -> Path:
    """Give the file of a module, if it is one of tests."""
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _top(module: str) -> str:
    return module.split(".")[0]


def _marks(modules: Iterable[str]) -> frozenset[str]:
    names = list(modules)
    return frozenset(mark for mark, of in MARKS.items() if any(_is_in(n, of) for n in names))


def _is_in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _imported(file: Path, seen: set[Path]) -> Iterator[str]:
    for name in _names(file.read_text(encoding="utf-8")):
        yield name
        other = _path(name)
        if name.startswith(("tests.", "benchmarks.")) and other.exists() and other not in seen:
            seen.add(other)
            yield from _imported(other, seen)


@functools.cache
def _names(code: str) -> frozenset[str]:
    found = _IMPORT.findall(code)
    members = {f"{name}.{part.strip()}" for name, parts in found for part in parts.split(",")}
    return frozenset({name for name, _ in found} | members | {*_REFERENCE.findall(code)})


@functools.cache
def _absent() -> frozenset[str]:
    """List what the tests of some mark need and is not installed."""
    tops = {_top(module) for of in MARKS.values() for module in of}
    return frozenset(name for name in tops if find_spec(name) is None)


class _File(pytest.Module):
    """A file of tests, which is skipped if what it imports is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except Exception as error:
            if package := missing_import(error):
                # pytest leaves the half of it that was loaded, which other files would import.
                sys.modules.pop(".".join(self.path.relative_to(ROOT).with_suffix("").parts), None)
                pytest.skip(f"{package} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = _File.from_parent(parent, path=module_path)
    return module


def pytest_itemcollected(item: pytest.Item) -> None:
    declared = {mark.name for mark in item.iter_markers()}
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    for name in marks_of(item.path) | (MARKS.keys() & set(re.split(r"\W", parameters))):
        item.add_marker(name)
    if _absent() and isinstance(item, pytest.Function):
        names = (item.originalname, *item.fixturenames)
        needed = declared | needs_of(item.path, names, parameters)
        if package := missing_of(needed):
            item.add_marker(pytest.mark.skip(reason=f"{package} is not installed"))
