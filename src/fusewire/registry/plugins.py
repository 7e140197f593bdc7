"""The plugins of an entry-point group: read as metadata, imported on use, shared from then on.

One that fails to import is listed with its reason and stops nobody.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fusewire.contract.backend import API, Backend, BackendInfo
from fusewire.errors import EngineError, RegistryError
from fusewire.process.codec import write_record
from fusewire.process.guard import guarded

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Plugin:
    """What is known of a plugin without importing it."""

    name: str
    reference: str
    distribution: str
    version: str


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

    def describe(self, name: str) -> Plugin:
        """Tell where a plugin comes from; imports nothing."""
        point = self._point(name)
        dist = point.dist
        source = ("registered here", "") if dist is None else (dist.name, dist.version)
        return Plugin(name, point.value, *source)

    def register(self, name: str, reference: str) -> None:
        """Add a plugin by importable reference, "module:Class"; a name is taken once."""
        with self._lock:
            if name in self._points():
                raise RegistryError(
                    f"{name!r} is taken by {self._points()[name].value}. "
                    "Unregister it first, or choose another name."
                )
            self._points()[name] = EntryPoint(name, reference, self._group)

    def unregister(self, name: str) -> None:
        """Forget a plugin; programs that use it go on."""
        with self._lock:
            self._point(name)
            self._points().pop(name)
            self._made.pop(name, None)

    def get(self, name: str) -> Kind:
        """Make the plugin on first use, then share it."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._load(self._point(name))
            return self._made[name]

    def made(self, name: str) -> Kind | None:
        """Give the plugin if somebody used it; imports nothing."""
        return self._made.get(name)

    def working(self) -> list[Kind]:
        """Give every plugin that imports."""
        found = [(name, self.problem(name)) for name in self.names()]
        return [self.get(name) for name, problem in found if problem is None]

    def problem(self, name: str) -> str | None:
        """Say why a plugin cannot be used; None when it can."""
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
            made = guarded(point.name, "import", "", lambda: point.load()())
            info = guarded(point.name, "import", "", _info, made)
        except EngineError as error:
            if isinstance(cause := error.__cause__, ImportError):
                raise RegistryError(
                    f"{said} cannot be imported: {cause}. "
                    f"Install what it needs: pip install 'fusewire[{point.name}]'."
                ) from error
            raise RegistryError(
                f"{said} cannot be made: {error.reason} Report it to its authors."
            ) from error
        if not isinstance(made, self._kind):
            raise RegistryError(
                f"{said} is a {type(made).__name__}, "
                f"not a {self._kind.__name__}: docs/add-a-backend.md says what one must be."
            )
        if info is not None and info.api[0] != API[0]:
            raise RegistryError(_other_contract(point.name, info.api))
        return made


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
