"""Tensors that stay where they are: in the memory of a device, or of the host.

A backend whose devices have memory of their own subclasses ``Buffer``; programs take and return
such buffers without a copy. Must never name a backend.
"""

from __future__ import annotations

import abc
import contextlib
import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import EllipsisType, TracebackType
from typing import Any, Self, TypeAlias, final

import numpy as np

from fusewire.contract.devices import CPU, DeviceName
from fusewire.dtypes import dtype
from fusewire.errors import ExportError, ReleasedError, ShapeMismatchError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType

# What DLPack calls each kind of device.
_DLPACK = {CPU: 1, "cuda": 2, "metal": 8, "rocm": 10, "gpu": 14, "webgpu": 15}
_ON_HOST = (_DLPACK[CPU], 0)
# Inside the class, ``type`` is a property.
_Kind: TypeAlias = "type[BaseException] | None"
Key: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]"


@final
class HostTraffic:
    """Bytes that are copied between the host and devices."""

    __slots__ = ("to_device", "to_host")

    def __init__(self) -> None:
        self.to_device = 0
        self.to_host = 0

    @property
    def total(self) -> int:
        return self.to_device + self.to_host


_TRAFFIC: ContextVar[HostTraffic | None] = ContextVar("traffic", default=None)


@contextlib.contextmanager
def counted_traffic() -> Iterator[HostTraffic]:
    """Count what this thread copies between the host and devices."""
    token = _TRAFFIC.set(traffic := HostTraffic())
    try:
        yield traffic
    finally:
        _TRAFFIC.reset(token)


def note_upload(count: int) -> None:
    """Count bytes that go to a device; backends call it where they copy."""
    if (traffic := _TRAFFIC.get()) is not None:
        traffic.to_device += count


def note_download(count: int) -> None:
    """Count bytes that come from a device; backends call it where they copy."""
    if (traffic := _TRAFFIC.get()) is not None:
        traffic.to_host += count


