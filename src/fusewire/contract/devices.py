"""Names of devices, the same for every backend, and which of them are the same hardware.

An id is a kind, a number, and a provider where one backend reaches one device in several ways:
``cpu``, ``cuda:0``, ``cuda:0:tensorrt``, ``cpu:openvino``. The number of the first CPU is left out,
and so is the provider that a backend uses unless it is told otherwise. Must never name a backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from fusewire.contract.backend import Device

T = TypeVar("T")

CPU = "cpu"
# Kinds of devices, the most preferred first. What computes in half precision unless it is told
# otherwise comes after the CPU: nobody gets that without asking.
KINDS = (
    "cuda",
    "tpu",
    "metal",
    "rocm",
    "directml",
    "gpu",
    "webgpu",
    CPU,
    "coreml",
    "npu",
)
# Other names of the same kinds.
ALIASES = {"hip": "rocm", "dml": "directml", "mps": "metal"}
# "gpu" is the kind of a GPU whose library has no name of its own, and stands for any GPU.
ANY_GPU = "gpu"
GPUS = ("cuda", "rocm", "metal", "directml", ANY_GPU, "webgpu")
# Facts that tell one piece of hardware from another, the most reliable first.
HARDWARE_FACTS = ("uuid", "luid", "pci_bus_id")
_HOST = ("host", CPU)


@dataclass(frozen=True)
class DeviceName:
    """The parts of an id: ``cuda:0:tensorrt``. ``provider`` is empty for the default one."""

    kind: str
    number: int = 0
    provider: str = ""

    @staticmethod
    def of(text: str) -> DeviceName:
        """Read an id, or a kind; what follows a number, or stands in its place, is a provider."""
        kind, _, rest = text.strip().lower().partition(":")
        number, _, provider = rest.partition(":")
        if not number.isdecimal():
            number, provider = "0", rest
        return DeviceName(kind_of(kind), int(number), provider)

    def __str__(self) -> str:
        is_first_cpu = self.kind == CPU and self.number == 0
        number = [] if is_first_cpu else [str(self.number)]
        return ":".join([self.kind, *number, *([self.provider] if self.provider else [])])


def kind_of(text: str) -> str:
    """Return the kind of a device by its id, under the one name that it has here."""
    kind = text.partition(":")[0]
    return ALIASES.get(kind, kind)


def preference(kind: str) -> int:
    """Return the place of a kind in the order of preference; unknown kinds come last."""
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def answers_to(device: Device, name: str | None) -> bool:
    """Return whether a name fits a device; None fits all.

    It may be an id, a kind, a kind and power (webgpu:low), a kind and number, whatever the provider
    (cuda:0), or "gpu" for a GPU of any kind.
    """
    if name is None or name == device.id:
        return True
    asked, own = DeviceName.of(name), DeviceName.of(device.id)
    if asked.kind == ANY_GPU and ":" not in name and own.kind in GPUS:
        return not device.is_software
    if asked.kind != own.kind:
        return False
    is_kind = ":" not in name
    is_power = asked.provider != "" and asked.provider == device.facts.get("power")
    return is_kind or is_power or asked in (own, DeviceName(own.kind, own.number))


def hardware(device: Device) -> tuple[str, str] | None:
    """Name the hardware behind a device, equal in all backends; None if nobody told.

    Whatever the processor runs or emulates is the same hardware.
    """
    if device.kind == CPU or device.is_software:
        return _HOST
    for fact in HARDWARE_FACTS:
        if text := str(device.facts.get(fact, "")):
            return fact, _bus(text) if fact == "pci_bus_id" else _hex(text)
    return None


def _bus(text: str) -> str:
    """Write the address of a PCI device in full: some libraries leave out the domain, or pad it."""
    domain, bus, slot = [*["0"] * (2 - text.count(":")), *text.lower().split(":")]
    return ":".join([f"{int(domain, 16):04x}", f"{int(bus, 16):02x}", slot])


def _hex(text: str) -> str:
    """Leave out what surrounds the digits: GPU-3f2a... and 3F2A... are one."""
    return re.sub(r"[^0-9a-f]", "", text.lower().removeprefix("gpu-").removeprefix("0x"))


def same_hardware(one: Device, other: Device) -> bool:
    """Return whether two devices are known to be the same hardware."""
    known = hardware(one)
    return known is not None and known == hardware(other)


def is_alike(one: Device, other: Device) -> bool:
    """Return whether only numbers and addresses tell two devices apart: both are as fast.

    Memory is compared, so that a GPU with less of it is another device.
    """
    names = (DeviceName.of(one.id), DeviceName.of(other.id))
    (kind, provider), (its_kind, its_provider) = ((x.kind, x.provider) for x in names)
    if (kind, provider, one.name) != (its_kind, its_provider, other.name):
        return False
    return one.is_software == other.is_software and _make(one) == _make(other)


def _make(device: Device) -> dict[str, object]:
    return {name: value for name, value in device.facts.items() if name not in HARDWARE_FACTS}


def on_device(items: Iterable[T], name: str, device_of: Callable[[T], Device]) -> Iterator[T]:
    """Yield what runs on a device: what answers to its name, or is the same hardware.

    "cuda:0" names the GPU, whichever library a backend reaches it with. What only shares the
    processor is not meant. An item that comes before the one that bears the name is yielded after.
    """
    meant: set[tuple[str, str]] = set()
    others: list[T] = []
    for item in items:
        device = device_of(item)
        own = hardware(device)
        if answers_to(device, name):
            yield item
            if own is not None and own not in (_HOST, *meant):
                meant.add(own)
                yield from (x for x in others if hardware(device_of(x)) == own)
        elif own in meant:
            yield item
        else:
            others.append(item)
