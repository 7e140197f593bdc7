"""Backends and frontends by name, found by entry point and imported when first used.

The one mutable global of the package is ``REGISTRY``. Ours come through the same door as
anyone's; one that fails to import is listed with its reason and stops nobody.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fusewire.backend import API, Backend, Device, Offer, Unavailable
from fusewire.errors import RegistryError, SourceError
from fusewire.frontend import Frontend
from fusewire.ir.graph import Graph

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
        try:
            made: Any = point.load()()
        except ImportError as error:
            raise RegistryError(
                f"{point.name!r} ({point.value}) cannot be imported: {error}. "
                f"Install what it needs: pip install 'fusewire[{point.name}]'."
            ) from error
        except (AttributeError, TypeError) as error:
            raise RegistryError(
                f"{point.name!r} ({point.value}) cannot be made: {error}. Report it to its authors."
            ) from error
        if not isinstance(made, self._kind):
            raise RegistryError(
                f"{point.name!r} ({point.value}) is a {type(made).__name__}, "
                f"not a {self._kind.__name__}: docs/add-a-backend.md says what one must be."
            )
        if isinstance(made, Backend) and made.info.api[0] != API[0]:
            raise RegistryError(
                f"{point.name!r} speaks version {made.info.api} of the contract, "
                f"this is {API}. Install the release of it that fits."
            )
        return made


class Registry:
    """What can run graphs and what can read sources. Safe under threads."""

    def __init__(self) -> None:
        # The contracts are abstract classes; mypy would have them concrete.
        self.backends: Plugins[Backend] = Plugins("fusewire.backends", Backend)  # type: ignore[type-abstract]
        self.frontends: Plugins[Frontend] = Plugins("fusewire.frontends", Frontend)  # type: ignore[type-abstract]
        self._default: str | None = None

    @property
    def default(self) -> str:
        """The backend that "auto" stands for: "auto" itself unless it was set."""
        return self._default or "auto"

    def set_default(self, name: str | None) -> None:
        """Let "auto" stand for one backend; None undoes it."""
        if name is not None:
            self.backends.describe(name)
        self._default = name

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

    def devices(self) -> list[tuple[Backend, Device | Unavailable]]:
        """List every device of every backend, the most preferred backend first."""
        order = sorted(self.backends.working(), key=lambda b: (-b.info.priority, b.info.name))
        return [(backend, found) for backend in order for found in backend.probe()]

    def on_device(self, device: str) -> list[Backend]:
        """Find backends that run on a device, given by id or kind."""
        found = self.devices()
        fits = [b for b, d in found if isinstance(d, Device) and device in (d.id, d.kind)]
        return list(dict.fromkeys(fits))

    def that_run(self, graph: Graph) -> list[Backend]:
        """Find backends that offer every node of a graph."""
        whole = set(range(len(graph.nodes)))
        fits = []
        for backend, device in self.devices():
            if isinstance(device, Device) and _offered(backend, graph, device) >= whole:
                fits.append(backend)
        return list(dict.fromkeys(fits))


def _offered(backend: Backend, graph: Graph, device: Device) -> set[int]:
    answers: Sequence[object] = backend.claim(graph, device)
    return {place for x in answers if isinstance(x, Offer) for place in x.nodes}


REGISTRY = Registry()
