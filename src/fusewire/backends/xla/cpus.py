"""CPU clients of our own, made by jaxlib alone: importing jax takes half a second more."""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from typing import Any

from fusewire.backends.xla.devices import assigned
from fusewire.process.wheels import installed

# The series of jaxlib whose private interface we know.
KNOWN = ("0.10.",)
_LOCK = threading.Lock()
# jaxlib by itself says which devices it found.
_QUIET = "TF_CPP_MIN_LOG_LEVEL"


def is_known() -> bool:
    """Tell whether this jaxlib is one that `client` and `quick_start` were written for."""
    return installed("jaxlib").startswith(KNOWN)


def is_alone() -> bool:
    """Tell whether jax is not imported here."""
    return "jax" not in sys.modules


@cache
def cpus(threads: int | None) -> Any:
    """Start a client with so many threads; it lives as long as the process."""
    count = _device_count()
    # jaxlib asks the environment for the size of the pools that it is about to make.
    pools = {} if threads is None else {"NPROC": str(threads)}
    quiet = {_QUIET: os.environ.get(_QUIET, "1")}
    with _LOCK, assigned({**pools, **quiet}):
        from jaxlib import xla_client

        # Without a count, it is what XLA_FLAGS says, or 1.
        return xla_client.make_cpu_client(
            asynchronous=False, num_devices=count if count >= 0 else None
        )


def read_code(device: Any, payload: bytes) -> Any:
    """Read an executable; never of bytes that somebody else could have written."""
    from jaxlib import xla_client

    return device.client.deserialize_executable(payload, xla_client.DeviceList((device,)))


def _device_count() -> int:
    """Return how many CPU devices jax was told to have, -1 if it was not."""
    jax = sys.modules.get("jax")
    if hasattr(jax, "config"):
        return int(jax.config.jax_num_cpu_devices)  # type: ignore[union-attr] # it has been asked
    told = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    return int(told) if told.isdecimal() else -1
