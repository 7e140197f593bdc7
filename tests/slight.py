"""A backend that is slightly off if the first element of its input is ``MARK``: a doubtful case."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fusewire.contract.backend import (
    Artifact,
    Device,
    Done,
    Event,
    Executable,
    Held,
)
from fusewire.ir.graph import Array
from tests.wrapped import WrappedBackend

MARK = -2.0
# Of each element: a few tolerances.
OFF = np.float32(1 + 1e-5)


@final
class SlightExecutable(Executable):
    """Runs as chaos without a fault does, and scales what comes out."""

    def __init__(self, inner: Executable) -> None:
        self._inner = inner

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        found = self._inner.run(inputs).wait()
        first = inputs[0]
        is_marked = isinstance(first, np.ndarray) and first.flat[0] == MARK
        return Done([x * OFF if is_marked and isinstance(x, np.ndarray) else x for x in found])


@final
class SlightBackend(WrappedBackend):
    """Takes everything."""

    def __init__(self) -> None:
        super().__init__("slight", "Is slightly off.")

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return SlightExecutable(self.inner.load(artifact, device, weights))
