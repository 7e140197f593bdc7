"""The registry of a process: backends, extensions, frontends, searches, found by entry point."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Self

from fusewire.contract.backend import Backend, Device, Offer, Unavailable
from fusewire.contract.devices import CPU, on_device, preference
from fusewire.contract.extension import GROUP, Extended, Extension, attach, detach
from fusewire.contract.frontend import Frontend
from fusewire.contract.sources import unread
from fusewire.errors import (
    EngineError,
    ExtensionWarning,
    FusewireError,
    RegistryError,
    SourceError,
    warn_outside,
)
from fusewire.ir.graph import Graph
from fusewire.process.child import CAN_ISOLATE
from fusewire.process.forks import in_forked_child, without_forks
from fusewire.process.guard import guarded
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import shared_pool
from fusewire.registry.met import BackendDevice, Met
from fusewire.registry.plugins import Plugins

if TYPE_CHECKING:
    from fusewire.registry.capability import Capability
    from fusewire.registry.lowering_check import ExtendedBackend

# For how many seconds a failure that may be the machine's is kept.
_MOMENT = 300.0


class Registry:
    """The backends that run graphs and the frontends that read sources. Thread-safe.

    Unless ``isolate`` is off, a child process probes the devices of a backend, and is the first to
    import the code of other packages. As a context manager, it closes its backends at the end of
    the outermost ``with``.
    """

    def __init__(self) -> None:
        # The contracts are abstract classes; mypy wants concrete ones.
        self.backends: Plugins[Backend] = Plugins("fusewire.backends", Backend)  # type: ignore[type-abstract]
        self.frontends: Plugins[Frontend] = Plugins("fusewire.frontends", Frontend)  # type: ignore[type-abstract]
        self.extensions: Plugins[Extension] = Plugins(GROUP, Extension)  # type: ignore[type-abstract]
        self.searches: Plugins[FunctionType] = Plugins("fusewire.searches", FunctionType)
        self._default: str | None = None
        self._met: dict[str, Met] = {}
        # What the last probe found, which is asked again unless it is one of the above or below.
        self._latest: dict[str, Met] = {}
        # With the limits that were given, and the time after which it is asked again.
        self._failed: dict[str, tuple[Met, ChildLimits, float]] = {}
        self._started: dict[str, list[Extension]] = {}
        self._turns: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()
        self._entered = 0

    def __enter__(self) -> Self:
        with self._lock:
            self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            is_last = self._entered == 0
        if is_last:
            self.close()

    @property
    def default(self) -> str:
        """The backend that "auto" stands for; "auto" itself unless it was set."""
        return self._default or "auto"

    def set_default(self, name: str | None) -> None:
        """Let "auto" stand for one backend; None undoes it."""
        if name is not None:
            self.backends.describe(name)
        self._default = name

    def register(self, reference: str, name: str | None = None) -> str:
        """Add a backend "module:Class" and return its name; imports it if no name is given."""
        if not isinstance(reference, str):
            raise RegistryError(_not_a_reference(reference))
        if name is None:
            from fusewire.process.trial import backend_of

            try:
                name = backend_of(reference).info.name
            except EngineError as error:
                raise RegistryError(str(error)) from error
        self.backends.register(name, reference)
        return name

    def unregister(self, name: str) -> None:
        """Remove a backend; programs that use it keep running."""
        with self._turn(name):
            self._forget(name)
            self.backends.unregister(name)
            self._started.pop(name, None)

    def _forget(self, name: str) -> None:
        """Discard what is known about a backend, and its child."""
        met = self._met.pop(name, None)
        self._failed.pop(name, None)
        self._latest.pop(name, None)
        own = self.backends.describe(name).reference
        for reference in {own, met.reference if met else own}:
            shared_pool().release(reference)

    def get(
        self, name: str, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> Backend:
        """Return a backend with its extensions; instances are shared."""
        if not self._is_ours(name) or self._extensions_of(name):
            met = self.meet(name, isolate=isolate, limits=limits)
            if met.is_broken and not met.devices:
                raise RegistryError(f"{name!r} cannot be used. {met.reasons}")
        return self._made(name)

    def meet(
        self, name: str, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> Met:
        """Probe the devices of a backend and start its extensions; the result is kept.

        A failure is kept too, until the backend is closed or given more time or memory: a backend
        that hangs is waited for once. One that may be the machine's is kept for a few minutes.
        """
        with self._turn(name):
            if (met := self._met.get(name)) is not None:
                return met
            failed, given, until = self._failed.get(name, (None, limits, 0.0))
            is_over = time.monotonic() > until
            if failed is not None and not is_over and not _is_more(limits, given):
                return failed
            met = self._latest[name] = self._meeting(name, isolate, limits)
            if met.devices:
                self._met[name] = met
            elif met.is_broken:
                until = time.monotonic() + _MOMENT if met.is_momentary else math.inf
                self._failed[name] = met, limits, until
            return met

    def known(self, name: str) -> Met | None:
        """Return what the last probe found, if there was one; waits for nothing."""
        return self._latest.get(name)

    def meet_ahead(self, name: str | None, limits: ChildLimits = ChildLimits()) -> None:
        """Start a child for a backend, and probe it while the caller is busy.

        Without a name, it is the most preferred of ours.
        """
        name = name or self.first_of_ours()
        if name is None:
            return
        with contextlib.suppress(FusewireError):
            if name not in self._met and self._is_ours(name) and not self._made(name).info.trusted:
                shared_pool().prepare(self.backends.describe(name).reference)
        self.meet_in_thread([name], limits)

    def meet_in_thread(self, names: Sequence[str], limits: ChildLimits = ChildLimits()) -> None:
        """Probe backends in order while the caller is busy, and report nothing."""
        threading.Thread(target=self._meet_quietly, args=(names, limits), daemon=True).start()

    def _meet_quietly(self, names: Sequence[str], limits: ChildLimits) -> None:
        with without_forks():
            import_module("fusewire.process.isolate")
        for name in names:
            # The caller who wants this backend gets the same error, and reports it.
            with contextlib.suppress(FusewireError):
                self.meet(name, limits=limits)

    def _meeting(self, name: str, isolate: bool, limits: ChildLimits) -> Met:
        from fusewire.process.isolate import probe

        reference = self.backends.describe(name).reference
        try:
            here = not isolate or (self._is_ours(name) and self._made(name).info.trusted)
            found = self._look(name) if here else probe(reference, limits)
            if any(isinstance(x, Unavailable) and x.code == "raised" for x in found):
                # Nothing crashed: the error raised here says more.
                self._made(name)
            if not any(isinstance(x, Device) for x in found):
                return Met(name, reference, tuple(found))
            self._made(name)
        except RegistryError as error:
            return Met(name, reference, (Unavailable("broken", str(error), ""),))
        reports = []
        for label in self._extensions_of(name):
            device = next(x for x in found if isinstance(x, Device))
            report = self._extended(name, label, reference, device, not here, limits)
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
        self,
        name: str,
        label: str,
        reference: str,
        device: Device,
        isolate: bool,
        limits: ChildLimits,
    ) -> Extended:
        """Start one extension, first in a child if it is isolated, and check what it brings."""
        from fusewire.process.isolate import probe
        from fusewire.registry.lowering_check import ExtendedBackend

        own = self.extensions.describe(label).reference
        try:
            if isolate:
                found = probe(f"{reference}+{own}", limits)
                if not any(isinstance(x, Device) for x in found):
                    raise EngineError(Met(name, own, tuple(found)).reasons)
                shared_pool().release(reference)
            made = self.extensions.get(label)
            place = ExtendedBackend(f"{reference}+{own}", self._made(name), device, limits, isolate)
            if isolate:
                _check(place, made)
            guarded(label, "import", "", attach, self._made(name), made)
            if not isolate:
                self._check_attached(label, place, made)
        except (EngineError, RegistryError) as error:
            shared_pool().release(f"{reference}+{own}")
            said = f"The extension {label} of {name} did not start: {error}"
            warn_outside(f"{said} {name} runs without it.", ExtensionWarning)
            return Extended(label, own, (), str(error))
        self._started.setdefault(name, []).append(made)
        return Extended(label, own, tuple(made.lowerings))

    def _check_attached(self, label: str, place: ExtendedBackend, extension: Extension) -> None:
        try:
            _check(place, extension)
        except (EngineError, RegistryError):
            guarded(label, "import", "", detach, place.backend, extension)
            raise

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

    def forget_turns(self) -> None:
        """Free all turns in a forked process, which has no threads that could end them."""
        self._turns, self._lock = {}, threading.Lock()

    def close(self, name: str | None = None) -> None:
        """Stop the extensions of a backend and close it; without a name, close every backend.

        Safe to repeat. The next use opens a backend again.

        >>> import fusewire as fw
        >>> fw.close("reference")
        """
        if name is not None:
            self._close(name)
            return
        with contextlib.ExitStack() as stack:
            # Each, whatever closing another raises.
            for used in self.backends.names():
                stack.callback(self._close, used)

    def _close(self, name: str) -> None:
        with self._turn(name):
            self._forget(name)
            backend = self.backends.made(name)
            if backend is None:
                return
            with contextlib.ExitStack() as stack:
                # In reverse order, each whatever the others raise.
                stack.callback(guarded, name, "import", "", backend.close)
                for extension in self._started.pop(name, []):
                    stack.callback(guarded, name, "import", "", detach, backend, extension)

    def frontend_for(self, source: object) -> Frontend:
        """Find the frontend that reads a source, in the order of names."""
        for name in self.frontends.names():
            frontend = self.frontends.get(name)
            if frontend.accepts(source):
                return frontend
        raise SourceError(f"{unread(source)} Installed: {', '.join(self.frontends.names())}.")

    def ranked(
        self, *, isolate: bool = CAN_ISOLATE, limits: ChildLimits = ChildLimits()
    ) -> list[str]:
        """List usable backends, the most preferred first."""
        usable = []
        for name in self.backends.names():
            with contextlib.suppress(RegistryError):
                backend = self.get(name, isolate=isolate, limits=limits)
                usable.append((-backend.info.priority, name))
        return [name for _, name in sorted(usable)]

    def first_of_ours(self) -> str | None:
        """Return the most preferred of our backends whose engine is installed; probes nothing."""
        usable = []
        for name in filter(self._is_ours, self.backends.names()):
            with contextlib.suppress(RegistryError):
                info = self._made(name).info
                if info.is_installed and not info.trusted:
                    usable.append((-info.priority, name))
        return min(usable)[1] if usable else None

    def devices(self, *, isolate: bool = CAN_ISOLATE) -> list[BackendDevice]:
        """List every device of every backend, the most preferred backend first."""
        names = self.ranked(isolate=isolate)
        found = ((name, self.meet(name, isolate=isolate).devices) for name in names)
        return [BackendDevice(name, device) for name, devices in found for device in devices]

    def device(self, name: str, *, isolate: bool = CAN_ISOLATE) -> BackendDevice:
        """Return the device of an id or a kind, with the most preferred backend that runs on it.

        >>> import fusewire as fw
        >>> fw.device("cpu").device.kind
        'cpu'
        """
        listed = self.devices(isolate=isolate)
        places = on_device(listed, name, lambda place: place.device)
        if (first := next(places, None)) is not None:
            return first
        have = ", ".join(dict.fromkeys(place.device.id for place in listed)) or "none"
        raise RegistryError(
            f"No backend here runs on {name!r}. Devices: {have}. "
            "`fusewire doctor` says what the others lack."
        )

    def best_device(self, *, isolate: bool = CAN_ISOLATE) -> BackendDevice:
        """Return the device of the most preferred kind; nothing is measured.

        A software device counts as a CPU, and one that interprets kernels comes last. Among equals
        the most preferred backend decides. `fusewire devices --measure` compares throughput.
        """
        listed = self.devices(isolate=isolate)
        if not listed:
            raise RegistryError("No backend has a device here. `fusewire doctor` says why.")
        return min(listed, key=lambda place: _order(place.device))

    def on_device(self, device: str) -> list[Backend]:
        """List backends that run on a device, given by id, kind or power."""
        found = on_device(self.devices(), device, lambda place: place.device)
        return [self.get(name) for name in dict.fromkeys(place.backend for place in found)]

    def capabilities(self, name: str) -> dict[str, Capability]:
        """Return the twelve capability flags of a backend, with reasons."""
        from fusewire.registry.capability import capabilities, record_of

        backend, reference = self.get(name), self.backends.describe(name).reference
        record = record_of(name, reference)
        return capabilities(record, backend.info.version, backend.is_extensible)

    def holds(self, name: str, *flags: str) -> bool:
        """Return whether a backend holds all these flags."""
        from fusewire.registry.capability import FLAGS

        if unknown := [flag for flag in flags if flag not in FLAGS]:
            raise RegistryError(
                f"Unknown capability: {', '.join(unknown)}. Known: {', '.join(FLAGS)}."
            )
        return not flags or all(self.capabilities(name)[flag].is_held for flag in flags)

    def capable(self, *flags: str) -> list[Backend]:
        """List backends that hold all these flags, the most preferred first."""
        return [self.get(name) for name in self.ranked() if self.holds(name, *flags)]

    def that_run(self, graph: Graph) -> list[Backend]:
        """List backends that offer to run every node of a graph."""
        places = [place for place in self.devices() if self._offers_all(place, graph)]
        return [self.get(name) for name in dict.fromkeys(place.backend for place in places)]

    def _offers_all(self, place: BackendDevice, graph: Graph) -> bool:
        backend = self.get(place.backend)
        if backend.info.trusted:
            answers = backend.claim(graph, place.device)
        else:
            from fusewire.process.isolate import claim

            answers = claim(self.meet(place.backend).reference, graph, place.device)
        offered = {node for x in answers if isinstance(x, Offer) for node in x.nodes}
        return offered >= set(range(len(graph.nodes)))


def _not_a_reference(given: object) -> str:
    """Say how to name a class: children import it, so the object itself is of no use to them."""
    kind = given if isinstance(given, type) else type(given)
    named = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__":
        return (
            f"register was given {named.partition(':')[2]}, which is defined in the script that "
            "runs. Engines start in child processes, which import them by name: put the class "
            'into a module, and register("module:Class").'
        )
    return f"register was given a {type(given).__name__}. Give its name: register({named!r})."


def _check(place: ExtendedBackend, extension: Extension) -> None:
    """Compare what an extension brings with the meaning of the ops, once."""
    from fusewire.registry.lowering_check import wrong_lowering

    name = place.backend.info.name
    problem = guarded(name, "run", "samples", wrong_lowering, place, extension)
    if problem is not None:
        raise RegistryError(problem)


def _order(device: Device) -> tuple[bool, int]:
    kind = CPU if device.is_software else device.kind
    return bool(device.facts.get("interprets")), preference(kind)


def _is_more(limits: ChildLimits, than: ChildLimits) -> bool:
    return limits.seconds > than.seconds or limits.memory_bytes != than.memory_bytes


REGISTRY = Registry()
in_forked_child(REGISTRY.forget_turns)
