"""ONNX Runtime behind the contract."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, final

import numpy as np

from fusewire.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.backends.onnxruntime.copies import Copies
from fusewire.backends.onnxruntime.gaps import GAPS
from fusewire.backends.onnxruntime.info import INFO
from fusewire.dtypes import float32
from fusewire.errors import OptionsError
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.elementwise import add
from fusewire.region import build, claim_by_table, edge_slots, weight_slots

INSTALL = "pip install 'fusewire[onnxruntime]'"
# Constants of so many bytes are weights: bound by digest, never in the model.
WEIGHT_BYTES = 1024


@final
class OnnxRuntimeBackend(Backend):
    """Runs on the CPU; other execution providers are other devices, later."""

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
        from fusewire.backends.onnxruntime.lowering import LOWERING

        return LOWERING

    def probe(self) -> list[Device | Unavailable]:
        """Run a node, once."""
        if self._probed is None:
            self._probed = self._tried()
        return [self._probed]

    def _tried(self) -> Device | Unavailable:
        if importlib.util.find_spec("onnxruntime") is None:
            return Unavailable("not-installed", "ONNX Runtime is not installed.", INSTALL)
        device = Device("cpu", platform.processor() or platform.machine())
        x = Value(TensorType(float32, (symbol("n"),)), "x")
        twice = build(self, Graph([x], [add(x, x)]), device)
        (found,) = twice.run([np.ones(3, np.float32)]).wait()
        if isinstance(found, np.ndarray) and found.tolist() == [2.0, 2.0, 2.0]:
            return device
        return Unavailable("wrong", f"ONNX Runtime added 1 and 1 to {found}.", INSTALL)

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what the ONNX writer can write for the kernels there are."""
        from fusewire.backends.onnxruntime.lowering import opsets, refuses

        versions = opsets(graph)
        return claim_by_table(graph, lambda node: refuses(node, versions), shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Write the model; the engine compiles when it is loaded."""
        from fusewire.backends.onnxruntime.lowering import lower

        config.checked(INFO.name, {})
        if config.threads is not None and config.threads < 1:
            raise OptionsError(f"threads={config.threads}: at least 1 is needed, or none given.")
        if not region.nodes and all(v in region.inputs for v in region.outputs):
            places = tuple(region.inputs.index(v) for v in region.outputs)
            return Artifact("rebuild", b"", tuple(edge_slots(region)), launch={"copies": places})
        weights = list(weight_slots(region, WEIGHT_BYTES))
        outside = {slot.digest for slot in weights if slot.digest is not None}
        model = lower(region).proto(outside)
        launch: dict[str, Fact] = {"deterministic": config.deterministic}
        if config.threads is not None:
            launch["threads"] = config.threads
        slots = (*edge_slots(region), *weights)
        return Artifact("rebuild", model.SerializeToString(), slots, launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Make a session; the weights stay where they are."""
        if "copies" in artifact.launch:
            places: Any = artifact.launch["copies"]
            return Copies(places)
        from fusewire.backends.onnxruntime.session import open_session

        return open_session(artifact, weights)
