"""Backends that are right, and slow at one op: ``hills`` at ``cos``, ``dales`` at ``sin``.

``ledge`` is like ``hills``, and a little slow at ``tanh``. ``ravine`` is like ``dales``, and slow
at ``tanh`` in a region that also has ``cos``, which does not show where ``tanh`` is timed alone.

``plains`` is as slow at both, so that nothing is gained by leaving an engine for it. ``mesa`` and
``butte`` are slow at ``tanh`` and ``sin``, and ``mesa`` refuses ``sin``. ``glacier`` is like
``hills``, and says that it compiles for half a minute. ``slope`` is like ``dales``, and slower with
its option ``uphill``, with which it is tried too.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

from fusewire.contract.backend import (
    Artifact,
    BackendOption,
    Config,
    Device,
    Executable,
    Fact,
    Offer,
    Refusal,
)
from fusewire.contract.region import claim_by_table
from fusewire.ir.graph import Array, Graph
from tests.wrapped import SleepingExecutable, WrappedBackend

# Seconds that a slow op takes.
SECONDS = 0.02


@final
class CliffBackend(WrappedBackend):
    """Runs everything as the reference does, and sleeps for each op of a kind."""

    def __init__(
        self,
        name: str,
        slow: Sequence[str],
        refused: Sequence[str] = (),
        little: Sequence[str] = (),
        together: Sequence[str] = (),
        compile_seconds: float = 0.0,
        has_uphill: bool = False,
    ) -> None:
        about = f"Is slow at {' and '.join(slow)}."
        super().__init__(name, about, compile_seconds=compile_seconds)
        self._slow, self._refused = slow, refused
        self._little, self._together = little, {*together}
        self._has_uphill = has_uphill

    @property
    def options(self) -> Sequence[BackendOption]:
        uphill = BackendOption("uphill", False, "whether it is slow at everything")
        return [BackendOption("polite", False, "whether it leaves the cores to others"), uphill]

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        return [{"uphill": True}] if self._has_uphill else []

    def beside_others(self, device: Device) -> Mapping[str, Fact]:
        return {"polite": True}

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        refused = f"{self.info.name} does not go there."
        return claim_by_table(
            graph, lambda node: refused if node.op in self._refused else None, "dynamic"
        )

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        given = config.checked(self.info.name, self.options)
        made = self.inner.compile(region, device, Config())
        ops = [node.op for node in region.nodes]
        slow = sum(op in self._slow for op in ops) + sum(op in self._little for op in ops) / 4
        slow += bool(self._together) and self._together <= {*ops}
        slow += 2 * bool(given["uphill"])
        launch = {**made.launch, "slow": slow, "polite": given["polite"]}
        return Artifact(made.kind, made.payload, made.slots, launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        slow = artifact.launch["slow"]
        assert isinstance(slow, int | float)
        return SleepingExecutable(self.inner.load(artifact, device, weights), slow * SECONDS)


hills = partial(CliffBackend, "hills", ["cos"])
dales = partial(CliffBackend, "dales", ["sin"])
ledge = partial(CliffBackend, "ledge", ["cos"], little=["tanh"])
ravine = partial(CliffBackend, "ravine", ["sin"], together=["tanh", "cos"])
plains = partial(CliffBackend, "plains", ["cos", "sin"])
mesa = partial(CliffBackend, "mesa", ["tanh", "sin"], ["sin"])
butte = partial(CliffBackend, "butte", ["tanh", "sin"])
glacier = partial(CliffBackend, "glacier", ["cos"], compile_seconds=30.0)
slope = partial(CliffBackend, "slope", ["sin"], has_uphill=True)
