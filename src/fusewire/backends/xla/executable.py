"""A compiled program as a function of host arrays. Imports no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, final

import numpy as np

from fusewire.contract.backend import Done, Event, Executable, Held, Slot
from fusewire.host_memory import ALIGNMENT, address, aligned_copy
from fusewire.ir.graph import Array

# Inputs of at least so many bytes that are not aligned are copied here: above 100 KiB XLA would
# have another thread do it, and wait for it (a call with 256 KiB: 94 us, not 59).
LARGE = 96 << 10


@final
class XlaExecutable(Executable):
    """A function from host arrays to host arrays, with its weights bound."""

    def __init__(
        self,
        call: Callable[..., list[Array]],
        inputs: Sequence[Slot],
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._call = call
        self._metrics = metrics
        self._narrow = [i for i, slot in enumerate(inputs) if slot.dtype.is_narrow]
        self._large = [i for i, slot in enumerate(inputs) if is_large(slot)]

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own buffers."""
        return True

    @property
    def metrics(self) -> Mapping[str, float]:
        """What XLA planned."""
        return self._metrics

    def run(self, inputs: Sequence[Held]) -> Event:
        """Run to the end."""
        return Done(self.compute(inputs))

    def compute(self, inputs: Sequence[Held]) -> list[Held]:
        """Run to the end; outputs are fresh, writable, and the caller's."""
        if self._narrow or self._large:
            inputs = self._shown(inputs)
        outputs: list[Held] = self._call(*inputs)  # type: ignore[assignment] # arrays are held
        return outputs

    def _shown(self, inputs: Sequence[Any]) -> list[Any]:
        """View narrow dtypes as bytes, and align what is large."""
        shown = list(inputs)
        for i in self._narrow:
            shown[i] = shown[i].view(np.uint8)
        for i in self._large:
            if address(shown[i]) % ALIGNMENT:
                shown[i] = aligned_copy(shown[i])
        return shown


def bytes_of(slot: Slot) -> int:
    """Count the bytes of a tensor; dims that are not known count as 1."""
    return math.prod([slot.dtype.itemsize, *(dim for dim in slot.dims if isinstance(dim, int))])


def is_large(slot: Slot) -> bool:
    """Tell whether XLA would copy an unaligned array of this size in another thread."""
    return bytes_of(slot) >= LARGE
