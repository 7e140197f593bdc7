"""What a probe found of a backend."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.contract.backend import Device, Unavailable
from fusewire.contract.extension import Extended

# Failures that may be the machine's.
_MOMENTARY = ("killed", "not-started")


@dataclass(frozen=True)
class Met:
    """A backend after probing: its reference for children, its devices and extensions."""

    name: str
    reference: str
    found: tuple[Device | Unavailable, ...]
    extensions: tuple[Extended, ...] = ()

    @property
    def devices(self) -> list[Device]:
        return [x for x in self.found if isinstance(x, Device)]

    @property
    def reasons(self) -> str:
        """The reasons why devices are missing."""
        return " ".join(f"{x.reason} {x.fix}" for x in self.found if isinstance(x, Unavailable))

    @property
    def is_broken(self) -> bool:
        """Whether something that is installed is broken."""
        faults = [x for x in self.found if isinstance(x, Unavailable) and x.is_fault]
        return bool(faults) or any(x.problem for x in self.extensions)

    @property
    def is_missing(self) -> bool:
        """Whether nothing but a package is missing."""
        codes = {x.code for x in self.found if isinstance(x, Unavailable)}
        return not self.devices and codes == {"not-installed"}

    @property
    def is_momentary(self) -> bool:
        """Whether it may be usable later: its process was killed, or did not start."""
        return any(isinstance(x, Unavailable) and x.code in _MOMENTARY for x in self.found)


@dataclass(frozen=True)
class BackendDevice:
    """A backend, by name, and a device that it runs on."""

    backend: str
    device: Device
