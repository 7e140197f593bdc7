"""Ops of packages outside the tree: declared there, found by entry point or registered by name.

A package makes one ``OpPackage``, whose name is the namespace of its ops: ``my_ops.gelu2``. The
entry point ``my_ops`` of the group ``fusewire.ops`` names that object, so a name in a graph leads
to the one package that has to be imported. Only installed packages, and references that the program
itself registers, are ever imported: nothing that is read from a file leads to an import.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from fusewire.errors import FusewireError, RegistryError, UnknownOpError
from fusewire.ir.graph import Graph

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from fusewire.ops.declare import Op
    from fusewire.ops.package import OpPackage

GROUP = "fusewire.ops"
PAGE = "See docs/own-ops.md."
_REFERENCE = re.compile(r"[\w.]+:[\w.]+")
# What the code of a package may raise while it is imported; FusewireErrors are sentences already.
_RAISED = (
    ImportError,
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    OSError,
    SyntaxError,
)


def holds_outside_ops(graph: Graph) -> bool:
    """Tell whether a graph has ops of packages: an engine that takes those has kernels for them."""
    return any("." in node.op for part in graph.walk() for node in part.nodes)


@final
class OutsideOps:
    """What this process knows of ops outside the tree. Thread-safe."""

    def __init__(self, found: Iterable[EntryPoint] | None = None) -> None:
        self._found = found
        self._points: dict[str, EntryPoint] | None = None
        self._packages: dict[str, OpPackage] = {}
        self._registered: dict[str, Op[Any]] = {}
        self._references: dict[str, str] = {}
        self._lock = threading.RLock()

    # -- what is there

    def get(self, name: str) -> Op[Any]:
        """Find an op by its full name; UnknownOpError says which package is missing."""
        with self._lock:
            if (op := self._registered.get(name)) is not None:
                return op
            namespace = name.partition(".")[0]
            point = self._entries().get(namespace)
            if point is None:
                raise UnknownOpError(
                    f"There is no op {name!r}: no installed package has the entry point "
                    f"{namespace!r} of {GROUP}. Install the package that declares it, or "
                    "fw.register_op it."
                )
            ops = self._package(point).ops
            if name not in ops:
                raise UnknownOpError(
                    f"There is no op {name!r}: {_source(point)} has "
                    f"{', '.join(sorted(ops)) or 'none'}. Install the release that has it."
                )
            return ops[name]

    def all(self) -> dict[str, Op[Any]]:
        """Map full names to all ops of packages that can be imported."""
        with self._lock:
            found = dict(self._registered)
            for point in self._entries().values():
                if self.problem(point.name) is None:
                    found |= self._package(point).ops
            return dict(sorted(found.items()))

    def packages(self) -> list[str]:
        """List the namespaces of installed packages; imports nothing."""
        return sorted(self._entries())

    def problem(self, namespace: str) -> str | None:
        """Say why an installed package cannot be used; None if it can."""
        try:
            self._package(self._entries()[namespace])
        except FusewireError as error:
            return str(error)
        return None

    def modules(self) -> list[str]:
        """List the modules of packages and ops that this process has used."""
        points = [self._entries()[name].value for name in self._packages]
        return sorted({x.partition(":")[0] for x in (*points, *self._references.values())})

    def module(self, name: str) -> str:
        """Name the module that has an op, or the package that declares it."""
        reference = self._references.get(name)
        if reference is None:
            reference = self._entries()[name.partition(".")[0]].value
        return reference.partition(":")[0]

    def by_onnx(self, domain: str, op_type: str) -> Op[Any] | None:
        """Find the newest op that a node of an ONNX domain stands for."""
        named = [op for op in self.all().values() if op.onnx == f"{domain}:{op_type}"]
        return max(named, key=lambda op: op.version, default=None)

    # -- what a program registers

    def register(self, declaration: Op[Any] | str) -> Op[Any]:
        """Add an op, the declaration itself or "module:name", for this process and its children.

        Children import it by its name, so it has to be an attribute of a module.
        """
        reference = declaration if isinstance(declaration, str) else _reference(declaration)
        op = _imported(reference)
        from fusewire.ops.declare import Op

        if not isinstance(op, Op):
            raise RegistryError(f"{reference} is a {type(op).__name__}, not a declared op. {PAGE}")
        if "." not in op.name:
            raise RegistryError(
                f"{op.name!r} has no namespace. Declare it with OpPackage, whose name comes first: "
                f"my_ops.{op.name}."
            )
        with self._lock:
            taken = self._registered.get(op.name)
            point = self._entries().get(op.name.partition(".")[0])
            if taken is None and point is not None:
                taken = self._package(point).ops.get(op.name)
            if taken is not None and taken is not op:
                raise RegistryError(
                    f"{op.name} is taken by another declaration. Choose another name, or raise its "
                    "version."
                )
            self._registered[op.name] = op
            self._references[op.name] = reference
        return op

    def unregister(self, name: str) -> None:
        """Remove an op that was registered; graphs that hold it cannot be compiled from then on."""
        with self._lock:
            if name not in self._registered:
                known = ", ".join(self._registered) or "none"
                raise UnknownOpError(f"{name!r} was not registered. Registered: {known}.")
            del self._registered[name], self._references[name]

    def references(self) -> list[str]:
        """List what was registered, for another process to know."""
        return list(self._references.values())

    def know(self, references: Sequence[str]) -> None:
        """Register what the process that started this one has registered."""
        known = set(self._references.values())
        for reference in references:
            if reference not in known:
                self.register(reference)

    # -- packages

    def _entries(self) -> dict[str, EntryPoint]:
        with self._lock:
            if self._points is None:
                from importlib.metadata import entry_points

                found = entry_points(group=GROUP) if self._found is None else self._found
                points: dict[str, EntryPoint] = {}
                for point in found:
                    taken = points.setdefault(point.name, point)
                    if taken.value != point.value:
                        raise RegistryError(
                            f"Two packages have ops called {point.name}: {_source(taken)} and "
                            f"{_source(point)}. Uninstall one of them."
                        )
                self._points = points
            return self._points

    def _package(self, point: EntryPoint) -> OpPackage:
        with self._lock:
            if point.name not in self._packages:
                self._packages[point.name] = _loaded(point)
            return self._packages[point.name]


OUTSIDE = OutsideOps()
register_op = OUTSIDE.register


def _loaded(point: EntryPoint) -> OpPackage:
    try:
        made = point.load()
    except FusewireError as error:
        raise RegistryError(f"{_source(point)} cannot be used. {error}") from error
    except _RAISED as error:
        raise RegistryError(
            f"{_source(point)} cannot be imported: {type(error).__name__}: {error}. Reinstall it, "
            "or report it to its authors."
        ) from error
    from fusewire.ops.package import OpPackage

    if not isinstance(made, OpPackage):
        raise RegistryError(
            f"{_source(point)} is a {type(made).__name__}, not an OpPackage. {PAGE}"
        )
    if made.name != point.name:
        raise RegistryError(
            f"{_source(point)} calls itself {made.name!r}, and its entry point {point.name!r}. "
            "They must be the same."
        )
    return made


def _source(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"{point.name} ({point.value}{package})"


def _imported(reference: str) -> object:
    if not _REFERENCE.fullmatch(reference):
        raise RegistryError(f"{reference!r} does not have the form module:name.")
    module, _, path = reference.partition(":")
    try:
        found: object = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise RegistryError(f"{reference} cannot be imported: {error}.") from error
    return found


def _reference(op: object) -> str:
    """Find the module that has an op as an attribute: children import it from there."""
    from fusewire.ops.declare import Op

    if not isinstance(op, Op):
        raise RegistryError(
            f"register_op was given a {type(op).__name__}, not a declared op. {PAGE}"
        )
    functions = (op.rule, op.samples, op.reference, op.expand)
    modules = dict.fromkeys(getattr(function, "__module__", None) for function in functions)
    for module in modules:
        held = vars(sys.modules[module]) if module in sys.modules else {}
        for name, value in held.items():
            if value is op and module != "__main__":
                return f"{module}:{name}"
    raise RegistryError(
        f"{op.name} is not an attribute of a module that other processes can import, such as the "
        'script that runs. Put it into a module, and register_op("module:name").'
    )
