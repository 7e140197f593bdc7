"""Backends and frontends by name, found by entry point and imported when first used.

The one mutable global of the package is ``REGISTRY``. Ours come through the same door as
anyone's; one that fails to import is listed with its reason and stops nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fusewire.backend import Backend
from fusewire.errors import RegistryError, SourceError
from fusewire.frontend import Frontend

Kind = TypeVar("Kind")


class Plugins(Generic[Kind]):
    """The plugins of one entry-point group; instances are made once and shared."""

    def __init__(self, group: str, kind: type[Kind], found: Iterable[EntryPoint] | None = None):
        self._group = group
        self._kind = kind
        self._found = found
        self._entries: dict[str, EntryPoint] | None = None
        self._made: dict[str, Kind] = {}
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List what is installed; imports nothing."""
        return sorted(self._points())

    def get(self, name: str) -> Kind:
        """Make the plugin on first use, then share it."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._load(name)
            return self._made[name]

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

    def _load(self, name: str) -> Kind:
        point = self._points().get(name)
        if point is None:
            known = ", ".join(self.names()) or "none"
            raise RegistryError(f"No {self._group} is called {name!r}. Installed: {known}.")
        try:
            made: Any = point.load()()
        except ImportError as error:
            raise RegistryError(
                f"{name!r} ({point.value}) cannot be imported: {error}. "
                f"Install what it needs: pip install 'fusewire[{name}]'."
            ) from error
        if not isinstance(made, self._kind):
            raise RegistryError(
                f"{name!r} ({point.value}) is a {type(made).__name__}, "
                f"not a {self._kind.__name__}: see docs for what a plugin must be."
            )
        return made


class Registry:
    """What can run graphs and what can read sources."""

    def __init__(self) -> None:
        # The contracts are abstract classes; mypy would have them concrete.
        self.backends: Plugins[Backend] = Plugins("fusewire.backends", Backend)  # type: ignore[type-abstract]
        self.frontends: Plugins[Frontend] = Plugins("fusewire.frontends", Frontend)  # type: ignore[type-abstract]

    def frontend_for(self, source: object) -> Frontend:
        """Find the frontend that reads a source; ask each in the order of names."""
        for name in self.frontends.names():
            frontend = self.frontends.get(name)
            if frontend.accepts(source):
                return frontend
        raise SourceError(
            f"No frontend reads a {type(source).__name__}. Installed: "
            f"{', '.join(self.frontends.names())}. Give a Python function or a Graph."
        )


REGISTRY = Registry()
