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
from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import CPU
from fusewire.contract.script import Script, Scripted
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.types import TensorType

_REINSTALL = "Reinstall torch, with the build for this device."


@final
class TorchBackend(Backend, ArtifactWriter, Scripted):
    """Runs regions in eager mode, with one lowering that Inductor shares."""

    def __init__(self) -> None:
        self._probed: list[Device | Unavailable] | None = None

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

    def exchange_on(self, device: Device) -> Exchange:
        """GPUs have a memory of their own, where outputs stay."""
        return self.exchange if device.kind == CPU else Exchange(memory=device.id)

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.torch.lowering import TABLE

        return TABLE

    def probe(self) -> list[Device | Unavailable]:
        """Run something tiny on the CPU, and on every GPU that PyTorch was built for, once."""
        if self._probed is None:
            self._probed = self._found()
        return list(self._probed)

    def _found(self) -> list[Device | Unavailable]:
        if importlib.util.find_spec("torch") is None:
            return [Unavailable.not_installed(INFO, "torch")]
        from fusewire.backends.torch.devices import asked_apart, built_for

        own = self._tried(Device(CPU, platform.processor() or platform.machine()))
        kind = built_for()
        return [own, *(asked_apart(kind) if kind else ())]

    def tried_gpus(self, kind: str) -> list[Device | Unavailable]:
        """Start the GPUs of a kind, and run something tiny on each."""
        from fusewire.backends.torch.devices import listed

        return [self._tried(x) if isinstance(x, Device) else x for x in listed(kind)]

    def _tried(self, device: Device) -> Device | Unavailable:
        from fusewire.contract.region import proven

        return proven(self, "PyTorch", device, _REINSTALL)

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what is in the lowering table."""
        from fusewire.backends.torch.refusal import refuses_on
        from fusewire.contract.region import claim_by_table

        return claim_by_table(graph, refuses_on(device.kind), shapes="dynamic")

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
        from fusewire.backends.torch.devices import place_of
        from fusewire.backends.torch.executable import TorchExecutable
        from fusewire.backends.torch.threads import threads_in
        from fusewire.ir.text import parse_graph

        held = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), held)
        place = place_of(device)
        if place is None:
            return TorchExecutable(graph, threads_in(artifact.launch))
        from fusewire.backends.torch.resident import ResidentTorchExecutable

        return ResidentTorchExecutable(graph, device.id, place)

    def allocate(self, type_: TensorType, device: Device) -> Buffer | None:
        """Make a tensor on a GPU; the CPU shares the memory of the host."""
        if device.kind == CPU:
            return None
        from fusewire.backends.torch.devices import place_of
        from fusewire.backends.torch.resident import TorchBuffer

        return TorchBuffer.zeros(device.id, type_, place_of(device))

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """What is kept is text; times and verdicts are those of a chip."""
        own = {} if device.kind == CPU else {"device": device.id, "chip": device.name}
        return {"engine": INFO.version, **own}


def tell() -> None:
    """Say which GPUs this build of PyTorch finds, proven; a process of its own runs this."""
    from fusewire.backends.torch.devices import built_for
    from fusewire.process.apart import say_devices, say_ready

    kind = built_for()
    say_ready()
    say_devices(TorchBackend().tried_gpus(kind) if kind else ())
