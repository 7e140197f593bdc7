"""Backends, their extensions, and frontends by name; found by entry point, ours like anyone's.

The one mutable global of the package is ``REGISTRY``.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from dataclasses import dataclass

from fusewire.contract.backend import Backend, Device, Offer, Unavailable
from fusewire.contract.extension import GROUP, Extended, Extension, attach, detach
from fusewire.contract.frontend import Frontend
from fusewire.contract.region import answers_to
from fusewire.errors import EngineError, ExtensionWarning, RegistryError, SourceError
from fusewire.ir.graph import Graph
from fusewire.process.child import CAN_ISOLATE
from fusewire.process.guard import guarded
from fusewire.process.isolate import claim, probe
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import shared_pool
from fusewire.process.trial import backend_of
from fusewire.registry.capability import FLAGS, Capability, capabilities, record_of
from fusewire.registry.plugins import Plugins


@dataclass(frozen=True)
class Met:
    """A backend as it was found: how children find it, its devices, and its extensions."""

    name: str
    reference: str
    found: tuple[Device | Unavailable, ...]
    extensions: tuple[Extended, ...] = ()

    @property
    def devices(self) -> list[Device]:
        return [x for x in self.found if isinstance(x, Device)]

    @property
    def reasons(self) -> str:
        """Say why there is no device, or not more."""
        return " ".join(f"{x.reason} {x.fix}" for x in self.found if isinstance(x, Unavailable))

    @property
    def is_broken(self) -> bool:
        """Whether something that is installed does not work."""
        faults = [x for x in self.found if isinstance(x, Unavailable) and x.is_fault]
        return bool(faults) or any(x.problem for x in self.extensions)


@dataclass(frozen=True)
class BackendDevice:
    """A backend, by name, and a device that it runs on."""

    backend: str
    device: Device


class Registry:
    """What can run graphs and what can read sources. Safe under threads.

    A backend's devices are looked for in a child process, unless ``isolate`` is off, and so is
    the code of packages other than this one first imported there.
    """

    def __init__(self) -> None:
        # The contracts are abstract classes; mypy would have them concrete.
        self.backends: Plugins[Backend] = Plugins("fusewire.backends", Backend)  # type: ignore[type-abstract]
        self.frontends: Plugins[Frontend] = Plugins("fusewire.frontends", Frontend)  # type: ignore[type-abstract]
        self.extensions: Plugins[Extension] = Plugins(GROUP, Extension)  # type: ignore[type-abstract]
        self._default: str | None = None
        self._met: dict[str, Met] = {}
        self._failed: dict[str, tuple[Met, ChildLimits]] = {}
        self._started: dict[str, list[Extension]] = {}
        self._turns: dict[str, threading.RLock] = {}

    @property
    def default(self) -> str:
        """The backend that "auto" stands for: "auto" itself unless it was set."""
        return self._default or "auto"

    def set_default(self, name: str | None) -> None:
        """Let "auto" stand for one backend; None undoes it."""
        if name is not None:
            self.backends.describe(name)
        self._default = name

    def register(self, reference: str, name: str | None = None) -> str:
        """Add a backend, "module:Class", and give its name; without one, it is imported to ask."""
        if name is None:
            try:
                name = backend_of(reference).info.name
            except EngineError as error:
                raise RegistryError(str(error)) from error
        self.backends.register(name, reference)
        return name

    def unregister(self, name: str) -> None:
        """Forget a backend; programs that use it go on."""
        with self._turn(name):
            self._forget(name)
            self.backends.unregister(name)
            self._started.pop(name, None)

    def _forget(self, name: str) -> None:
        """Let a backend be met anew, in a child that holds nothing of it."""
        met = self._met.pop(name, None)
        self._failed.pop(name, None)
        own = self.backends.describe(name).reference
        for reference in {own, met.reference if met else own}:
            shared_pool().release(reference)

    def get(
        self, name: str, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> Backend:
        """Give a backend, with its extensions; instances are shared."""
        if not self._is_ours(name) or self._extensions_of(name):
            met = self.meet(name, isolate=isolate, limits=limits)
            if met.is_broken and not met.devices:
                raise RegistryError(f"{name!r} cannot be used. {met.reasons}")
        return self._made(name)

    def meet(
        self, name: str, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> Met:
        """Find the devices of a backend and start its extensions; found once, it is remembered.

        So is that something is wrong with it, until it is closed or given more time or memory:
        one that hangs is waited for once.
        """
        with self._turn(name):
            if (met := self._met.get(name)) is not None:
                return met
            failed, given = self._failed.get(name, (None, limits))
            if failed is not None and not _is_more(limits, given):
                return failed
            met = self._meeting(name, isolate, limits)
            if met.devices:
                self._met[name] = met
            elif met.is_broken:
                self._failed[name] = met, limits
            return met

    def _meeting(self, name: str, isolate: bool, limits: ChildLimits) -> Met:
        reference = self.backends.describe(name).reference
        try:
            here = not isolate or (self._is_ours(name) and self._made(name).info.trusted)
            found = self._look(name) if here else probe(reference, limits)
            if any(isinstance(x, Unavailable) and x.code == "raised" for x in found):
                # Nothing crashed: raised here, it says more.
                self._made(name)
            if not any(isinstance(x, Device) for x in found):
                return Met(name, reference, tuple(found))
            self._made(name)
        except RegistryError as error:
            return Met(name, reference, (Unavailable("broken", str(error), ""),))
        reports = []
        for label in self._extensions_of(name):
            report = self._extended(name, label, None if here else reference, limits)
            reports.append(report)
            if report.problem is None:
                reference += f"+{report.reference}"
        return Met(name, reference, tuple(found), tuple(reports))

    def _look(self, name: str) -> list[Device | Unavailable]:
        try:
            return guarded(name, "probe", "", self._made(name).probe)
        except EngineError as error:
            return [Unavailable(error.code, error.reason, error.advice)]

    def _extended(
        self, name: str, label: str, reference: str | None, limits: ChildLimits
    ) -> Extended:
        """Start one extension, where there is a reference first in a child."""
        own = self.extensions.describe(label).reference
        try:
            if reference is not None:
                found = probe(f"{reference}+{own}", limits)
                if not any(isinstance(x, Device) for x in found):
                    raise EngineError(Met(name, own, tuple(found)).reasons)
                shared_pool().release(reference)
            made = self.extensions.get(label)
            guarded(label, "import", "", attach, self._made(name), made)
        except (EngineError, RegistryError) as error:
            said = f"The extension {label} of {name} did not start: {error}"
            warnings.warn(f"{said} {name} runs without it.", ExtensionWarning, stacklevel=6)
            return Extended(label, own, (), str(error))
        self._started.setdefault(name, []).append(made)
        return Extended(label, own, tuple(made.lowerings))

    def _extensions_of(self, name: str) -> list[str]:
        return [x for x in self.extensions.names() if x.partition(".")[0] == name]

    def _is_ours(self, name: str) -> bool:
        return self.backends.describe(name).distribution == "fusewire"

    def _made(self, name: str) -> Backend:
        made = self.backends.get(name)
        if made.info.name != name:
            raise RegistryError(
                f"{name!r} calls itself {made.info.name!r}. Register it under that name."
            )
        return made

    def _turn(self, name: str) -> threading.RLock:
        return self._turns.setdefault(name, threading.RLock())

    def close(self, name: str) -> None:
        """Stop the extensions of a backend and close it; the next use meets it anew."""
        with self._turn(name):
            self._forget(name)
            backend = self.backends.made(name)
            if backend is None:
                return
            with contextlib.ExitStack() as stack:
                # In the other order, each whatever the others raise.
                stack.callback(guarded, name, "import", "", backend.close)
                for extension in self._started.pop(name, []):
                    stack.callback(guarded, name, "import", "", detach, backend, extension)

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

    def ranked(
        self, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> list[str]:
        """List backends that can be made, the most preferred first."""
        usable = []
        for name in self.backends.names():
            with contextlib.suppress(RegistryError):
                backend = self.get(name, isolate=isolate, limits=limits)
                usable.append((-backend.info.priority, name))
        return [name for _, name in sorted(usable)]

    def devices(self, *, isolate: bool = CAN_ISOLATE) -> list[BackendDevice]:
        """List every device of every backend, the most preferred backend first."""
        names = self.ranked(isolate=isolate)
        found = ((name, self.meet(name, isolate=isolate).devices) for name in names)
        return [BackendDevice(name, device) for name, devices in found for device in devices]

    def on_device(self, device: str) -> list[Backend]:
        """Find backends that run on a device, given by id, kind or power."""
        fits = [p.backend for p in self.devices() if answers_to(p.device, device)]
        return [self.get(name) for name in dict.fromkeys(fits)]

    def capabilities(self, name: str) -> dict[str, Capability]:
        """Tell of each of the twelve flags whether a backend was shown to hold it, and why not."""
        backend, reference = self.get(name), self.backends.describe(name).reference
        record = record_of(name, reference)
        return capabilities(record, backend.info.version, backend.lowerings is not None)

    def holds(self, name: str, *flags: str) -> bool:
        """Tell whether a backend was shown to hold all these flags."""
        if unknown := [flag for flag in flags if flag not in FLAGS]:
            raise RegistryError(
                f"No capability is called {', '.join(unknown)}. There are {', '.join(FLAGS)}."
            )
        return not flags or all(self.capabilities(name)[flag].is_held for flag in flags)

    def capable(self, *flags: str) -> list[Backend]:
        """Find backends that were shown to hold all these flags, the most preferred first."""
        return [self.get(name) for name in self.ranked() if self.holds(name, *flags)]

    def that_run(self, graph: Graph) -> list[Backend]:
        """Find backends that offer every node of a graph."""
        places = [place for place in self.devices() if self._offers_all(place, graph)]
        return [self.get(name) for name in dict.fromkeys(place.backend for place in places)]

    def _offers_all(self, place: BackendDevice, graph: Graph) -> bool:
        backend = self.get(place.backend)
        if backend.info.trusted:
            answers = backend.claim(graph, place.device)
        else:
            answers = claim(self.meet(place.backend).reference, graph, place.device)
        offered = {node for x in answers if isinstance(x, Offer) for node in x.nodes}
        return offered >= set(range(len(graph.nodes)))


def _is_more(limits: ChildLimits, than: ChildLimits) -> bool:
    return limits.seconds > than.seconds or limits.memory_bytes != than.memory_bytes


REGISTRY = Registry()

# The public functions are those of the one registry.
register, unregister, get = REGISTRY.register, REGISTRY.unregister, REGISTRY.get
list_backends, devices = REGISTRY.backends.names, REGISTRY.devices
set_default = REGISTRY.set_default
