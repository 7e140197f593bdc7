"""First calls of a CPU program by jaxlib alone: importing jax takes half a second more.

A program that is read from bytes needs nothing of jax. jaxlib puts arrays on a device and runs an
executable, if objects tell it shapes, dtypes and the device as jax's do. Such a call takes longer
than one through jax's entry (37 us, not 15), so that after some calls a thread imports jax, whose
entry then takes over. Like `client`, this is the private interface of jaxlib.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from jaxlib import _jax, xla_client

from fusewire.backends.xla.executable import XlaExecutable, check_arrays, edge
from fusewire.backends.xla.info import INFO
from fusewire.contract.backend import Slot
from fusewire.errors import FusewireError, note
from fusewire.host_memory import lender
from fusewire.ir.graph import Array
from fusewire.process.forks import without_forks
from fusewire.process.guard import guarded

# After so many calls, jax is worth its import.
CALLS = 20
# Programs that wait for jax, and the lock of whoever adds one or ends the thread.
_WAITING: deque[QuickStart] = deque()
_LOCK = threading.Lock()


@final
class QuickStart:
    """Runs an executable without jax until ``full`` has made what runs it with jax."""

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
        self._weights = [self._put(array, _Aval(array.shape, array.dtype)) for array in weights]
        self._avals = [_Aval.of(slot) for slot in inputs]
        self._handlers = [
            _jax.array_result_handler(_Aval.of(slot), self._sharding, True, True)
            for slot in outputs
        ]
        self._lenders = [lender(slot.dims, slot.dtype.numpy) for slot in outputs]
        self._full = full
        self._calls = 0
        self._user: weakref.ref[XlaExecutable] | None = None

    def serve(self, executable: XlaExecutable) -> None:
        """Answer the calls of an executable, until it has what answers them with jax."""
        self._user = weakref.ref(executable)

    def __call__(self, *arguments: Array) -> list[Array]:
        """Run; outputs are fresh, writable, and the caller's."""
        check_arrays(self._inputs, arguments)
        # Threads may count one call of two: it is no matter when jax comes.
        count = self._calls = self._calls + 1
        if count == CALLS:
            _import_behind(self)
        given = [self._put(*pair) for pair in zip(arguments, self._avals, strict=True)]
        results = self._executable.execute_sharded([*self._weights, *given])
        made = results.consume_with_handlers(self._handlers)
        return [
            lend(array, array.block_until_ready().unsafe_buffer_pointer())
            for lend, array in zip(self._lenders, made, strict=True)
        ]

    def hand_over(self) -> None:
        """Have jax answer from now on; if it cannot, calls go on as before."""
        user = None if self._user is None else self._user()
        if user is None:
            return
        try:
            # A process that is forked in between would have half of jax.
            with without_forks():
                user.call = guarded(INFO.name, "import", "jax", self._full)
        except FusewireError as error:
            note(f"XLA goes on without jax: {error}")

    def _put(self, array: Array, of: _Aval) -> Any:
        """Copy an array, or lend it where it is aligned: who gave it must not write to it."""
        given = of, self._sharding, [array], [self._device]
        return xla_client.batched_device_put(*given, enable_x64=True).block_until_ready()


def _import_behind(program: QuickStart) -> None:
    """Have one thread hand programs over to jax, one after the other."""
    with _LOCK:
        _WAITING.append(program)
        if len(_WAITING) > 1:
            return
        # Whoever ends the process waits for it: an import that is cut off may crash.
        thread = threading.Thread(target=_hand_over_all, name="fusewire-jax", daemon=False)
        try:
            thread.start()
        except RuntimeError as error:
            _WAITING.clear()
            note(f"XLA goes on without jax: {error}")


def _hand_over_all() -> None:
    while True:
        _WAITING[0].hand_over()
        with _LOCK:
            _WAITING.popleft()
            if not _WAITING:
                return


class _Aval:
    """What jaxlib asks of the type of an array."""

    weak_type = False

    def __init__(self, shape: tuple[Any, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    @staticmethod
    def of(slot: Slot) -> _Aval:
        return _Aval(slot.dims, edge(slot.dtype))


class _Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc] # jaxlib has no types for it
    """All of an array on one device."""

    memory_kind = None

    def _to_xla_hlo_sharding(self, rank: int) -> Any:
        return xla_client.HloSharding.replicate()
