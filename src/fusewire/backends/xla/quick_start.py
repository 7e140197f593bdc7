"""First calls of a CPU program by jaxlib alone: importing jax takes half a second more.

A program that is read from bytes needs nothing of jax. jaxlib puts arrays on a device and runs an
executable, if objects tell it shapes, dtypes and the device as jax's do. Such a call takes longer
than one through jax's entry (37 us, not 15), so that after some calls a thread imports jax, whose
entry then takes over. Like `client`, this is the private interface of jaxlib.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, final

from jaxlib import _jax, xla_client

from fusewire.backends.xla.executable import check_arrays, edge
from fusewire.contract.backend import Slot
from fusewire.errors import note
from fusewire.host_memory import lender
from fusewire.ir.graph import Array

# After so many calls, jax is worth its import.
CALLS = 20


def read(device: Any, payload: bytes) -> Any:
    """Read an executable; never of bytes that somebody else could have written."""
    return device.client.deserialize_executable(payload, xla_client.DeviceList((device,)))


@final
class QuickStart:
    """Runs an executable without jax until ``full`` has made what runs it with jax.

    ``ready`` is told what ``full`` made.
    """

    def __init__(
        self,
        device: Any,
        executable: Any,
        weights: Sequence[Array],
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
        full: Callable[[], Callable[..., list[Array]]],
    ) -> None:
        self._device, self._executable, self._inputs = device, executable, inputs
        self._sharding = _Sharding(device)
        self._weights = [self._put(array) for array in weights]
        self._handlers = [
            _jax.array_result_handler(_Aval(slot), self._sharding, True, True) for slot in outputs
        ]
        self._lenders = [lender(slot.dims, slot.dtype.numpy) for slot in outputs]
        self._avals = [_Aval(slot) for slot in inputs]
        self._full = full
        self._calls = 0
        self._lock = threading.Lock()
        self.ready: Callable[[Callable[..., list[Array]]], None] = lambda call: None

    def __call__(self, *arguments: Array) -> list[Array]:
        """Run; outputs are fresh, writable, and the caller's."""
        check_arrays(self._inputs, arguments)
        self._count()
        given = [self._put(array, aval) for array, aval in zip(arguments, self._avals, strict=True)]
        results = self._executable.execute_sharded([*self._weights, *given])
        made = results.consume_with_handlers(self._handlers)
        return [
            lend(array, array.block_until_ready().unsafe_buffer_pointer())
            for lend, array in zip(self._lenders, made, strict=True)
        ]

    def _put(self, array: Array, aval: _Aval | None = None) -> Any:
        """Copy an array, or lend it where it is aligned: who gave it must not write to it."""
        of = aval or _Aval.of(array)
        given = of, self._sharding, [array], [self._device]
        return xla_client.batched_device_put(*given, enable_x64=True).block_until_ready()

    def _count(self) -> None:
        with self._lock:
            self._calls += 1
            if self._calls != CALLS:
                return
        # Whoever ends the process waits for it: an import that is cut off may crash.
        threading.Thread(target=self._take_over, name="fusewire-jax", daemon=False).start()

    def _take_over(self) -> None:
        try:
            self.ready(self._full())
        except Exception as error:  # noqa: BLE001 - whatever jax raises, calls go on without it
            note(f"XLA goes on without jax: {type(error).__name__}: {error}")


class _Aval:
    """What jaxlib asks of the type of an array."""

    weak_type = False

    def __init__(self, slot: Slot) -> None:
        self.shape, self.dtype = slot.dims, edge(slot.dtype)

    @staticmethod
    def of(array: Array) -> _Aval:
        made = _Aval.__new__(_Aval)
        made.shape, made.dtype = array.shape, array.dtype
        return made


class _Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc] # jaxlib has no types for it
    """All of an array on one device."""

    memory_kind = None

    def _to_xla_hlo_sharding(self, rank: int) -> Any:
        return xla_client.HloSharding.replicate()
