"""Run compiled kernels on a GPU, through the driver's own interface.

Written to the documents of CUDA 12 and ROCm 6 and NEVER RUN: no machine of ours has a GPU. What
is shown here is that drivers that are absent are not found, and that kernels compile. Everything
that touches a driver is in this file, so that whoever has a GPU has one file to mend.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np

from fusewire.backends.triton.program import Program
from fusewire.contract.backend import Device, Executable, Fact, Held, Into, Slot
from fusewire.errors import EngineOutOfMemory, EngineRaised, ShapeMismatchError
from fusewire.ir.graph import Array

_OUT_OF_MEMORY = 2
# Above this much shared memory a CUDA kernel has to be allowed to take it.
_PLAIN_SHARED = 48 * 1024
_MAX_DYNAMIC_SHARED = 8
_CAPABILITY = (75, 76)


@dataclass(frozen=True)
class Interface:
    """A driver: its library, what its functions are called, and how a device is named."""

    name: str
    library: str
    names: Mapping[str, str]


CUDA = Interface(
    "cuda",
    "libcuda.so.1",
    {
        "init": "cuInit",
        "count": "cuDeviceGetCount",
        "device": "cuDeviceGet",
        "attribute": "cuDeviceGetAttribute",
        "retain": "cuDevicePrimaryCtxRetain",
        "current": "cuCtxSetCurrent",
        "allocate": "cuMemAlloc_v2",
        "free": "cuMemFree_v2",
        "send": "cuMemcpyHtoD_v2",
        "fetch": "cuMemcpyDtoH_v2",
        "module": "cuModuleLoadData",
        "function": "cuModuleGetFunction",
        "allow": "cuFuncSetAttribute",
        "launch": "cuLaunchKernel",
        "wait": "cuCtxSynchronize",
        "unload": "cuModuleUnload",
    },
)
HIP = Interface(
    "hip",
    "libamdhip64.so",
    {
        "init": "hipInit",
        "count": "hipGetDeviceCount",
        "device": "hipDeviceGet",
        "use": "hipSetDevice",
        "name": "hipDeviceGetName",
        "allocate": "hipMalloc",
        "free": "hipFree",
        "send": "hipMemcpyHtoD",
        "fetch": "hipMemcpyDtoH",
        "module": "hipModuleLoadData",
        "function": "hipModuleGetFunction",
        "launch": "hipModuleLaunchKernel",
        "wait": "hipDeviceSynchronize",
        "unload": "hipModuleUnload",
    },
)


@final
class Driver:
    """A driver that was found."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self._library = ctypes.CDLL(interface.library)
        self.call("init", 0)

    def call(self, what: str, *arguments: Any) -> None:
        """Call a function of the driver; anything but success is an error."""
        name = self.interface.names[what]
        code = getattr(self._library, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise EngineOutOfMemory(f"{name} found no memory on the device.")
        if code:
            raise EngineRaised(f"{name} gave {code}.")

    def count(self) -> int:
        """Count devices."""
        found = ctypes.c_int()
        self.call("count", ctypes.byref(found))
        return found.value

    def target(self, number: int) -> str:
        """Name what kernels have to be made for."""
        if self.interface is HIP:
            # The name of the architecture is the one thing that hipDeviceProp_t is needed for.
            raw = ctypes.create_string_buffer(4096)
            self._library.hipGetDevicePropertiesR0600(raw, number)
            start = raw.raw.find(b"gfx")
            name = raw.raw[start : start + 16].split(b"\0")[0].split(b":")[0].decode()
            return f"hip:{name}"
        parts = []
        for attribute in _CAPABILITY:
            value = ctypes.c_int()
            self.call("attribute", ctypes.byref(value), attribute, number)
            parts.append(value.value)
        return f"cuda:sm_{parts[0]}{parts[1]}"

    def use(self, number: int) -> None:
        """Make a device the one that calls of this thread are about."""
        if self.interface is HIP:
            self.call("use", number)
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("device", ctypes.byref(device), number)
        self.call("retain", ctypes.byref(context), device)
        self.call("current", context)

    def allocate(self, size: int) -> ctypes.c_void_p:
        """Take memory of the device."""
        found = ctypes.c_void_p()
        self.call("allocate", ctypes.byref(found), ctypes.c_size_t(max(size, 16)))
        return found

    def send(self, target: ctypes.c_void_p, array: Array) -> None:
        """Copy an array to the device."""
        held = np.ascontiguousarray(array)
        if held.nbytes:
            source = ctypes.c_void_p(held.ctypes.data)
            self.call("send", target, source, ctypes.c_size_t(held.nbytes))

    def fetch(self, array: Array, source: ctypes.c_void_p) -> None:
        """Copy from the device into an array."""
        if array.nbytes:
            target = ctypes.c_void_p(array.ctypes.data)
            self.call("fetch", target, source, ctypes.c_size_t(array.nbytes))


@cache
def drivers() -> tuple[Driver, ...]:
    """Open the drivers that are here."""
    found = []
    for interface in (CUDA, HIP):
        try:
            found.append(Driver(interface))
        except (OSError, EngineRaised):
            # No library, or a library and nothing to drive: both mean that there is no GPU.
            continue
    return tuple(found)


def find_devices() -> list[Device]:
    """List GPUs."""
    found = []
    for driver in drivers():
        for number in range(driver.count()):
            target = driver.target(number)
            name = f"{target}, never tried by the makers of Fusewire"
            facts: dict[str, Fact] = {"target": target, "never_run": True}
            found.append(Device(f"{driver.interface.name}:{number}", name, facts=facts))
    return found


@final
class Launched(Executable):
    """A program on a GPU."""

    def __init__(
        self, device: str, program: Program, slots: Sequence[Slot], weights: Mapping[str, Array]
    ) -> None:
        kind, _, number = device.partition(":")
        self._driver = next(d for d in drivers() if d.interface.name == kind)
        self._number = int(number)
        self._program = program
        self._inputs = [s for s in slots if s.role == "input"]
        self._outputs = [s for s in slots if s.role == "output"]
        self._driver.use(self._number)
        self._modules: list[ctypes.c_void_p] = []
        self._functions = [self._function(about) for about in self._program.binaries]
        schedule = self._program.schedule
        self._slots = [self._driver.allocate(size) for size in schedule.scratch]
        self._memory = [
            self._slots[m.place] if m.kind == "scratch" else self._driver.allocate(m.size)
            for m in schedule.allocations
        ]
        for memory, m in zip(self._memory, schedule.allocations, strict=True):
            if m.kind == "constant":
                self._driver.send(memory, m.constant(weights))

    def _function(self, about: Mapping[str, Any]) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("module", ctypes.byref(module), base64.b64decode(about["data"]))
        self._modules.append(module)
        name = about["name"].encode()
        self._driver.call("function", ctypes.byref(function), module, name)
        if about["shared"] > _PLAIN_SHARED and self._driver.interface is CUDA:
            self._driver.call("allow", function, _MAX_DYNAMIC_SHARED, about["shared"])
        return function

    @property
    def is_reentrant(self) -> bool:
        """Memory is of one run at a time."""
        return False

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Copy inputs to the device, launch all kernels in its queue, and copy outputs back."""
        self._driver.use(self._number)
        allocations = self._program.schedule.allocations
        for memory, m in zip(self._memory, allocations, strict=True):
            if m.kind == "input":
                self._driver.send(memory, _checked(inputs[m.place], self._inputs[m.place]))
        for launch, steps in self._program.turns():
            self._launch(launch.kernel, launch.allocations, steps, launch.grid[0])
        self._driver.call("wait")
        made: list[Held] = [
            np.empty([int(str(d)) for d in s.dims], s.dtype.numpy) for s in self._outputs
        ]
        for memory, m in zip(self._memory, allocations, strict=True):
            if m.kind == "output":
                found = made[m.place]
                assert isinstance(found, np.ndarray)
                self._driver.fetch(found, memory)
        return made

    def _launch(
        self, place: int, memories: Sequence[int], steps: Sequence[int], programs: int
    ) -> None:
        about = self._program.binaries[place]
        # After a kernel's own come two pointers to scratch of Triton's, which ours do not use.
        given = [
            *(self._memory[number] for number in memories),
            *map(ctypes.c_int32, steps),
            ctypes.c_void_p(0),
            ctypes.c_void_p(0),
        ]
        pointers = (ctypes.c_void_p * len(given))(
            *(ctypes.cast(ctypes.pointer(x), ctypes.c_void_p) for x in given)
        )
        threads = about["warps"] * about["threads"]
        self._driver.call(
            "launch",
            self._functions[place],
            programs,
            1,
            1,
            threads,
            1,
            1,
            about["shared"],
            None,
            pointers,
            None,
        )

    def close(self) -> None:
        """Give memory and modules back."""
        self._driver.use(self._number)
        # Slots of scratch memory serve several allocations, and each is freed once.
        for memory in {id(memory): memory for memory in (*self._slots, *self._memory)}.values():
            self._driver.call("free", memory)
        for module in self._modules:
            self._driver.call("unload", module)
        self._slots, self._memory, self._modules = [], [], []


def _checked(given: Held, slot: Slot) -> Array:
    if not isinstance(given, np.ndarray) or given.shape != slot.dims:
        found = getattr(given, "shape", type(given).__name__)
        raise ShapeMismatchError(
            f"{slot.name} was compiled for {slot.dims}, and {found} was given."
        )
    return given
