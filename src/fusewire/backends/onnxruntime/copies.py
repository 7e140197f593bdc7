"""Regions that need no engine because they return their inputs, and names by place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from fusewire.contract.backend import Executable, Held, Into


def input_names(count: int) -> list[str]:
    """Name the inputs of a model by their places."""
    return [f"x{place}" for place in range(count)]


def output_names(count: int) -> list[str]:
    """Name the outputs of a model by their places."""
    return [f"y{place}" for place in range(count)]


@final
class Copies(Executable):
    """Gives some of its inputs, whatever their dtypes."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    @property
    def is_reentrant(self) -> bool:
        """There is nothing to share."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Copy."""
        return [np.array(inputs[place]) for place in self._places]
