"""What tests need beyond NumPy: a mark for each, and a skip where it is not installed.

The marks of a test follow from what its file imports, also by way of other files of tests, and from
the names of its parameters: nobody writes them. `pytest -m "not torch"` leaves out what needs
PyTorch; where PyTorch is not installed, the same tests are skipped, and counted.

Where something is not installed, a test that fails is skipped too if it names what is missing: an
engine by its name, or any of its marks. Where all is installed, nothing is skipped because of this.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
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
# The names of engines, and the package that each needs.
ENGINES = {
    "inductor": "torch",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
    # Of tests/plugin.
    "torch-eager": "fusewire_torch",
    "triton": "triton",
    "webgpu": "wgpu",
    "xla": "jax",
}
_IMPORT = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+([\w.]+)(?:[ \t]+import[ \t]+([\w, ]+))?", re.MULTILINE
)
# A backend of tests, as it is registered.
_REFERENCE = re.compile(r'"(tests(?:\.\w+)+):')
_NOT_INSTALLED = re.compile(r"(?:needs the package|No module named) '?(\w+)")


@functools.cache
def marks_of(file: Path) -> frozenset[str]:
    """List what the tests of a file need, as far as imports tell."""
    names = imported_names(file)
    return frozenset(mark for mark, of in MARKS.items() if any(_is_in(n, of) for n in names))


@functools.cache
def imported_names(file: Path) -> frozenset[str]:
    """List what a file of tests imports, also by way of other files of tests."""
    return frozenset(_imported(file, {file}))


def missing(error: BaseException | None) -> str | None:
    """Name the package that an error, or a cause of it, says is not installed; None without one."""
    while error is not None:
        found = _NOT_INSTALLED.search(str(error))
        if found and found[1] in _absent():
            return found[1]
        error = error.__cause__ or error.__context__
    return None


def missing_for(file: Path, test: str, marks: Iterable[str], parameters: str) -> str | None:
    """Name a package that is not installed, of those that a test names; None if all are there."""
    if not _absent():
        return None
    for mark in marks:
        for module in MARKS.get(mark, ()):
            if (package := module.split(".")[0]) in _absent():
                return package
    text = "\n".join([parameters, *_strings(file, test)])
    for engine, package in ENGINES.items():
        if package in _absent() and re.search(rf"(?<![\w.]){engine}(?!\w)", text):
            return package
    return None


def _strings(file: Path, test: str) -> Iterator[str]:
    """Yield the texts in a test, and in what it uses of its own file."""
    defined = dict[str, ast.stmt]()
    left = [test]
    for top in ast.parse(file.read_text(encoding="utf-8")).body:
        for name in _defined(top):
            defined[name] = top
            if isinstance(top, ast.FunctionDef) and "autouse" in map(_keyword, ast.walk(top)):
                left.append(name)
    while left:
        statement = defined.pop(left.pop(), None)
        for node in ast.walk(statement) if statement else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
                # Fixtures may be named by texts.
                left.append(node.value)
            elif isinstance(node, ast.Name):
                left.append(node.id)
            elif isinstance(node, ast.arg):
                left.append(node.arg)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [part for x in targets if x is not None for part in ast.walk(x)]
    return [part.id for part in names if isinstance(part, ast.Name)]


def _keyword(node: ast.AST) -> str | None:
    return node.arg if isinstance(node, ast.keyword) else None


def _is_in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _imported(file: Path, seen: set[Path]) -> Iterator[str]:
    for name in _names(file):
        yield name
        other = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith(("tests.", "benchmarks.")) and other.exists() and other not in seen:
            seen.add(other)
            yield from _imported(other, seen)


@functools.cache
def _names(file: Path) -> frozenset[str]:
    text = file.read_text(encoding="utf-8")
    found = _IMPORT.findall(text)
    members = {f"{name}.{part.strip()}" for name, parts in found for part in parts.split(",")}
    return frozenset({name for name, _ in found} | members | {*_REFERENCE.findall(text)})


@functools.cache
def _absent() -> frozenset[str]:
    """List what the tests of some mark need and is not installed."""
    tops = {*ENGINES.values(), *(name.split(".")[0] for of in MARKS.values() for name in of)}
    return frozenset(name for name in tops if find_spec(name) is None)


class _File(pytest.Module):
    """A file of tests, which is skipped if what it imports is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return list(super().collect())
        except Exception as error:
            if package := missing(error):
                # pytest leaves the half of it that was loaded, which other files would import.
                sys.modules.pop(".".join(self.path.relative_to(ROOT).with_suffix("").parts), None)
                pytest.skip(f"{package} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    module: pytest.Module = _File.from_parent(parent, path=module_path)
    return module


def pytest_itemcollected(item: pytest.Item) -> None:
    names = set(marks_of(item.path))
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        names |= MARKS.keys() & set(re.split(r"\W", item.callspec.id))
    for name in names:
        item.add_marker(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from _skipped(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from _skipped(item)


def _skipped(item: pytest.Item) -> Iterator[None]:
    """Skip a test that fails because what it needs is not installed."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        if package := missing(error) or _missing_for(item):
            pytest.skip(f"{package} is not installed")
        raise


def _missing_for(item: pytest.Item) -> str | None:
    if not isinstance(item, pytest.Function):
        return None
    marks = [mark.name for mark in item.iter_markers()]
    parameters = item.callspec.id if hasattr(item, "callspec") else ""
    return missing_for(item.path, item.originalname, marks, parameters)
