"""What the pools of this process hold, and how to free it."""

from __future__ import annotations

import gc
from collections.abc import Callable

from fusewire.host_memory import POOL, PRESSURE, MemoryPool, PoolUse
from fusewire.registry import REGISTRY


def memory() -> tuple[PoolUse, ...]:
    """Say what each pool of memory holds: that of the host, and those of devices in use.

    The arenas that engines keep to themselves are not in it.

    >>> import fusewire as fw
    >>> fw.memory()[0].device
    'cpu'
    """
    return tuple(pool.use() for pool in _pools())


def collect() -> int:
    """Free all memory that pools keep to use again; returns the bytes."""
    # Buffers that lie in a cycle come back first.
    gc.collect()
    return sum(pool.clear() for pool in _pools())


def on_memory_pressure(
    callback: Callable[[PoolUse], object], *, above: int | None = None
) -> Callable[[], None]:
    """Have a function called when memory is short, so that it can let go of buffers.

    It gets the use of the pool in question: when an allocation fails, before it is tried once more,
    and when the bytes in use of a pool exceed ``above``. Returns a function that removes it.

    >>> import fusewire as fw
    >>> stop = fw.on_memory_pressure(print, above=2**30)
    >>> stop()
    """
    return PRESSURE.add(callback, above)


def _pools() -> list[MemoryPool]:
    made = (REGISTRY.backends.made(name) for name in REGISTRY.backends.names())
    return [POOL, *(pool for backend in made if backend is not None for pool in backend.pools())]
