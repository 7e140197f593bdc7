"""A program in the interpreting child; ``launch`` runs programs on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fusewire.backends.triton.client import Client
from fusewire.backends.triton.printer import Function
from fusewire.backends.triton.program import brought_data
from fusewire.contract.backend import Executable, Held, Into, Slot
from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Array


@final
class Interpreted(Executable):
    """A program in the child that interprets."""

    def __init__(
        self,
        client: Client,
        payload: bytes,
        brought: Mapping[int, Function],
        slots: Sequence[Slot],
        weights: Mapping[str, Array],
    ) -> None:
        """``brought`` are the functions of kernels that packages bring: the child has none."""
        self._client = client
        self._payload = payload
        self._brought = brought
        self._inputs = [s for s in slots if s.role == "input"]
        self._outputs = [s for s in slots if s.role == "output"]
        self._weights = dict(weights)
        self._held = f"{id(self)}"
        self._generation = self._load()

    def _load(self) -> int:
        generation = self._client.generation
        blobs = [np.frombuffer(self._payload, np.uint8), *map(_bytes, self._weights.values())]
        header = {
            "kind": "load",
            "held": self._held,
            "digests": list(self._weights),
            "brought": brought_data(self._brought),
        }
        self._client.ask(header, blobs, "a module")
        return generation

    @property
    def is_reentrant(self) -> bool:
        """Scratch memory is of one run at a time."""
        return False

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Send inputs, wait for outputs."""
        if self._client.generation != self._generation:
            self._generation = self._load()
        sent = [_checked(x, slot) for x, slot in zip(inputs, self._inputs, strict=True)]
        frame = self._client.ask({"kind": "run", "held": self._held}, sent, "a region")
        outputs: list[Held] = []
        for slot, blob in zip(self._outputs, frame.blobs, strict=True):
            outputs.append(blob.view(slot.dtype.numpy).reshape([int(str(d)) for d in slot.dims]))
        return outputs

    def close(self) -> None:
        """Have the child let go of it."""
        self._client.drop(self._held, self._generation)


def _checked(given: Held, slot: Slot) -> Array:
    if not isinstance(given, np.ndarray) or given.shape != slot.dims:
        found = getattr(given, "shape", type(given).__name__)
        raise ShapeMismatchError(
            f"{slot.name} was compiled for {slot.dims}, and {found} was given."
        )
    return _bytes(given)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
