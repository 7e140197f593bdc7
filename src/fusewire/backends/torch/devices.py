"""The devices of PyTorch: the CPU, and the GPUs that this build of it was made for.

Of these only the CPU was run by us. GPUs are looked for in a process of its own, and only where
PyTorch was built for them: whoever runs on the CPU starts no driver.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, final

import torch

from fusewire.contract.backend import Device, Fact, Unavailable
from fusewire.contract.devices import CPU, DeviceName
from fusewire.errors import UnavailableError
from fusewire.process.apart import SECONDS, Fallen, devices_apart

# PyTorch's own names of the kinds of devices.
_TYPES = {CPU: "cpu", "cuda": "cuda", "rocm": "cuda", "metal": "mps", "gpu": "xpu"}
_ADVICE: Mapping[str, str] = {
    "cuda": "Install the NVIDIA driver, so that `nvidia-smi` lists a GPU.",
    "rocm": "Install AMD's driver and ROCm, so that `rocminfo` lists a GPU.",
    "metal": "It needs a Mac with a GPU of Apple's, and macOS 14 or later.",
    "gpu": "Install the driver of Intel's GPU and its Level Zero loader.",
}
_OR_CPU = "To do without it, install PyTorch for the CPU, or go on: nothing else depends on it."


def built_for() -> str | None:
    """Name the kind of GPU that this build of PyTorch is for; None for the CPU alone."""
    if torch.version.hip:
        return "rocm"
    if torch.version.cuda:
        return "cuda"
    if getattr(torch.version, "xpu", None):
        return "gpu"
    return "metal" if torch.backends.mps.is_built() else None


def place_of(device: Device) -> Any:
    """Return PyTorch's own device; None for the CPU, UnavailableError if it is gone."""
    name = DeviceName.of(device.id)
    if name.kind == CPU:
        return None
    count = _module(name.kind).device_count()
    if name.number >= count:
        raise UnavailableError(
            f"{device.id} was asked for, and PyTorch has {count} of {name.kind} in this process. "
            "Start it with the visible devices that it was probed with."
        )
    return torch.device(_TYPES[name.kind], name.number)


def _module(kind: str) -> Any:
    return torch.get_device_module(_TYPES[kind])


def asked_apart(kind: str, seconds: float = SECONDS) -> list[Device | Unavailable]:
    """Have a process of its own start the GPUs: one that dies there takes no CPU with it."""
    found = devices_apart(f"{__package__}.engine", "tell()", seconds)
    if not isinstance(found, Fallen):
        return found
    reason = f"Starting PyTorch's {_TYPES[kind]} {found.how}."
    return [Unavailable(found.code, reason, f"{_ADVICE[kind]} {_OR_CPU}", kind)]


def listed(kind: str) -> list[Device | Unavailable]:
    """List the GPUs of a kind, or say why there is none."""
    module = _module(kind)
    if module.is_available():
        count = module.device_count()
        return [_described(kind, number) for number in range(count)]
    built = {"cuda": torch.version.cuda, "rocm": torch.version.hip}.get(kind, "")
    reason = f"PyTorch {torch.__version__} was built for {kind} {built}".strip()
    return [
        Unavailable(
            "no-device", f"{reason}, and finds no such GPU.", f"{_ADVICE[kind]} {_OR_CPU}", kind
        )
    ]


def _described(kind: str, number: int) -> Device:
    id_ = str(DeviceName(kind, number))
    if kind == "metal":
        return Device(id_, "Apple GPU", facts={"memory_bytes": _memory_of_metal()})
    properties = _module(kind).get_device_properties(number)
    return Device(id_, str(properties.name), facts=facts_of(properties))


def _memory_of_metal() -> int:
    return int(torch.mps.recommended_max_memory())


def facts_of(properties: Any) -> dict[str, Fact]:
    """Read what PyTorch tells about a GPU; builds differ in what they tell."""
    facts: dict[str, Fact] = {"engine": str(torch.__version__)}
    names = {
        "total_memory": "memory_bytes",
        "multi_processor_count": "compute_units",
        "max_compute_units": "compute_units",
        "gcnArchName": "architecture",
        "driver_version": "driver",
    }
    for theirs, ours in names.items():
        value = getattr(properties, theirs, None)
        if isinstance(value, str | int):
            facts[ours] = value
    if hasattr(properties, "uuid"):
        facts["uuid"] = re.sub(r"[^0-9a-f]", "", str(properties.uuid).lower())
    if "architecture" not in facts and hasattr(properties, "major"):
        facts["architecture"] = f"{properties.major}.{properties.minor}"
    address = [getattr(properties, f"pci_{x}_id", None) for x in ("domain", "bus", "device")]
    if None not in address:
        domain, bus, slot = address
        facts["pci_bus_id"] = f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    return facts


def wait_for(place: Any) -> None:
    """Wait until a device has done what it was given."""
    if place.type == "mps":
        torch.mps.synchronize()
    elif place.type != "cpu":
        torch.get_device_module(place.type).synchronize(place)


@final
class FullPrecision:
    """Has float32 computed as such on CUDA: cuDNN rounds it to TF32 unless it is told not to.

    The setting is the process's: the first of several runs sets it, and the last sets it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before = (False, False)

    def __enter__(self) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        with self._lock:
            if self._count == 0:
                self._before = matmul.allow_tf32, cudnn.allow_tf32
                matmul.allow_tf32 = cudnn.allow_tf32 = False
            self._count += 1

    def __exit__(self, *error: object) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        with self._lock:
            self._count -= 1
            if self._count == 0:
                matmul.allow_tf32, cudnn.allow_tf32 = self._before


_FULL_PRECISION = FullPrecision()


def full_precision(place: Any) -> AbstractContextManager[None]:
    """Have a run on a device compute float32 as such."""
    return _FULL_PRECISION if place.type == "cuda" else contextlib.nullcontext()
