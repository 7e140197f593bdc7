"""Load machine code of XLA's: by jaxlib alone where jax is not imported yet, else with jax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fusewire.backends.xla.cpus import cpus, is_alone, read_code
from fusewire.backends.xla.devices import Place
from fusewire.backends.xla.executable import XlaExecutable, as_bytes, is_large
from fusewire.backends.xla.resident import ResidentExecutable
from fusewire.contract.backend import Artifact, Device, Executable, Slot
from fusewire.contract.timing import are_times_taken
from fusewire.ir.graph import Array

if TYPE_CHECKING:
    from fusewire.backends.xla.client import Client


@dataclass(frozen=True)
class NativeProgram:
    """Machine code, and the weights of it as they cross the edge of the program."""

    artifact: Artifact
    device: Device
    weights: Mapping[str, Array]

    @cached_property
    def place(self) -> Place:
        return Place.of(self.device)

    def loaded(self) -> Executable:
        """Read the code and put the weights where it runs."""
        if self._may_start_quickly:
            return self._quick()
        if not self.place.is_host:
            return self._resident()
        return self._on_host()

    def slots(self, role: str) -> list[Slot]:
        return [slot for slot in self.artifact.slots if slot.role == role]

    def held(self) -> list[Array]:
        """List the weights, in the order of their slots."""
        slots = self.slots("weight")
        return [as_bytes(self.weights[slot.digest or ""], slot.dtype) for slot in slots]

    @cached_property
    def _threads(self) -> int | None:
        return int(self.artifact.launch["threads"]) or None  # type: ignore[arg-type] # ours

    @cached_property
    def _parts(self) -> list[bytes]:
        """The code, and that which takes memory for its outputs, if there is such."""
        payload: bytes = self.artifact.payload
        if not self._spares:
            return [payload]
        first: Any = self.artifact.launch["first"]
        return [payload[:first], payload[first:]]

    @cached_property
    def _spares(self) -> Sequence[int]:
        found: Any = self.artifact.launch.get("spares", ())
        return tuple(found)

    @cached_property
    def _pairs(self) -> list[tuple[int, int]]:
        flat: Any = self.artifact.launch.get("pairs", ())
        return list(zip(flat[::2], flat[1::2], strict=True))

    @property
    def _uses_lapack(self) -> bool:
        return bool(self.artifact.launch["lapack"])

    @property
    def _may_start_quickly(self) -> bool:
        # Functions of LAPACK's and states need more of jax than a call does.
        needs_jax = self._uses_lapack or bool(self._pairs)
        # And whoever takes times wants those of the long run.
        may_wait = needs_jax or are_times_taken() or not is_alone()
        return self.place == Place("cpu", 0) and not may_wait

    def _quick(self) -> Executable:
        # The client comes first: it keeps jaxlib quiet.
        device = cpus(self._threads).local_devices()[0]
        from fusewire.backends.xla.quick_start import QuickStart

        code = read_code(device, self._parts[0])
        edges = self.slots("input"), self.slots("output")
        quick = QuickStart(device, code, self.held(), *edges, partial(self._call, code))
        executable = XlaExecutable(quick, edges[0], partial(planned_bytes, code))
        quick.serve(executable)
        return executable

    def _on_host(self) -> Executable:
        from fusewire.backends.xla import client

        code = self._owner.load(self._parts[0], self._uses_lapack)
        inputs, planned = self.slots("input"), partial(planned_bytes, code)
        if not self._pairs:
            return XlaExecutable(self._call(code), inputs, planned)
        updating = client.UpdatingProgram(*self._bound(code), self._pairs)
        return XlaExecutable(updating.run, inputs, planned, updating.update)

    def _call(self, code: Any) -> Callable[..., list[Array]]:
        """Make what jax runs the code by."""
        from fusewire.backends.xla import client

        waits = any(map(is_large, self.slots("input")))
        return client.bind(*self._bound(code), waits)

    @property
    def _owner(self) -> Client:
        """The client of the device."""
        from fusewire.backends.xla import client

        return client.client(self.place, self._threads)

    def _bound(
        self, code: Any
    ) -> tuple[Client, list[Any], list[Any], list[Slot], list[Slot], Sequence[int]]:
        """Return what every way to run it with jax needs."""
        owner = self._owner
        loaded = [code, *(owner.load(part, self._uses_lapack) for part in self._parts[1:])]
        ready = [owner.put(array) for array in self.held()]
        return owner, loaded, ready, self.slots("input"), self.slots("output"), self._spares

    def _resident(self) -> Executable:
        from fusewire.backends.xla import client

        code = self._owner.load(self._parts[0], self._uses_lapack)
        owner, _, ready, *edges, _ = self._bound(code)
        run = client.bind_resident(owner, code, ready, *edges)
        return ResidentExecutable(run, self.device.id, owner.put, *edges)


def planned_bytes(executable: Any) -> int:
    """Count what a run takes besides its arguments: temporary memory, and what it returns.

    XLA writes out all that it planned to tell this, so it is asked only when somebody needs it.
    """
    stats = executable.get_compiled_memory_stats()
    return int(stats.temp_size_in_bytes + stats.output_size_in_bytes)
