"""Read the source tree as syntax; nothing here imports what it reads.

Every check takes the folder that holds the package, so that a test can plant a fault in a copy.
"""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"
PACKAGE = "fusewire"


@dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` has the target `a.b.c`."""

    target: str
    line: int


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, and its path as a problem shows it.

    ``stamp`` tells versions of a file apart: a module is parsed once, however many checks read it.
    """

    root: Path
    path: Path
    stamp: tuple[int, int]

    @property
    def shown(self) -> str:
        return self.path.relative_to(self.root).as_posix()

    @property
    def name(self) -> str:
        return ".".join(self._parts[:-1] if self._is_package else self._parts)

    @property
    def parent(self) -> str:
        """Name the package that a relative import with one dot starts from."""
        return ".".join(self._parts[:-1])

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def _parts(self) -> list[str]:
        return list(self.path.relative_to(self.root).with_suffix("").parts)

    @property
    def _is_package(self) -> bool:
        return self.path.name == "__init__.py"


def modules(root: Path) -> list[Module]:
    return [_module(root, path) for path in sorted((root / PACKAGE).rglob("*.py"))]


def _module(root: Path, path: Path) -> Module:
    status = path.stat()
    return _kept(Module(root, path, (status.st_mtime_ns, status.st_size)))


@functools.cache
def _kept(module: Module) -> Module:
    """Return the first module that equals this one, with the tree that it may have."""
    return module


def imports(module: Module, tree: ast.AST | None = None) -> Iterator[Import]:
    """Yield every import at any depth, also under TYPE_CHECKING and by `import_module("name")`."""
    for node in ast.walk(module.tree if tree is None else tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            start = _start(module, node)
            for alias in node.names:
                yield Import(start if alias.name == "*" else f"{start}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield Import(name, node.lineno)


@functools.cache
def imports_when_loaded(module: Module) -> tuple[Import, ...]:
    """List the imports that Python follows while it loads the module."""
    return tuple(_imported(module, _loaded(module.tree)))


@functools.cache
def imports_when_run(module: Module) -> tuple[Import, ...]:
    """List the imports that Python follows at any time: not those for type checkers only."""
    return tuple(_imported(module, _executed(module.tree)))


def _imported(module: Module, nodes: Iterator[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(module, node)


def functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function at any depth with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{node.name}" if prefix else node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, name)


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def called_name(node: ast.Call) -> str:
    """Give the last word of what is called: `load` for `np.load(...)`."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes at any depth, without what only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from _executed(node)


def _loaded(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is executed outside functions."""
    inside = {
        id(below)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for below in ast.walk(node)
    }
    return (node for node in _executed(tree) if id(node) not in inside)


def _start(module: Module, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = module.parent.split(".")
    above = package[: len(package) - (node.level - 1)]
    return ".".join([*above, node.module] if node.module else above)


def _imported_by_call(node: ast.Call) -> str | None:
    if called_name(node) in ("import_module", "__import__") and node.args:
        match node.args[0]:
            case ast.Constant(value=str(name)) if not name.startswith("."):
                return name
    return None
