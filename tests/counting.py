"""Counts what a run takes and gives back: descriptors, buffers, closes, copies, listings."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import Executable, Held, Into
from fusewire.host_memory import aligned_copy
from fusewire.plan import transfer
from fusewire.store.files import Folder, Found


@final
class CountedExecutable(Executable):
    """Runs as another does; its outputs are counted as long as somebody has them."""

    def __init__(self, inner: Executable, counts: Counts) -> None:
        self._inner = inner
        self._counts = counts

    @property
    def is_reentrant(self) -> bool:
        return self._inner.is_reentrant

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        outputs = self._inner.run(inputs, into)
        self._counts.made(outputs)
        return outputs

    def close(self) -> None:
        self._counts.closes += 1
        self._inner.close()


class Counts:
    """What was counted since the test began; ``descriptors`` are those open now."""

    def __init__(self) -> None:
        self.loads = self.closes = self.copies = self.listings = 0
        # The most buffers that were alive after a step, the new ones among them.
        self.most_live = 0
        self._buffers: list[weakref.ref[Any]] = []

    @property
    def descriptors(self) -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    @property
    def live(self) -> int:
        return sum(buffer() is not None for buffer in self._buffers)

    def made(self, outputs: Sequence[Held]) -> None:
        self._buffers += [weakref.ref(x) for x in outputs if isinstance(x, np.ndarray)]
        self.most_live = max(self.most_live, self.live)

    @property
    def open(self) -> int:
        """How many executables are loaded and not closed."""
        gc.collect()
        return self.loads - self.closes


def counting(patch: pytest.MonkeyPatch) -> Counts:
    """Count from now on, as long as the patch lasts."""
    counts = Counts()
    load, copy, listed = ReferenceBackend.load, aligned_copy, Folder.__iter__

    def counted_load(self: ReferenceBackend, *arguments: Any) -> Executable:
        counts.loads += 1
        return CountedExecutable(load(self, *arguments), counts)

    def counted_copy(array: Any) -> Any:
        counts.copies += 1
        return copy(array)

    def counted_listing(self: Folder) -> Iterator[Found]:
        counts.listings += 1
        return listed(self)

    patch.setattr(ReferenceBackend, "load", counted_load)
    patch.setattr(transfer, "aligned_copy", counted_copy)
    patch.setattr(Folder, "__iter__", counted_listing)
    return counts
