"""Memory of a device: buffers that are used again, tensors in them, and copies with the host.

All work of a device goes through one queue, in order. So a buffer may be used again as soon as
nobody holds it: what still runs on it runs before what comes next.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, final
from weakref import finalize

import numpy as np
import wgpu

from fusewire.contract.backend import Buffer
from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType

if TYPE_CHECKING:
    from fusewire.backends.webgpu.context import Context

_ROUNDED = 256
_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


@final
class Pool:
    """Buffers for tensors. One that is given back waits to be taken again, up to a limit."""

    def __init__(self, device: Any, limit: int) -> None:
        self._device = device
        self._limit = limit
        self._free: dict[int, list[Any]] = {}
        # The garbage collector may give back in the midst of a take.
        self._lock = threading.RLock()
        self.idle = 0

    def take(self, size: int) -> Any:
        """Give a buffer of at least so many bytes; what is in it is anybody's."""
        rounded = -(-size // _ROUNDED) * _ROUNDED
        with self._lock:
            if free := self._free.get(rounded):
                self.idle -= rounded
                return free.pop()
        return self._device.create_buffer(size=rounded, usage=_USAGE)

    def give(self, buffer: Any) -> None:
        """Take a buffer back."""
        with self._lock:
            if self.idle + buffer.size <= self._limit:
                self.idle += buffer.size
                self._free.setdefault(buffer.size, []).append(buffer)

    def clear(self) -> None:
        """Let go of all that is idle."""
        with self._lock:
            self._free.clear()
            self.idle = 0


@final
class WebGpuBuffer(Buffer):
    """A tensor in a device's memory; ``gpu`` is wgpu's buffer, None when it has no elements."""

    __slots__ = ("_type", "context", "gpu", "shape", "size")

    def __init__(self, context: Context, type_: TensorType) -> None:
        """``size`` is in bytes, of the elements."""
        self.context = context
        self._type = type_
        self.shape: tuple[int, ...] = type_.shape  # type: ignore[assignment] # ints, all of them
        self.size = math.prod(self.shape) * type_.dtype.itemsize
        self.gpu: Any = None
        if self.size:
            self.gpu = context.pool.take(self.size)
            # Held from outside: of what lies in a cycle the garbage collector may end wgpu's buffer
            # first, and a dead one would be given back. Errors of wgpu make such cycles.
            finalize(self, context.pool.give, self.gpu).atexit = False

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
        of = self._type.dtype
        if offset == 0 and count is None:
            return self._bytes(0, self.size).view(of.numpy).reshape(self.shape)
        start, end = self._range(offset, count)
        return self._bytes(start * of.itemsize, end * of.itemsize).view(of.numpy)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy elements from the host; what was started before does not see them."""
        if dtype(array.dtype) is not self._type.dtype:
            raise ShapeMismatchError(f"A buffer of {self._type} cannot hold {array.dtype}. Cast.")
        start, _ = self._range(offset, array.size)
        if array.size:
            self._put(as_bytes(array), start * self._type.dtype.itemsize)

    def _range(self, offset: int, count: int | None) -> tuple[int, int]:
        whole = math.prod(self.shape)
        end = whole if count is None else offset + count
        if not 0 <= offset <= end <= whole:
            raise ShapeMismatchError(
                f"Elements {offset} to {end} of a buffer of {self._type}, which has {whole}."
            )
        return offset, end

    def _bytes(self, start: int, end: int) -> Array:
        """Copy bytes to the host; devices copy whole words."""
        if start == end:
            return np.empty(0, np.uint8)
        first, last = start // 4 * 4, -(-end // 4) * 4
        return self.context.download(self.gpu, first, last - first)[start - first : end - first]

    def _put(self, data: Array, start: int) -> None:
        end = start + data.size
        first, last = start // 4 * 4, -(-end // 4) * 4
        if (first, last) != (start, end):
            # Words at the edges keep what else is in them.
            whole = np.zeros(last - first, np.uint8)
            inside = min(last, self.size)
            whole[: inside - first] = self._bytes(first, inside)
            whole[start - first : end - first] = data
            data = whole
        self.context.queue.write_buffer(self.gpu, first, data)


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
