"""What GPU drivers say: how many devices there are, and where on the bus. Imports no engine.

ONNX Runtime numbers the devices of a library and tells nothing else about them. Never run on a GPU.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

# Bytes that hold any address on the bus.
_LENGTH = 64


@dataclass(frozen=True)
class Driver:
    """The few functions of a driver's library that are needed."""

    vendor: str
    names: tuple[str, ...]
    init: str
    count: str
    bus: str


DRIVERS = {
    "cuda": Driver(
        "NVIDIA",
        ("libcuda.so.1", "nvcuda.dll"),
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGetPCIBusId",
    ),
    "rocm": Driver(
        "AMD",
        ("libamdhip64.so", "amdhip64.dll"),
        "hipInit",
        "hipGetDeviceCount",
        "hipDeviceGetPCIBusId",
    ),
}


def missing_library(path: str) -> str | None:
    """Say why a library cannot be loaded: the loader names what is missing."""
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return None


def bus_ids(kind: str) -> list[str] | str:
    """List the addresses of the devices of a kind, or say why there are none."""
    driver = DRIVERS[kind]
    library = next((found for name in driver.names if (found := _loaded(name))), None)
    if library is None:
        return f"{driver.vendor}'s driver ({driver.names[0]}) is not installed"
    if code := getattr(library, driver.init)(0):
        return f"{driver.init} gave error {code}"
    count = ctypes.c_int()
    if code := getattr(library, driver.count)(ctypes.byref(count)):
        return f"{driver.count} gave error {code}"
    if not count.value:
        return f"{driver.vendor}'s driver lists no device"
    return [_bus(library, driver, number) for number in range(count.value)]


def _bus(library: ctypes.CDLL, driver: Driver, number: int) -> str:
    text = ctypes.create_string_buffer(_LENGTH)
    code = getattr(library, driver.bus)(text, _LENGTH, number)
    return "" if code else text.value.decode()


def _loaded(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
