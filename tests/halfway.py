"""A backend that does other things than it was asked to with memory that it is given to write to.

It runs graphs as the reference does. Kinds: ``half`` writes half of it at its second chance, and
raises; ``other`` writes to memory of its own; ``second`` does so at every second chance.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

import numpy as np

from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table
from fusewire.ir.graph import Array, Graph

KINDS = ("half", "other", "second")


@final
class HalfwayExecutable(Executable):
    """Counts its chances to write to what it is given, and those of all of its kind."""

    offered = 0

    def __init__(self, inner: Executable, kind: str) -> None:
        self._inner, self._kind, self._chances = inner, kind, 0

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        results = self._inner.run(inputs)
        if not into:
            return results
        places = [inputs[wish] if isinstance(wish, int) else wish for wish in into]
        self._chances += 1
        HalfwayExecutable.offered += 1
        for number, place in enumerate(places):
            if isinstance(place, np.ndarray):
                results[number] = self._put(results[number], place)
        if self._kind == "half" and self._chances == 2:
            raise RuntimeError("it was told to fail half-way")
        return results

    def _put(self, result: Held, place: Array) -> Held:
        if self._kind == "other" or (self._kind == "second" and self._chances % 2 == 0):
            return result
        half = len(place) // 2 if self._kind == "half" and self._chances == 2 else len(place)
        place[:half] = np.asarray(result)[:half]
        return place


@final
class HalfwayBackend(Backend):
    """Takes everything."""

    def __init__(self, kind: str) -> None:
        self._kind, self._inner = kind, ReferenceBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("halfway", "1", "Writes elsewhere.", "tests")

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return Exchange()

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "halfway")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        return claim_by_table(graph, lambda node: None, "dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        return HalfwayExecutable(self._inner.load(artifact, device, weights), self._kind)


half, other, second = (partial(HalfwayBackend, kind) for kind in KINDS)
