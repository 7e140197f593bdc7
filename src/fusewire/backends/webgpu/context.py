"""An open adapter: its device, queue, memory and pipelines.

All work of a device goes through one queue, in order. So a buffer may be used again as soon as
nobody holds it: what still runs on it runs before what comes next.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final
from weakref import finalize

import numpy as np
import wgpu

from fusewire.backends.webgpu.storage import STORAGES
from fusewire.contract.backend import Device, Fact
from fusewire.contract.buffer import Buffer, note_download, note_upload
from fusewire.dtypes import dtype
from fusewire.errors import EngineRaised, ShapeMismatchError
from fusewire.host_memory import LARGE, PRESSURE, PoolUse, aligned_empty, allocated
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
# Where Linux lists what is on the bus.
_PCI = Path("/sys/bus/pci/devices")
_ORDER = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
ENGINE_ERRORS = (RuntimeError, wgpu.GPUError)
# Idle memory that a device keeps to use again.
_IDLE_BYTES = 256 << 20
# Pipelines that a device keeps to use again; a program keeps its own as long as it lives.
PIPELINES = 1024
# Buffers are made in steps of so many bytes, so that one fits the next tensor of a like size.
_ROUNDED = 256
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
_STAGE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ


def is_loss(error: wgpu.GPUError) -> bool:
    """Tell whether an error says that the device is gone, and all that was made on it."""
    # wgpu 0.32.0 logs a loss, and has no state to ask for.
    return "is lost" in str(error)


def find_adapters() -> list[Any]:
    """List adapters that compute, the strongest first."""
    _load_triton()
    with _runtime_folder():
        found = wgpu.gpu.enumerate_adapters_sync()
    native = [a for a in found if a.info["backend_type"] in _NATIVE]
    return sorted(distinct(native), key=lambda a: _ORDER.index(a.info["adapter_type"]))


def distinct(adapters: Sequence[Any]) -> list[Any]:
    """Leave out what is listed again: under another API, or because a driver is installed twice.

    wgpu 0.32.0 does not say which slot a card is in, so that two cards of one model look the same:
    as many are kept as the machine has.
    """
    kept: dict[tuple[Any, ...], list[Any]] = {}
    for adapter in sorted(adapters, key=lambda a: _NATIVE.index(a.info["backend_type"])):
        info = adapter.info
        same = kept.setdefault((info["vendor_id"], info["device_id"], info["device"]), [])
        is_other_api = bool(same) and same[0].info["backend_type"] != info["backend_type"]
        if not is_other_api and len(same) < _most(info):
            same.append(adapter)
    return [adapter for same in kept.values() for adapter in same]


def _most(info: Mapping[str, Any]) -> float:
    """Say how many adapters like this the machine can have."""
    if info["adapter_type"] == "CPU":
        return 1
    wanted = [f"0x{info['vendor_id']:04x}", f"0x{info['device_id']:04x}"]
    cards = [folder for folder in _PCI.glob("*") if _numbers(folder) == wanted]
    # Chips that are not on a bus that we can see are taken as they are listed.
    return len(cards) or math.inf


def _numbers(folder: Path) -> list[str]:
    try:
        return [(folder / name).read_text().strip() for name in ("vendor", "device")]
    except OSError:
        return []


def _load_triton() -> None:
    """Load Triton first if PyTorch is here, which loads it when it compiles.

    Software adapters bring Mesa's LLVM, and loading Triton's after that ends the process (Triton
    3.9, Mesa 22.3); the other order is fine.
    """
    if "torch" in sys.modules and "triton" not in sys.modules and find_spec("triton"):
        with suppress(ImportError):
            import_module("triton")


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
        self.pool = Pool(id_, self.gpu, _IDLE_BYTES)
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
        if (memory := buffer.memory()) is not None:
            note_upload(buffer.nbytes)
            self.queue.write_buffer(memory.gpu, 0, whole_words(array))
        return buffer

    def copy(self, source: Any, start: int, target: Any, at: int, size: int) -> None:
        """Copy bytes on the device, from one buffer of wgpu's to another; all in whole words."""
        encoder = self.gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(source, start, target, at, size)
        self.queue.submit([encoder.finish()])

    def download(self, source: Any, start: int, size: int) -> Array:
        """Copy bytes to the host; start and size are whole words."""
        note_download(size)
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


