"""One adapter made ready: a device, its queue, its memory, and the pipelines made so far."""

from __future__ import annotations

import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backends.webgpu.memory import Pool, WebGpuBuffer, whole_words
from fusewire.backends.webgpu.storage import STORAGES
from fusewire.contract.backend import Device, Fact
from fusewire.host_memory import LARGE, aligned_empty
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType

# What kernels may use where an adapter has it.
FEATURES = ("shader-f64", "shader-int64", "timestamp-query")
# What kernels need more of than WebGPU promises everywhere: all that the adapter has.
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
)
# Compute through OpenGL is another driver of the same chips, and a lesser one.
_NATIVE = ("Vulkan", "Metal", "D3D12")
_POWER = {"DiscreteGPU": "high", "IntegratedGPU": "low", "CPU": "software"}
_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
ENGINE_ERRORS = (RuntimeError, wgpu.GPUError)
# Idle memory that a device keeps to use again.
_IDLE_BYTES = 256 << 20
# Pipelines that a device keeps to use again; a program keeps its own as long as it lives.
PIPELINES = 1024
_STAGE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ


def is_loss(error: wgpu.GPUError) -> bool:
    """Tell whether an error says that the device is gone, and all that was made on it."""
    # wgpu 0.32.0 logs a loss, and has no state to ask for.
    return "is lost" in str(error)


def find_adapters() -> list[Any]:
    """List adapters that compute, the strongest first."""
    with _runtime_folder():
        found = wgpu.gpu.enumerate_adapters_sync()
    native = [a for a in found if a.info["backend_type"] in _NATIVE]
    return sorted(native, key=lambda a: _ORDER.index(a.info["adapter_type"]))


@contextmanager
def _runtime_folder() -> Iterator[None]:
    """Name a folder while drivers look for one: without it, EGL complains on stderr."""
    if "XDG_RUNTIME_DIR" in os.environ:
        yield
        return
    os.environ["XDG_RUNTIME_DIR"] = tempfile.gettempdir()
    try:
        yield
    finally:
        del os.environ["XDG_RUNTIME_DIR"]


def device_of(place: int, adapter: Any) -> Device:
    """Describe an adapter."""
    info, limits = adapter.info, adapter.limits
    features = tuple(sorted(adapter.features))
    facts: dict[str, Fact] = {
        "adapter": str(info["device"]),
        "driver": str(info["description"]),
        "vendor": str(info["vendor"]),
        "api": str(info["backend_type"]),
        "adapter_type": str(info["adapter_type"]),
        "features": features,
        "dtypes": tuple(n for n, s in STORAGES.items() if set(s.features) <= set(features)),
        "has_f16": "shader-f16" in features,
        "has_f64": "shader-f64" in features,
        "has_int64": "shader-int64" in features,
        "has_timestamps": "timestamp-query" in features,
        "power": _POWER.get(str(info["adapter_type"]), "unknown"),
        "subgroup": (int(info["stackgroup_min_size"]), int(info["stackgroup_max_size"])),
        "max_workgroup": tuple(int(limits[f"max-compute-workgroup-size-{axis}"]) for axis in "xyz"),
    }
    names = {
        "max_buffer_bytes": "max-buffer-size",
        "max_binding_bytes": "max-storage-buffer-binding-size",
        "max_bindings": "max-storage-buffers-per-shader-stage",
        "max_invocations": "max-compute-invocations-per-workgroup",
        "max_workgroups": "max-compute-workgroups-per-dimension",
        "workgroup_bytes": "max-compute-workgroup-storage-size",
    }
    facts |= {ours: int(limits[theirs]) for ours, theirs in names.items()}
    software = info["adapter_type"] == "CPU"
    return Device(f"webgpu:{place}", str(info["device"]), is_software=software, facts=facts)


@final
class Context:
    """A device in use. Safe under threads: work of each is recorded apart and joins one queue."""

    def __init__(self, id_: str, adapter: Any) -> None:
        wanted = [feature for feature in FEATURES if feature in adapter.features]
        limits = {name: adapter.limits[name] for name in _LIMITS}
        with _runtime_folder():
            self.gpu = adapter.request_device_sync(required_features=wanted, required_limits=limits)
        self.id = id_
        self.queue = self.gpu.queue
        self.alignment = int(adapter.limits["min-uniform-buffer-offset-alignment"])
        self.pool = Pool(self.gpu, _IDLE_BYTES)
        self._pipelines: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def pipeline(self, source: str) -> Any:
        """Make the pipeline of a kernel, or give the one that is kept."""
        with self._lock:
            if source not in self._pipelines:
                module = self.gpu.create_shader_module(code=source)
                stage = {"module": module, "entry_point": "main"}
                made = self.gpu.create_compute_pipeline(layout="auto", compute=stage)
                self._pipelines[source] = made
                if len(self._pipelines) > PIPELINES:
                    self._pipelines.popitem(last=False)
            self._pipelines.move_to_end(source)
            return self._pipelines[source]

    def upload(self, array: Array, type_: TensorType) -> WebGpuBuffer:
        """Copy a host array into a new buffer."""
        buffer = WebGpuBuffer(self, type_)
        if buffer.gpu is not None:
            self.queue.write_buffer(buffer.gpu, 0, whole_words(array))
        return buffer

    def download(self, source: Any, start: int, size: int) -> Array:
        """Copy bytes to the host; start and size are whole words."""
        if size < LARGE:
            return np.frombuffer(self.queue.read_buffer(source, start, size), np.uint8)
        # As read_buffer does, but for what it copies to, which is mapped for the purpose.
        stage = self.gpu.create_buffer(size=size, usage=_STAGE)
        encoder = self.gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, start, stage, 0, size)
        self.queue.submit([encoder.finish()])
        stage.map_sync(wgpu.MapMode.READ)
        found = aligned_empty((size,), np.dtype(np.uint8))
        found[...] = np.frombuffer(stage.read_mapped(copy=False), np.uint8)
        stage.destroy()
        return found

    def wait(self) -> None:
        """Block until all that was submitted is done."""
        # on_submitted_work_done_sync, the public way, raises a TypeError in wgpu 0.32.0:
        # https://github.com/pygfx/wgpu-py/issues/834
        self.gpu._poll_wait()

    def close(self) -> None:
        """Let go of memory and pipelines."""
        self._pipelines.clear()
        self.pool.clear()
