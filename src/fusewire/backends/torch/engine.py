"""The PyTorch backend. Importing this file imports no engine."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, final

from fusewire.backends.torch.gaps import GAPS
from fusewire.backends.torch.info import INFO, launch_of
from fusewire.contract.artifact_writer import ArtifactWriter
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.script import Script, Scripted
from fusewire.ir.graph import Array, Constant, Graph


@final
class TorchBackend(Backend, ArtifactWriter, Scripted):
    """Runs regions in eager mode on the CPU, with one lowering that Inductor shares."""

    def __init__(self) -> None:
        self._probed: Device | Unavailable | None = None

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    @property
    def exchange(self) -> Exchange:
        """Contiguous arrays of the host."""
        return Exchange()

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.torch.lowering import TABLE

        return TABLE

    def probe(self) -> list[Device | Unavailable]:
        """Run something tiny, once."""
        if self._probed is None:
            self._probed = self._tried()
        return [self._probed]

    def _tried(self) -> Device | Unavailable:
        if importlib.util.find_spec("torch") is None:
            return Unavailable.not_installed(INFO, "torch")
        from fusewire.contract.region import doubled

        device = Device("cpu", platform.processor() or platform.machine())
        found = doubled(self, device)
        if found == [2.0, 2.0]:
            return device
        return Unavailable("wrong", f"PyTorch added 1 and 1 to {found}.", "Reinstall torch.")

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what is in the lowering table."""
        from fusewire.backends.torch.refusal import refuses
        from fusewire.contract.region import claim_by_table

        return claim_by_table(graph, refuses, shapes="dynamic")

    def write_artifact(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph: there is nothing to compile."""
        from fusewire.contract.region import edge_slots, weight_slots
        from fusewire.ir.text import INLINE_BYTES, print_graph

        launch = launch_of(config)
        # A constant is in the text exactly when it is not a weight.
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots, launch=launch)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph."""
        return self.write_artifact(region, device, config)

    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Write a script that runs a region with PyTorch alone."""
        from fusewire.backends.torch.script import script

        return script(region, config.threads)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Make the steps of the graph; weights stay where they are."""
        from fusewire.backends.torch.executable import TorchExecutable
        from fusewire.backends.torch.threads import threads_in
        from fusewire.ir.text import parse_graph

        held = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), held)
        return TorchExecutable(graph, threads_in(artifact.launch))