class Buffer(abc.ABC):
    """A tensor in the memory of a device, or of the host; its elements lie in C order.

    Programs take buffers in place of arrays, and return buffers if they were given one. The memory
    is released when nobody refers to the buffer any more, by ``close``, or at the end of a ``with``
    block; using it then is a ReleasedError.

    >>> import fusewire as fw
    >>> with fw.asarray([1.0, 2.0, 3.0]) as x:
    ...     print(x[1:].numpy())
    [2. 3.]
    """

    _is_released = False
    # Whether its memory belongs to another buffer, of which it is a part.
    is_part = False

    # What a backend says of its own.

    @property
    @abc.abstractmethod
    def device(self) -> str:
        """The id of the device."""

    @property
    @abc.abstractmethod
    def type(self) -> TensorType:
        """Dtype and shape; every dim is an int."""

    @abc.abstractmethod
    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host: everything, or ``count`` elements from ``offset``, flat."""

    @abc.abstractmethod
    def write(self, array: Array, offset: int = 0) -> None:
        """Copy from the host to the elements from ``offset``."""

    def wait(self) -> None:  # noqa: B027 - most memory is written by the time a call returns
        """Block until what writes to it is done; raises the engine's error.

        A call that leaves its results on a device returns as soon as the device has the work.
        """

    def copy_within(self, source: Buffer, start: int, count: int, offset: int) -> bool:
        """Copy elements of a buffer of the same device, without the host; False if it cannot."""
        return False

    def extracted(self, offset: int, type_: TensorType) -> Buffer | None:
        """Copy elements into a buffer of the same device; None if only the host could."""
        return None

    def exporter(self) -> Any:
        """Return the object whose ``__dlpack__`` shares this memory; None if there is none."""
        return None

    def release(self) -> None:  # noqa: B027 - most are released with the last reference
        """Let go of the memory; called once, by ``close``."""

    # What holds of all buffers.

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return self.type.shape  # type: ignore[return-value] # every dim is an int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of its elements."""
        return self.type.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        steps, step = [], self.dtype.itemsize
        for size in reversed(self.shape):
            steps.append(step)
            step *= size
        return tuple(reversed(steps))

    @property
    def is_released(self) -> bool:
        """Whether its memory is gone."""
        return self._is_released

    def require_open(self) -> None:
        """Raise ReleasedError if its memory is gone."""
        if self.is_released:
            raise ReleasedError(
                f"A buffer of {self.type} on {self.device} was used after it was released: by "
                "close(), at the end of its with block, or because a call was given it to keep "
                "(donate=). Copy what you need before, or make it again."
            )

    def numpy(self) -> Array:
        """Return its elements as an array: a copy, or the memory itself if that is the host's."""
        self.require_open()
        return self.read().reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the kind and the number of the device, as DLPack counts them."""
        name = DeviceName.of(self.device)
        if name.kind not in _DLPACK:
            raise ExportError(f"DLPack has no name for {self.device}. Use numpy().")
        return _DLPACK[name.kind], name.number

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Share its memory with another library; its stream waits for what writes to it here."""
        self.require_open()
        owner, to_host = self.exporter(), dl_device == _ON_HOST
        if owner is None or (to_host and self.device != CPU):
            if not to_host or copy is False:
                raise ExportError(
                    f"The memory of {self.device} cannot be shared with another library. Give it "
                    "numpy(), or ask for a copy: from_dlpack(x, device='cpu')."
                )
            owner, stream, copy = self.numpy(), None, None
        given = {"stream": stream, "max_version": max_version, "copy": copy}
        given |= {} if owner is not self.exporter() else {"dl_device": dl_device}
        try:
            return owner.__dlpack__(**{key: x for key, x in given.items() if x is not None})
        except BufferError as error:
            raise ExportError(
                f"A buffer of {self.type} cannot be shared by DLPack: {error}. Use numpy()."
            ) from None

    def __getitem__(self, key: Key) -> Buffer:
        """Return a part that shares its memory; the elements of a part lie side by side."""
        self.require_open()
        offset, shape = _range_of(self.shape, key)
        return self.part(offset, TensorType(self.type.dtype, shape))

    def part(self, offset: int, type_: TensorType) -> Buffer:
        """Return the elements from an offset on as a buffer that shares its memory."""
        return PartBuffer(self, offset, type_)

    def root(self) -> tuple[Buffer, int]:
        """Return the buffer that has the memory, and where in it this one begins."""
        return self, 0

    def _locks(self) -> tuple[AbstractContextManager[bool], ...]:
        """Return what keeps calls from replacing its memory: see ``held_still``."""
        return ()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a buffer without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Buffer]:
        return (self[place] for place in range(len(self)))

    def copy_from(self, other: Any, offset: int = 0) -> None:
        """Copy a buffer of any device, or an array, to the elements from ``offset`` on.

        Between two buffers of one device nothing goes through the host.
        """
        self.require_open()
        source = other if isinstance(other, Buffer) else HostBuffer.of(np.asarray(other))
        with held_still(self, source):
            self._copy_from(source, offset)

    def _copy_from(self, source: Buffer, offset: int) -> None:
        self.require_open()
        source.require_open()
        if source.dtype != self.dtype:
            raise ShapeMismatchError(
                f"copy_from: a buffer of {self.type} was given {source.type}. Cast it before."
            )
        count = source.size
        if not 0 <= offset <= self.size - count:
            raise ShapeMismatchError(
                f"copy_from: {count} elements from offset {offset} do not fit into {self.type}, "
                f"which has {self.size}."
            )
        (target, place), (origin, start) = self.root(), source.root()
        is_here = origin.device == target.device
        if count and not (is_here and target.copy_within(origin, start, count, place + offset)):
            self.write(source.numpy(), offset)

    def close(self) -> None:
        """Release its memory; safe to repeat. What was started before still ends well."""
        if not self._is_released:
            self._is_released = True
            self.release()

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(
        self,
        kind: _Kind,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Buffer {self.type} on {self.device}{', released' * self.is_released}>"


@contextlib.contextmanager
def held_still(*buffers: Buffer) -> Iterator[None]:
    """Keep calls from replacing the memory of these buffers meanwhile."""
    with contextlib.ExitStack() as stack:
        # In one order, so that two who need the same never wait for each other.
        for lock in sorted({lock for x in buffers for lock in x._locks()}, key=id):
            stack.enter_context(lock)
        yield


def _range_of(shape: tuple[int, ...], key: Key) -> tuple[int, tuple[int, ...]]:
    """Return where a slice begins, in elements, and its shape; one with gaps is an error."""
    starts, counts, kept = [], [], []
    for size, item in zip(shape, _spread(shape, key), strict=True):
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            count = max(stop - start, 0)
            kept.append(count)
        else:
            start, count, step = item + size * (item < 0), 1, 1
            if not 0 <= start < size:
                raise ShapeMismatchError(f"Index {item} of an axis of {size} in {list(shape)}.")
        if step != 1:
            raise ShapeMismatchError(f"A slice of a buffer has step 1, found {step}. Use numpy().")
        starts.append(start)
        counts.append(count)
    whole = [count == size for count, size in zip(counts, shape, strict=True)]
    first = next((axis for axis, count in enumerate(counts) if count != 1), len(counts))
    if 0 not in counts and not all(whole[first + 1 :]):
        raise ShapeMismatchError(
            f"A slice of shape {kept} of a buffer of {list(shape)} has gaps in memory. Slice the "
            "leading axes only, or use numpy()."
        )
    steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offset = sum(start * step for start, step in zip(starts, steps, strict=True))
    return (0 if 0 in counts else offset), tuple(kept)


def _spread(shape: tuple[int, ...], key: Key) -> list[int | slice]:
    """Give each axis its index or slice."""
    items = list(key) if isinstance(key, tuple) else [key]
    missing = len(shape) - (len(items) - items.count(...))
    if missing < 0 or items.count(...) > 1:
        raise ShapeMismatchError(f"{len(items)} indices for a buffer of {list(shape)}.")
    place = items.index(...) if ... in items else len(items)
    items[place : place + 1] = [slice(None)] * missing
    found: list[int | slice] = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, slice | int | np.integer):
            raise ShapeMismatchError(
                f"A buffer is sliced by ints and slices, found {item!r}. Use numpy()."
            )
        found.append(item if isinstance(item, slice) else int(item))
    return found


