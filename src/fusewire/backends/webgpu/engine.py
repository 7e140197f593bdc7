"""The WebGPU backend. wgpu is imported when a device is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, final

import numpy as np

from fusewire.backends.webgpu.gaps import GAPS
from fusewire.backends.webgpu.info import CLOCK, INFO, OPTIONS
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    BackendOption,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.buffer import Buffer
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.region import build, claim_by_table
from fusewire.contract.tuning import Piece, Tuner
from fusewire.dtypes import float32
from fusewire.errors import RegistryError
from fusewire.host_memory import MemoryPool
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType

# Kernels are imported where they are made: every process asks who this is, and few run it.
if TYPE_CHECKING:
    from fusewire.backends.webgpu.context import Context
    from fusewire.backends.webgpu.program import Program
    from fusewire.kernel.outside import KernelTable, WgslKernel

_DRIVER = "Install a Vulkan driver; without a GPU: apt install mesa-vulkan-drivers libvulkan1."


@final
class WebGpuBackend(Backend, Tuner, Inspector):
    """Runs fused regions with kernels of our own."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        self._found: list[Device | Unavailable] | None = None
        self._lock = threading.RLock()

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    @property
    def exchange(self) -> Exchange:
        """Outputs stay on the device; inputs may be there, or dense arrays of the host."""
        return Exchange(memory="webgpu:0")

    @property
    def options(self) -> Sequence[BackendOption]:
        """How kernels are configured, and how a run is watched."""
        return OPTIONS

    @cached_property
    def lowerings(self) -> KernelTable[WgslKernel]:
        """The kernels in WGSL that extensions bring for ops of packages."""
        from fusewire.kernel.outside import KernelTable, WgslKernel

        return KernelTable(WgslKernel)

    def exchange_on(self, device: Device) -> Exchange:
        """Every adapter has a memory of its own."""
        return Exchange(memory=device.id)

    def probe(self) -> list[Device | Unavailable]:
        """Find adapters once, and add two tensors on each."""
        with self._lock:
            if self._found is None:
                self._found = self._look()
            return list(self._found)

    def _look(self) -> list[Device | Unavailable]:
        if find_spec("wgpu") is None:
            return [Unavailable.not_installed(INFO, "wgpu")]
        try:
            from fusewire.backends.webgpu import context
        except ImportError as error:
            return [Unavailable("broken", f"wgpu cannot be imported: {error}.", "Reinstall wgpu.")]
        adapters = context.find_adapters()
        if not adapters:
            reason = "No adapter of Vulkan, Metal or D3D12 was found."
            return [Unavailable("no-device", reason, _DRIVER)]
        found: list[Device | Unavailable] = []
        for place, adapter in enumerate(adapters):
            device = context.device_of(place, adapter)
            try:
                self._contexts[device.id] = context.Context(device.id, adapter)
                wrong = self._try(device)
            except context.ENGINE_ERRORS as error:
                wrong = str(error)
            broken = Unavailable("broken", wrong, _DRIVER, device.id)
            found.append(broken if wrong else device)
        return found

    def _try(self, device: Device) -> str:
        """Run one kernel; say what was wrong with the answer."""
        from fusewire.ops.elementwise import add

        x = Value(TensorType(float32, (3,)), "x")
        held = np.array([1.0, 2.5, -4.0], np.float32)
        (got,) = build(self, Graph([x], [add(x, x)]), device).run([held])
        assert isinstance(got, Buffer)
        answer = got.read()
        return "" if np.array_equal(answer, held + held) else f"{device.name}: x + x is {answer}."

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what has an expression in the table."""
        from fusewire.backends.webgpu.refusal import refusal

        return claim_by_table(graph, lambda node: refusal(node, device, self.lowerings))

    def lower(self, region: Graph, device: Device, config: Config) -> Program:
        """Fuse a region and print its kernels."""
        from fusewire.backends.webgpu.lowering import lower

        return lower(region, device, config, self.lowerings)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the kernels, and have the device check them."""
        from fusewire.backends.webgpu.lowering import compiled

        def open_device() -> Callable[[str], object]:
            return self.context(device).pipeline

        return compiled(region, device, config, self.lowerings, open_device)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Make pipelines, and put weights and parameters on the device."""
        from fusewire.backends.webgpu.executable import WebGpuExecutable
        from fusewire.backends.webgpu.program import Program

        program = Program.from_bytes(artifact.payload)
        context = self.context(device)
        return WebGpuExecutable(context, program, artifact.slots, weights, self._renew)

    def allocate(self, type_: TensorType, device: Device) -> Buffer | None:
        """Take memory of the device."""
        from fusewire.backends.webgpu.context import WebGpuBuffer

        return WebGpuBuffer(self.context(device), type_)

    def pools(self) -> Sequence[MemoryPool]:
        """List the pools of devices that are open."""
        with self._lock:
            return [context.pool for context in self._contexts.values()]

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Name wgpu, the adapter and its driver, and the kernels that packages bring."""
        named = {key: str(device.facts[key]) for key in ("adapter", "driver", "api")}
        brought = {f"kernel_{op}": digest for op, digest in self._brought().items()}
        return {"engine": INFO.version, **named, **brought}

    def _brought(self) -> Mapping[str, str]:
        # Without extensions, whoever asks for a fingerprint does not import kernels.
        return self.lowerings.digests if "lowerings" in vars(self) else {}

    def close(self) -> None:
        """Let go of devices."""
        with self._lock:
            for context in self._contexts.values():
                context.close()
            self._contexts.clear()
            self._found = None

    def pieces(self, region: Graph, device: Device, config: Config) -> Sequence[Piece]:
        """List kernels that may have other tiles, rows or workgroups."""
        from fusewire.backends.webgpu.lowering import pieces

        return pieces(region, device, config, self.lowerings)

    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """List the kernels that are printed, and how each is dispatched."""
        from fusewire.backends.webgpu.lowering import printed_kernels

        return printed_kernels(region, device, config, self.lowerings)

    def clock(self, device: Device) -> Mapping[str, Fact]:
        """Timestamps, where the adapter has them."""
        return {"timestamps": CLOCK} if device.facts["has_timestamps"] else {}

    def _renew(self, lost: Context) -> Context:
        """Give another context of a device that was lost, the same to all that had the old one."""
        from fusewire.backends.webgpu.context import Context, find_adapters

        with self._lock:
            if self._contexts.get(lost.id) is lost:
                place = int(lost.id.partition(":")[2])
                self._contexts[lost.id] = Context(lost.id, find_adapters()[place])
            return self._contexts[lost.id]

    def context(self, device: Device) -> Context:
        """Give what is open of a device; RegistryError for one that is not there."""
        with self._lock:
            if device.id not in self._contexts:
                self.probe()
            if device.id not in self._contexts:
                known = ", ".join(self._contexts) or "none"
                raise RegistryError(f"No device is called {device.id}. There are {known}.")
            return self._contexts[device.id]
