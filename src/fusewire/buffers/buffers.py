"""Make buffers: of arrays, empty, and of tensors of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.contract.backend import Backend, Device
from fusewire.contract.buffer import Buffer, HostBuffer, StateBuffer
from fusewire.contract.devices import CPU, answers_to, kind_of
from fusewire.dtypes import DTypeLike
from fusewire.dtypes import dtype as dtype_of
from fusewire.errors import DTypeError, ExportError, OptionsError
from fusewire.host_memory import aligned_copy, aligned_empty
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.process.guard import guarded
from fusewire.registry import REGISTRY

# What DLPack calls memory that the processor reads: its own, and that which a GPU may read too.
_READABLE = (1, 3, 11, 13)


def asarray(
    x: Any,
    dtype: DTypeLike | None = None,
    *,
    device: str | None = None,
    copy: bool | None = None,
) -> Buffer:
    """Return a buffer with the elements of an array, a tensor of another library, or a buffer.

    Without a ``device`` they stay where they are. Memory is shared where the device and the dtype
    stay the same, unless ``copy`` is true; where it is false, what cannot be shared is an error.

    >>> import fusewire as fw
    >>> fw.asarray([[1, 2], [3, 4]], "float32")
    <Buffer float32[2, 2] on cpu>
    """
    source = x if isinstance(x, Buffer) else _host(x, copy)
    source.require_open()
    wanted = source.type if dtype is None else source.type.with_dtype(dtype)
    place = _place(device) if device is not None else None
    is_here = place == source.device if place else True
    if wanted == source.type and is_here and not copy:
        return source
    if copy is False:
        raise ExportError(
            f"asarray: {source.type} on {source.device} cannot be {wanted} on "
            f"{place or source.device} without a copy. Leave copy=False out."
        )
    target = _allocate(wanted, place or source.device)
    if wanted == source.type:
        target.copy_from(source)
    else:
        target.write(source.numpy().astype(wanted.dtype.numpy))
    return target


def empty(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", device: str | None = None
) -> Buffer:
    """Return a buffer whose elements are undefined: write all of them before you read them.

    >>> import fusewire as fw
    >>> fw.empty((2, 3), "int8").strides
    (3, 1)
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    if any(size < 0 for size in sizes):
        raise OptionsError(f"shape={sizes}: sizes are 0 or more.")
    return _allocate(TensorType(dtype_of(dtype), sizes), _place(device or CPU))


def state(x: Any, *, output: str | int | None = None, device: str | None = None) -> StateBuffer:
    """Return a buffer that calls replace, such as the key-value cache of a decoder.

    A program that takes it as an input writes a result over it: the one of the input's name, or
    ``output``, by name or place. Where only the elements that change are written by the engine,
    nothing else is copied. It starts as a copy of ``x``.

    >>> import fusewire as fw
    >>> import numpy as np
    >>> step = fw.compile(lambda total, x: {"total": total + x})
    >>> total = fw.state(np.zeros(2))
    >>> for x in ([1.0, 2.0], [3.0, 4.0]):
    ...     _ = step(total, np.array(x))
    >>> total.numpy()
    array([4., 6.])
    """
    return StateBuffer(asarray(x, device=device, copy=True), output)


def from_dlpack(x: Any, *, device: str | None = None, copy: bool | None = None) -> Buffer:
    """Return a buffer over the memory of another library's tensor, through DLPack.

    The producer finishes what it has begun to write before it hands the memory over. Memory that
    the processor does not read cannot be taken: move it there first.

    >>> import fusewire as fw
    >>> import numpy as np
    >>> fw.from_dlpack(np.arange(3.0))
    <Buffer float64[3] on cpu>
    """
    if isinstance(x, Buffer):
        return asarray(x, device=device, copy=copy)
    if not hasattr(type(x), "__dlpack__"):
        raise ExportError(
            f"from_dlpack was given a {type(x).__name__}, which has no __dlpack__. Use fw.asarray."
        )
    return asarray(HostBuffer.of(_imported(x)), device=device, copy=copy)


def _imported(x: Any) -> Array:
    kind, number = x.__dlpack_device__()
    name = f"{type(x).__module__}.{type(x).__name__}"
    if int(kind) not in _READABLE:
        raise ExportError(
            f"from_dlpack: a {name} lies on DLPack's device ({int(kind)}, {number}), which the "
            "processor does not read. Move it to the CPU first, such as x.cpu()."
        )
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ExportError(
            f"from_dlpack: NumPy cannot take a {name} of {x.dtype}: {error}. Give fw.asarray an "
            "array, such as x.detach().float().numpy() of a PyTorch tensor."
        ) from None


def _host(x: Any, copy: bool | None) -> HostBuffer:
    """Hold what is on the host; memory of other libraries is shared where they let it be."""
    if not isinstance(x, np.ndarray | np.generic) and hasattr(type(x), "__dlpack__"):
        array = _imported(x)
    else:
        array = np.asarray(x)
    if array.dtype.hasobject:
        raise DTypeError(
            f"asarray: a {type(x).__name__} of {array.dtype} has no elements that a device holds. "
            "Give numbers or bools."
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.c_contiguous:
        if copy is False:
            raise ExportError(
                f"asarray: an array of strides {array.strides} has gaps, and a buffer has none. "
                "Leave copy=False out."
            )
        array = aligned_copy(array)
    return HostBuffer(array)


def _place(name: str) -> str:
    """Return whose memory a device uses: "cpu" for the host's, or the device's id."""
    return CPU if name in (CPU, "host") else _home(name)[1].id


def _home(name: str) -> tuple[Backend, Device]:
    """Find a backend that has memory of its own on a device, or one that uses the host's there."""
    backends = [REGISTRY.get(found) for found in REGISTRY.ranked()]
    # The others are asked only if none that names such a memory has the device: it takes long.
    backends.sort(key=lambda backend: kind_of(backend.exchange.memory) != kind_of(name))
    for backend in backends:
        for device in REGISTRY.meet(backend.info.name).devices:
            if not answers_to(device, name):
                continue
            is_own = backend.exchange_on(device).memory == device.id
            if is_own or device.kind == CPU:
                return backend, device if is_own else Device(CPU, device.name)
    # Raises, and lists the devices.
    found = REGISTRY.device(name)
    raise OptionsError(
        f"device={name!r}: {found.backend} keeps no buffers on {found.device.id}; it takes and "
        "returns arrays of the host."
    )


def _allocate(type_: TensorType, place: str) -> Buffer:
    shape: Any = type_.shape
    if place == CPU:
        return HostBuffer(aligned_empty(shape, type_.dtype.numpy))
    backend, device = _home(place)
    made = guarded(backend.info.name, "load", "a buffer", backend.allocate, type_, device)
    if made is None:
        raise OptionsError(
            f"{backend.info.name} makes no buffers on {device.id}: give it arrays, and it returns "
            "buffers."
        )
    return made