@final
class PartBuffer(Buffer):
    """Some elements of a buffer of a device, in its memory."""

    is_part = True

    def __init__(self, base: Buffer, offset: int, type_: TensorType) -> None:
        self._base = base
        self._offset = offset
        self._type = type_

    @property
    def device(self) -> str:
        """The device of the whole."""
        return self._base.device

    @property
    def type(self) -> TensorType:
        """Dtype and shape of the part."""
        return self._type

    @property
    def is_released(self) -> bool:
        """Whether it, or the whole, was released."""
        return self._is_released or self._base.is_released

    def root(self) -> tuple[Buffer, int]:
        """Return the whole, and where this part begins in it; a state may have another later."""
        whole, start = self._base.root()
        return whole, start + self._offset

    def wait(self) -> None:
        """Wait for the whole."""
        self.root()[0].wait()

    def _locks(self) -> tuple[AbstractContextManager[bool], ...]:
        """Return those of the whole."""
        return self._base._locks()

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host, flat."""
        rest = self.size - offset if count is None else count
        self._check(offset, rest)
        with held_still(self):
            self.require_open()
            whole, start = self.root()
            return whole.read(start + offset, rest).reshape(-1)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy from the host."""
        self._check(offset, array.size)
        with held_still(self):
            self.require_open()
            whole, start = self.root()
            whole.write(array, start + offset)

    def _check(self, offset: int, count: int) -> None:
        if not 0 <= offset <= offset + count <= self.size:
            raise ShapeMismatchError(
                f"Elements {offset} to {offset + count} of a buffer of {self._type}, which has "
                f"{self.size}."
            )

    def alone(self) -> Array | Buffer:
        """Copy it into memory of its own: on its device, or on the host where that cannot be."""
        with held_still(self):
            self.require_open()
            whole, start = self.root()
            found = whole.extracted(start, self._type)
            return self.numpy() if found is None else found


class EngineBuffer(Buffer):
    """A buffer that is a tensor of an engine's own, on a device with a memory of its own."""

    def __init__(self, device: str, type_: TensorType, tensor: Any) -> None:
        self._device = device
        self._type = type_
        self._tensor = tensor

    @property
    def device(self) -> str:
        """The id of the device."""
        return self._device

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return self._type

    @property
    def tensor(self) -> Any:
        """The engine's own; ReleasedError if it is gone."""
        # Read once: another thread may close it at any time.
        tensor = self._tensor
        self.require_open()
        return tensor

    def release(self) -> None:
        """Let go of the tensor: the engine frees it after what still runs on it."""
        self._tensor = None


