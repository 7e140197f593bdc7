"""The Inductor backend. Importing this file imports no engine."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import final

from fusewire.backends.inductor.gaps import GAPS
from fusewire.backends.inductor.info import INFO
from fusewire.backends.torch.info import launch_of
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
from fusewire.errors import FormatError
from fusewire.ir.graph import Array, Graph
from fusewire.process.machine import processor


@final
class InductorBackend(Backend, Scripted):
    """Compiles regions ahead of time, for static shapes, to shared libraries."""

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

    def probe(self) -> list[Device | Unavailable]:
        """Look for PyTorch and a compiler: to compile something tiny would take half a minute."""
        if importlib.util.find_spec("torch") is None:
            return [Unavailable.not_installed(INFO, "torch")]
        compiler = shutil.which("g++")
        facts = {"compiler": compiler or "none"}
        return [Device("cpu", platform.processor() or platform.machine(), facts=facts)]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what eager mode runs and an export can hold."""
        from fusewire.backends.inductor.refusal import refuses
        from fusewire.contract.region import claim_by_table

        return claim_by_table(graph, refuses)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Export the region and compile it."""
        from fusewire.backends.inductor.compiling import compile_region
        from fusewire.backends.torch.program import copied_outputs
        from fusewire.contract.region import edge_slots, weight_slots

        launch = launch_of(config, INFO.name)
        start = time.perf_counter()
        library = compile_region(region, config.threads)
        # Every constant is a weight: none of them is in the library.
        slots = (*edge_slots(region), *weight_slots(region, 0))
        return Artifact(
            "native",
            library.written(),
            slots,
            launch={**launch, "copied": tuple(map(int, copied_outputs(region)))},
            metrics={"compile_seconds": time.perf_counter() - start},
            key={"torch": INFO.version},
        )

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Open the library, and show it the weights."""
        from fusewire.backends.inductor.executable import InductorExecutable

        compiled_with = artifact.key.get("torch")
        if compiled_with != INFO.version:
            raise FormatError(
                f"This library was compiled with torch {compiled_with}, and torch {INFO.version} "
                "is installed. Compile it again."
            )
        return InductorExecutable(artifact, weights)

    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Write a script that runs a region with PyTorch alone."""
        from fusewire.backends.inductor.script import script

        return script(region, config.threads)

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """Machine code depends on the processor, beside the version."""
        return {"engine": INFO.version, "cpu": processor()}
