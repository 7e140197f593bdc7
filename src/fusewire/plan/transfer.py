"""Hand tensors over from one backend to another, in a form that the other takes.

No pair of backends is special. Each backend says what it takes (``Exchange``): host arrays that fit
are passed on as they are, others as an aligned copy; a device buffer is read back unless the next
backend uses the same memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.contract.backend import Exchange, Held
from fusewire.contract.buffer import Buffer, HostBuffer, PartBuffer
from fusewire.events import EVENTS
from fusewire.host_memory import aligned_copy, aligned_empty
from fusewire.ir.graph import Array
from fusewire.process.guard import guarded

# What the caller of a program takes.
CALLER = Exchange(needs_contiguous=False)


def hand_over(value: Held, exchange: Exchange) -> Held:
    """Convert a value to a form that the other side takes; returns the same object if it fits."""
    # The common case, which every call goes through.
    if type(value) is np.ndarray and fits(value, exchange):
        return value
    if isinstance(value, Buffer):
        value.require_open()
        if value.device == exchange.memory:
            return value.alone() if isinstance(value, PartBuffer) else value
        value = value.array if isinstance(value, HostBuffer) else value.read().reshape(value.shape)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or fits(value, exchange):
        return value
    return aligned_copy(value)


def fits(array: Array, exchange: Exchange) -> bool:
    """Tell whether an array can be taken without a copy."""
    if exchange.needs_contiguous and not array.flags.c_contiguous:
        return False
    if exchange.needs_writable and not array.flags.writeable:
        return False
    return exchange.alignment <= 1 or array.ctypes.data % exchange.alignment == 0


def to_host(value: Held) -> Any:
    """Convert a value for the caller: an array, or the reference's value for other types."""
    return value if type(value) is np.ndarray else hand_over(value, CALLER)


def fetched(value: Held) -> Any:
    """Convert a value as ``to_host`` does; EngineError if its device fails to give it."""
    if not isinstance(value, Buffer):
        return to_host(value)
    with EVENTS.span("hand-over", f"{value.device} to host", device="host") as details:
        array = guarded(value.device, "run", "a region", to_host, value)
        details |= {"bytes": array.nbytes, "tensors": 1}
    return array


def copied(value: Held) -> Buffer | None:
    """Copy a buffer of a device on that device; None if only the host can."""
    if not isinstance(value, Buffer) or isinstance(value, HostBuffer):
        return None
    value.require_open()
    whole, start = value.root()
    return guarded(value.device, "run", "a region", whole.extracted, start, value.type)


def own_copy(value: Held) -> Held:
    """Copy a value to memory that nobody else knows, on its device where that is possible."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [own_copy(item) for item in value]
    buffer = copied(value)
    if buffer is not None:
        return buffer
    array = np.asarray(fetched(value))
    return array.copy() if array.dtype.kind in "OT" else aligned_copy(array)


def own_truth(value: Held) -> Held:
    """Copy booleans so that each byte is 0 or 1: engines compute with the bytes."""
    if isinstance(value, Buffer) and not isinstance(value, HostBuffer):
        return own_copy(value)
    array = np.asarray(fetched(value))
    truth = aligned_empty(array.shape, array.dtype)
    np.not_equal(array.view(np.uint8), 0, out=truth)
    return truth
