"""A compiled program as a function of host arrays. Imports no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from fusewire.contract.backend import Executable, Held, Into, Slot
from fusewire.dtypes import DType
from fusewire.errors import ShapeMismatchError
from fusewire.host_memory import ALIGNMENT, address, aligned_copy
from fusewire.ir.graph import Array

# Inputs of at least so many bytes that are not aligned are copied here: above 100 KiB XLA would
# have another thread do it, and wait for it (a call with 256 KiB: 94 us, not 59).
LARGE = 96 << 10


# Takes arrays and the pairs that may be updated; returns arrays and the pairs that were.
Update: TypeAlias = Callable[
    [Sequence[Array], Sequence[tuple[int, int]]], tuple[list[Array], list[tuple[int, int]]]
]


@final
class XlaExecutable(Executable):
    """A function from host arrays to host arrays, with its weights bound."""

    def __init__(
        self,
        call: Callable[..., list[Array]],
        inputs: Sequence[Slot],
        planned: Callable[[], int] | None = None,
        update: Update | None = None,
    ) -> None:
        """``planned`` counts the bytes that a run takes, if XLA says.

        ``update`` runs it, and may write outputs over inputs.
        """
        self.call = call
        self._update = update
        self._planned = planned
        self._narrow = [i for i, slot in enumerate(inputs) if slot.dtype.is_narrow]
        self._large = [i for i, slot in enumerate(inputs) if is_large(slot)]

    @property
    def is_reentrant(self) -> bool:
        """Every run has its own buffers."""
        return True

    def run_bytes(self) -> int | None:
        """Return what XLA planned."""
        return None if self._planned is None else self._planned()

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end; outputs may go over inputs that XLA returned earlier."""
        if into and self._update is not None:
            updates = [(output, x) for output, x in enumerate(into) if isinstance(x, int)]
            if updates:
                return self._updated(self._update, inputs, updates)
        if self._narrow or self._large:
            inputs = self._shown(inputs)
        outputs: list[Held] = self.call(*inputs)  # type: ignore[assignment] # arrays are held
        return outputs

    def _updated(
        self, update: Update, inputs: Sequence[Held], updates: Sequence[tuple[int, int]]
    ) -> list[Held]:
        outputs, written = update(self._shown(inputs), updates)
        held: list[Held] = list(outputs)
        for output, place in written:
            held[output] = inputs[place]
        return held

    def _shown(self, inputs: Sequence[Any]) -> list[Any]:
        """View narrow dtypes as bytes, and align what is large."""
        shown = list(inputs)
        for i in self._narrow:
            shown[i] = shown[i].view(np.uint8)
        for i in self._large:
            if address(shown[i]) % ALIGNMENT:
                shown[i] = aligned_copy(shown[i])
        return shown


def edge(of: DType) -> np.dtype[Any]:
    """Give the dtype that crosses the edge of a program."""
    return np.dtype(np.uint8) if of.is_narrow else of.numpy


def as_bytes(array: Array, of: DType) -> Array:
    """Look at a host array as the edge of a program takes it."""
    return array.view(np.uint8) if of.is_narrow else array


def check_arrays(slots: Sequence[Slot], arguments: Sequence[Array]) -> None:
    """Raise ShapeMismatchError for an argument that does not have the type of its slot."""
    for slot, array in zip(slots, arguments, strict=True):
        if array.shape != slot.dims or array.dtype != edge(slot.dtype):
            raise ShapeMismatchError(
                f"The input {slot.name} is {slot.dtype.name}{list(slot.dims)}, "
                f"found {array.dtype}{list(array.shape)}."
            )


def bytes_of(slot: Slot) -> int:
    """Count the bytes of a tensor; dims that are not known count as 1."""
    return math.prod([slot.dtype.itemsize, *(dim for dim in slot.dims if isinstance(dim, int))])


def is_large(slot: Slot) -> bool:
    """Tell whether XLA would copy an unaligned array of this size in another thread."""
    return bytes_of(slot) >= LARGE