@final
class HostBuffer(Buffer):
    """An array in the memory of the host."""

    def __init__(self, array: Array, base: HostBuffer | None = None) -> None:
        """``array`` lies in C order. A part keeps the whole, and is released with it."""
        self._array: Array | None = array
        self._type = TensorType(dtype(array.dtype), array.shape)
        self._base = base
        self.is_part = base is not None

    @staticmethod
    def of(array: Array) -> HostBuffer:
        """Hold an array, or a copy of one that does not lie in C order."""
        return HostBuffer(array if array.flags.c_contiguous else array.copy("C"))

    @property
    def device(self) -> str:
        """The host is the first CPU."""
        return CPU

    @property
    def type(self) -> TensorType:
        """Dtype and shape."""
        return self._type

    @property
    def is_released(self) -> bool:
        """Whether it, or the whole, was released."""
        return self._is_released or (self._base is not None and self._base.is_released)

    @property
    def array(self) -> Array:
        """The memory itself."""
        # Read once: another thread may close it at any time.
        array = self._array
        self.require_open()
        assert array is not None, "it is open"
        return array

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Return its memory: all in its shape, or a part of it flat."""
        if offset == 0 and count is None:
            return self.array
        return self.array.reshape(-1)[offset : None if count is None else offset + count]

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy elements to its memory."""
        target = self.array.reshape(-1)[offset : offset + array.size]
        if not target.flags.writeable:
            raise ShapeMismatchError(
                f"A buffer of {self._type} is read-only, as the array is that it was made of. "
                "Make it of a copy: fw.asarray(x, copy=True)."
            )
        np.copyto(target, array.reshape(-1))

    def part(self, offset: int, type_: TensorType) -> Buffer:
        """Return a part as an array over the same memory."""
        shape: Any = type_.shape
        flat = self.array.reshape(-1)[offset : offset + math.prod(shape)]
        return HostBuffer(flat.reshape(shape), self)

    def exporter(self) -> Any:
        """Return the array."""
        return self.array

    def release(self) -> None:
        """Let go of the array; views of it and exports keep its memory."""
        self._array = None


@final
class StateBuffer(Buffer):
    """A buffer that calls replace: what was in it before is gone after a call.

    A call has the ``lock`` from when it takes the memory until it has replaced it: one call at a
    time, and nobody reads what is being released.
    """

    def __init__(self, held: Buffer, output: str | int | None = None) -> None:
        """``output`` is the result that replaces it; without one, that of the input's name."""
        self.held = held
        self.output = output
        # Bytes of new values that were made whole, because nobody could write in place.
        self.remade_bytes = 0
        self.lock = threading.RLock()

    @property
    def device(self) -> str:
        """Where it is now."""
        return self.held.device

    @property
    def type(self) -> TensorType:
        """Dtype and shape, which stay."""
        return self.held.type

    @property
    def is_released(self) -> bool:
        """Whether its memory is gone."""
        return self._is_released or self.held.is_released

    def replace(self, held: Buffer) -> None:
        """Take other memory; that which it had is released."""
        self.remade_bytes += held.nbytes
        before, self.held = self.held, held
        before.close()

    def root(self) -> tuple[Buffer, int]:
        """Return the memory that it has now."""
        return self.held.root()

    def wait(self) -> None:
        """Wait for the call that replaced it last."""
        with self.lock:
            self.held.wait()

    def _locks(self) -> tuple[AbstractContextManager[bool], ...]:
        """Return the lock that a call has while it replaces the memory."""
        return (self.lock,)

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host, or show its memory if that is the host's."""
        with self.lock:
            self.require_open()
            return self.held.read(offset, count)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy elements from the host."""
        with self.lock:
            self.require_open()
            self.held.write(array, offset)

    def exporter(self) -> Any:
        """Return what exports the memory that it has until the next call."""
        return self.held.exporter()

    def release(self) -> None:
        """Release its memory, after the call that has it."""
        with self.lock:
            self.held.close()
