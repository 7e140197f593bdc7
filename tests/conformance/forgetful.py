"""A backend that gets every op right, and loses boolean constants that are not in the graph."""

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fusewire.contract.backend import Artifact, Device, Executable, Gap
from fusewire.ir.graph import Array
from tests.wrapped import WrappedBackend


@final
class Forgetful(WrappedBackend):
    """Takes everything; of a large boolean constant nothing is true."""

    def __init__(self, *gaps: Gap) -> None:
        super().__init__("forgetful", "Loses boolean constants.", trusted=True)
        self._gaps = gaps

    @property
    def gaps(self) -> Sequence[Gap]:
        return self._gaps

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        lost = {
            digest: np.zeros_like(held) if held.dtype == np.bool_ else held
            for digest, held in weights.items()
        }
        return self.inner.load(artifact, device, lost)
