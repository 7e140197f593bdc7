"""The plugins of an entry-point group: listed from metadata, imported on first use, then shared.

A plugin that fails to import is listed with the reason and does not affect others.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fusewire.contract.backend import API, Backend, BackendInfo
from fusewire.errors import EngineError, RegistryError, install_advice
from fusewire.process.codec import write_record
from fusewire.process.guard import guarded

Kind = TypeVar("Kind")
# What is told of a plugin, and the fields of its distribution that may have it, the best first.
_CREDITS = {
    "author": ("Author", "Author-email", "Maintainer", "Maintainer-email"),
    "license": ("License-Expression", "License"),
    "summary": ("Summary",),
    "homepage": ("Home-page", "Project-URL"),
    "requires_python": ("Requires-Python",),
}


@dataclass(frozen=True)
class Plugin:
    """What is known about a plugin without importing it."""

    name: str
    reference: str
    distribution: str
    version: str


class Plugins(Generic[Kind]):
    """The plugins of one entry-point group; each is created once and shared.

    An entry point names one of their kind, as a function is, or what returns one, as a class does.
    """

    def __init__(self, group: str, kind: type[Kind], found: Iterable[EntryPoint] | None = None):
        self._group = group
        self._kind = kind
        self._found = found
        self._entries: dict[str, EntryPoint] | None = None
        self._made: dict[str, Kind] = {}
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List the installed plugins; imports nothing."""
        return sorted(self._points())

    def describe(self, name: str) -> Plugin:
        """Say where a plugin comes from; imports nothing."""
        point = self._point(name)
        dist = point.dist
        source = ("registered here", "") if dist is None else (dist.name, dist.version)
        return Plugin(name, point.value, *source)

    def credits(self, name: str) -> dict[str, str]:
        """Say who wrote a plugin, under which licence, and where; imports nothing."""
        dist = self._point(name).dist
        if dist is None:
            return {}
        found = {}
        for ours, theirs in _CREDITS.items():
            texts = (dist.metadata[key] for key in theirs if key in dist.metadata)
            if text := next(filter(None, texts), None):
                # A licence may be the whole text of it.
                found[ours] = text.strip().splitlines()[0]
        return found

    def register(self, name: str, reference: str) -> None:
        """Add a plugin by its reference, "module:Class"; a name can be used once."""
        with self._lock:
            if name in self._points():
                raise RegistryError(
                    f"{name!r} is taken by {self._points()[name].value}. "
                    "Unregister it first, or choose another name."
                )
            self._points()[name] = EntryPoint(name, reference, self._group)

    def unregister(self, name: str) -> None:
        """Remove a plugin; programs that use it keep running."""
        with self._lock:
            self._point(name)
            self._points().pop(name)
            self._made.pop(name, None)

    def get(self, name: str) -> Kind:
        """Create the plugin on first use, then share it."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._load(self._point(name))
            return self._made[name]

    def made(self, name: str) -> Kind | None:
        """Return the plugin if it was used; imports nothing."""
        return self._made.get(name)

    def working(self) -> list[Kind]:
        """List every plugin that can be imported."""
        found = [(name, self.problem(name)) for name in self.names()]
        return [self.get(name) for name, problem in found if problem is None]

    def problem(self, name: str) -> str | None:
        """Say why a plugin cannot be used; None if it can."""
        try:
            self.get(name)
        except RegistryError as error:
            return str(error)
        return None

    def _points(self) -> dict[str, EntryPoint]:
        with self._lock:
            if self._entries is None:
                found = entry_points(group=self._group) if self._found is None else self._found
                self._entries = {}
                for point in found:
                    taken = self._entries.setdefault(point.name, point)
                    if taken.value != point.value:
                        raise RegistryError(
                            f"Two plugins of {self._group} are called {point.name!r}: "
                            f"{taken.value} and {point.value}. Uninstall one of them."
                        )
            return self._entries

    def _point(self, name: str) -> EntryPoint:
        point = self._points().get(name)
        if point is None:
            known = ", ".join(self.names()) or "none"
            close = difflib.get_close_matches(name, self.names(), 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise RegistryError(f"{self._group} has no {name!r}. It has {known}.{hint}")
        return point

    def _load(self, point: EntryPoint) -> Kind:
        said = f"{point.name!r} ({point.value})"
        try:
            made = guarded(point.name, "import", "", self._created, point)
            info = guarded(point.name, "import", "", _info, made)
        except EngineError as error:
            if isinstance(cause := error.__cause__, ImportError):
                if (cause.name or "").startswith("fusewire."):
                    raise RegistryError(
                        f"{said} imports {cause.name}, which this version of Fusewire does not "
                        f"have: the backend contract is {API[0]}.{API[1]}, in fusewire.backend. "
                        f"Install a newer release of {point.name!r}."
                    ) from error
                raise RegistryError(
                    f"{said} cannot be imported: {cause}. {_import_advice(point)}"
                ) from error
            raise RegistryError(
                f"{said} cannot be created: {error.reason} Report it to its authors."
            ) from error
        if not isinstance(made, self._kind):
            raise RegistryError(
                f"{said} is a {type(made).__name__}, "
                f"not a {self._kind.__name__}: see docs/add-a-backend.md."
            )
        if info is not None and info.api[0] != API[0]:
            raise RegistryError(_other_contract(point.name, info.api))
        return made

    def _created(self, point: EntryPoint) -> object:
        loaded = point.load()
        return loaded if isinstance(loaded, self._kind) else loaded()


def _import_advice(point: EntryPoint) -> str:
    """Say what to do about a module that is not there."""
    if point.module.partition(".")[0] == "fusewire":
        return install_advice(point.name)
    if point.dist is None:
        return 'Give a module that can be imported here: register("module:Class").'
    return f"Reinstall {point.dist.name} with what it needs."


def _other_contract(name: str, api: tuple[int, int]) -> str:
    is_older = api < API
    fix = f"Install a newer release of {name!r}" if is_older else "Upgrade Fusewire"
    return (
        f"{name!r} was written for version {api[0]}.{api[1]} of the backend contract; "
        f"this is version {API[0]}.{API[1]}. {fix}."
    )


def _info(made: object) -> BackendInfo | None:
    """Ask a backend who it is; everybody who lists backends relies on the answer."""
    if not isinstance(made, Backend):
        return None
    write_record(made.info, [])
    return made.info