@final
class Pool:
    """Buffers for tensors. One that is given back waits to be taken again, up to a limit."""

    def __init__(self, name: str, device: Any, limit: int) -> None:
        self._name = name
        self._device = device
        self._limit = limit
        self._free: dict[int, list[Any]] = {}
        # The garbage collector may give back in the midst of a take.
        self._lock = threading.RLock()
        self.idle = 0
        self._in_use = self._peak = self._hits = self._misses = self._failures = 0

    def use(self) -> PoolUse:
        """Say what it holds."""
        with self._lock:
            counts = self._peak, self._hits, self._misses, self._failures
            return PoolUse(self._name, "buffers", self._in_use, self.idle, *counts)

    def count_failure(self) -> None:
        """Count a request that found no memory."""
        with self._lock:
            self._failures += 1

    def take(self, size: int) -> Any:
        """Give a buffer of at least so many bytes; what is in it is anybody's."""
        rounded = -(-size // _ROUNDED) * _ROUNDED
        with self._lock:
            found = free.pop() if (free := self._free.get(rounded)) else None
            if found is not None:
                self.idle -= rounded
                self._hits += 1
        if found is None:
            found = allocated(self, lambda: self._made(rounded))
        with self._lock:
            before = self._in_use
            self._in_use += rounded
            self._peak = max(self._peak, self._in_use)
        try:
            PRESSURE.watch(self, before, before + rounded)
        except BaseException:
            # The user's function raised: nobody will have this buffer.
            self.give(found)
            raise
        return found

    def _made(self, size: int) -> Any:
        with self._lock:
            self._misses += 1
        try:
            return self._device.create_buffer(size=size, usage=_USAGE)
        except wgpu.GPUOutOfMemoryError as error:
            raise MemoryError(f"{self._name} has no {size:,} bytes more: {error}") from None

    def give(self, buffer: Any) -> None:
        """Take a buffer back."""
        with self._lock:
            self._in_use -= buffer.size
            if self.idle + buffer.size <= self._limit:
                self.idle += buffer.size
                self._free.setdefault(buffer.size, []).append(buffer)

    def clear(self) -> int:
        """Let go of all that is idle; returns the bytes."""
        with self._lock:
            freed, self.idle = self.idle, 0
            self._free.clear()
            return freed


@final
class Memory:
    """A buffer of wgpu's that goes back to its pool when nobody holds this any more.

    Whoever submits work holds it until then: another thread may close the tensor meanwhile, and its
    memory must not be another tensor's before that work is in the queue.
    """

    __slots__ = ("__weakref__", "gpu")

    def __init__(self, pool: Pool, size: int) -> None:
        self.gpu = pool.take(size)
        # Held from outside: of what lies in a cycle the garbage collector may end wgpu's buffer
        # first, and a dead one would be given back. Errors of wgpu make such cycles.
        finalize(self, pool.give, self.gpu).atexit = False


@final
class WebGpuBuffer(Buffer):
    """A tensor in a device's memory."""

    def __init__(self, context: Context, type_: TensorType) -> None:
        self.context = context
        self._type = type_
        shape: Any = type_.shape
        self._bytes = math.prod(shape) * type_.dtype.itemsize
        self._memory = Memory(context.pool, self._bytes) if self._bytes else None

    @property
    def gpu(self) -> Any:
        """The buffer of wgpu's; None if it has no elements, or was released."""
        memory = self._memory
        return None if memory is None else memory.gpu

    def memory(self) -> Memory | None:
        """Return its memory, for as long as the caller holds it; None if it has no elements.

        ReleasedError if it is gone.
        """
        memory = self._memory
        if memory is None:
            # Read once: another thread may close it at any time.
            self.require_open()
        return memory

    @property
    def device(self) -> str:
        """The id of the device."""
        return self.context.id

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return self._type

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host, all in its shape or a part of it flat; waits for earlier work."""
        self.require_open()
        of = self._type.dtype
        if offset == 0 and count is None:
            return self._read_bytes(0, self._bytes).view(of.numpy).reshape(self.shape)
        start, end = self._range(offset, count)
        return self._read_bytes(start * of.itemsize, end * of.itemsize).view(of.numpy)

    def wait(self) -> None:
        """Block until the device has done all that was submitted."""
        self.require_open()
        with _typed(self):
            self.context.wait()

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy elements from the host; what was started before does not see them."""
        self.require_open()
        if dtype(array.dtype) is not self._type.dtype:
            raise ShapeMismatchError(f"A buffer of {self._type} cannot hold {array.dtype}. Cast.")
        start, _ = self._range(offset, array.size)
        if array.size:
            note_upload(array.nbytes)
            self._put(as_bytes(array), start * self._type.dtype.itemsize)

    def copy_within(self, source: Buffer, start: int, count: int, offset: int) -> bool:
        """Copy elements on the device, which copies whole words."""
        if not isinstance(source, WebGpuBuffer) or source.context is not self.context:
            return False
        size = self._type.dtype.itemsize
        first, place, length = start * size, offset * size, count * size
        # Behind the last element there is room up to the next word.
        is_rest = place + length == self._bytes and first + length == source._bytes
        whole = -(-length // 4) * 4 if is_rest else length
        if first % 4 or place % 4 or whole % 4:
            return False
        origin, target = source.memory(), self.memory()
        if origin is not None and origin is target:
            # WebGPU copies between two buffers only.
            excerpt = source._excerpt(start, TensorType(self._type.dtype, (count,)))
            origin, first = excerpt.memory(), 0
        if origin is not None and target is not None:
            self.context.copy(origin.gpu, first, target.gpu, place, whole)
        return True

    def _excerpt(self, offset: int, type_: TensorType) -> WebGpuBuffer:
        found = WebGpuBuffer(self.context, type_)
        is_copied = found.size == 0 or found.copy_within(self, offset, found.size, 0)
        if not is_copied:
            found.write(self.read(offset, found.size))
        return found

    def extracted(self, offset: int, type_: TensorType) -> Buffer | None:
        """Copy elements into a buffer of this device."""
        return self._excerpt(offset, type_)

    def release(self) -> None:
        """Let go of the memory: what still runs on it runs before what comes next."""
        self._memory = None

    def _range(self, offset: int, count: int | None) -> tuple[int, int]:
        whole = self.size
        end = whole if count is None else offset + count
        if not 0 <= offset <= end <= whole:
            raise ShapeMismatchError(
                f"Elements {offset} to {end} of a buffer of {self._type}, which has {whole}."
            )
        return offset, end

    def _read_bytes(self, start: int, end: int) -> Array:
        """Copy bytes to the host; devices copy whole words."""
        if start == end:
            return np.empty(0, np.uint8)
        first, last = start // 4 * 4, -(-end // 4) * 4
        memory = self.memory()
        assert memory is not None, "it has elements"
        with _typed(self):
            found = self.context.download(memory.gpu, first, last - first)
        return found[start - first : end - first]

    def _put(self, data: Array, start: int) -> None:
        end = start + data.size
        first, last = start // 4 * 4, -(-end // 4) * 4
        if (first, last) != (start, end):
            # Words at the edges keep what else is in them.
            whole = np.zeros(last - first, np.uint8)
            inside = min(last, self._bytes)
            whole[: inside - first] = self._read_bytes(first, inside)
            whole[start - first : end - first] = data
            data = whole
        memory = self.memory()
        assert memory is not None, "it has elements"
        self.context.queue.write_buffer(memory.gpu, first, data)


@contextmanager
def _typed(buffer: WebGpuBuffer) -> Iterator[None]:
    """Give errors of the device a type and a sentence: here those of earlier runs come up too."""
    try:
        yield
    except ENGINE_ERRORS as error:
        raise EngineRaised(
            f"{buffer.device} failed to give a buffer of {buffer.type}: {str(error).rstrip('.')}.",
            "It failed, or was lost, after a call had given it work. Compute the buffer again.",
        ) from error


def as_bytes(array: Array) -> Array:
    """View an array as bytes; ml_dtypes arrays refuse the buffer protocol."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def whole_words(array: Array) -> Array:
    """View an array as bytes, with zeros up to the next word: devices copy whole words."""
    is_plain = array.dtype.kind in "iufc" and array.dtype.isbuiltin == 1
    if is_plain and array.nbytes % 4 == 0 and array.flags.c_contiguous:
        return array
    data = as_bytes(array)
    return np.append(data, np.zeros(-data.size % 4, np.uint8)) if data.size % 4 else data
