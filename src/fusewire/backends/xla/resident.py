"""Tensors that stay in the memory of a device that is not the host's. Imports no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from fusewire.contract.backend import Executable, Held, Into, Slot
from fusewire.contract.buffer import Buffer, EngineBuffer, note_download, note_upload
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType


@final
class XlaBuffer(EngineBuffer):
    """An array of jax on one device; narrow dtypes are held as bytes."""

    def __init__(self, device: str, type_: TensorType, array: Any, put: Callable[[Array], Any]):
        super().__init__(device, type_, array)
        self._put = put

    @staticmethod
    def zeros(device: str, type_: TensorType, put: Callable[[Array], Any]) -> XlaBuffer:
        """Make a buffer of zeros: XLA has no array that is not written to."""
        shape: Any = type_.shape
        zeros = np.zeros(shape, type_.dtype.numpy)
        return XlaBuffer(device, type_, put(bytes_of_narrow(zeros, type_.dtype.is_narrow)), put)

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host."""
        array = self.tensor
        note_download(self.nbytes)
        # A copy of our own: jax keeps what it fetched, read-only.
        host = np.array(array).view(self._type.dtype.numpy)
        if offset == 0 and count is None:
            return host
        flat = host.reshape(-1)
        return flat[offset : None if count is None else offset + count]

    def wait(self) -> None:
        """Block until the device has written it."""
        self.tensor.block_until_ready()

    def write(self, array: Array, offset: int = 0) -> None:
        """Put another array in its place, with some elements replaced: jax's never change."""
        host = self.read()
        host.reshape(-1)[offset : offset + array.size] = array.reshape(-1)
        note_upload(self.nbytes)
        self._tensor = self._put(bytes_of_narrow(host, self._type.dtype.is_narrow))

    def copy_within(self, source: Buffer, start: int, count: int, offset: int) -> bool:
        """Put another array in its place, made on the device."""
        if not isinstance(source, XlaBuffer):
            return False
        part, own = source.tensor.reshape(-1)[start : start + count], self.tensor
        flat = own.reshape(-1).at[offset : offset + count].set(part)
        self._tensor = flat.reshape(own.shape)
        return True

    def extracted(self, offset: int, type_: TensorType) -> Buffer | None:
        """Slice it on the device."""
        shape: Any = type_.shape
        part = self.tensor.reshape(-1)[offset : offset + math.prod(shape)].reshape(shape)
        return XlaBuffer(self._device, type_, part, self._put)

    def exporter(self) -> Any:
        """Return the array of jax; one of narrow elements holds their bytes."""
        return None if self._type.dtype.is_narrow else self.tensor


def bytes_of_narrow(array: Array, is_narrow: bool) -> Array:
    """View elements of narrow dtypes as the bytes that cross the edge of a program."""
    return array.view(np.uint8) if is_narrow else array


@final
class ResidentExecutable(Executable):
    """A function from arrays, of the host or the device, to arrays of the device."""

    def __init__(
        self,
        call: Callable[..., list[Any]],
        device: str,
        put: Callable[[Array], Any],
        inputs: Sequence[Slot],
        outputs: Sequence[Slot],
    ) -> None:
        self._call = call
        self._device = device
        self._put = put
        self._narrow = [slot.dtype.is_narrow for slot in inputs]
        self._types = [TensorType(slot.dtype, slot.dims) for slot in outputs]

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own buffers."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Start a run: its outputs may be given to the next one before it is done."""
        given = [self._shown(x, narrow) for x, narrow in zip(inputs, self._narrow, strict=True)]
        arrays = self._call(*given)
        made = zip(self._types, arrays, strict=True)
        return [XlaBuffer(self._device, type_, x, self._put) for type_, x in made]

    def _shown(self, value: Any, is_narrow: bool) -> Any:
        if isinstance(value, XlaBuffer):
            return value.tensor
        note_upload(value.nbytes)
        return bytes_of_narrow(value, is_narrow)
