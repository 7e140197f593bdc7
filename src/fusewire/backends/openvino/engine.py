"""The OpenVINO backend. Imports the engine, and what only compiling needs, on first use."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, final

from fusewire.backends.openvino.gaps import GAPS
from fusewire.backends.openvino.info import INFO, OPTIONS, launch_of
from fusewire.contract.backend import (
    ENGINE_NAN,
    FITTED,
    NAN,
    SIZES,
    Artifact,
    Backend,
    BackendInfo,
    BackendOption,
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
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.model_file import FileFormat, FileReader, ModelFile
from fusewire.contract.script import Script, Scripted
from fusewire.ir.graph import Array, Constant, Graph, Node
from fusewire.ir.types import type_symbols
from fusewire.process.machine import processor
from fusewire.process.wheels import native_libraries

if TYPE_CHECKING:
    from fusewire.backends.openvino.executable import OpenvinoExecutable

_REINSTALL = "Reinstall openvino."
# What a blob depends on, beside the name of the device.
_DRIVER = ("architecture", "driver")
# Fewer nodes, without weights, are compiled nearly as quickly as they are read.
FEW_NODES = 16
# Above this, writing and keeping all weights again costs more than it saves.
MOST_BYTES = 1 << 30


@cache
def _core() -> Any:
    from fusewire.backends.openvino.api import openvino

    return openvino.Core()


@final
class OpenvinoBackend(Backend, Scripted, FileReader, Inspector):
    """OpenVINO's plugins, computing in float32 whatever their own defaults are, unless asked."""

    @property
    def info(self) -> BackendInfo:
        """Who this is."""
        return INFO

    @property
    def gaps(self) -> Sequence[Gap]:
        """What it is known to get wrong."""
        return GAPS

    @property
    def options(self) -> Sequence[BackendOption]:
        """What to do about NaN, and what float32 is computed in."""
        return OPTIONS

    @property
    def exchange(self) -> Exchange:
        """Arrays of the host, one element after the other."""
        return Exchange()

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.openvino.lowering import LOWERINGS

        return LOWERINGS

    def probe(self) -> list[Device | Unavailable]:
        """List what the engine lists, each proven by a sum."""
        if find_spec("openvino") is None:
            return [Unavailable.not_installed(INFO, "openvino")]
        try:
            import_module("fusewire.backends.openvino.api")
        except ImportError as error:
            return [Unavailable("broken", f"openvino cannot be imported: {error}.", _REINSTALL)]
        from fusewire.backends.openvino.devices import listed

        return listed(_core())

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what the lowering table has, in the dtypes that it takes."""
        from fusewire.backends.openvino.refusal import claimed, with_plain_bodies

        return claimed(with_plain_bodies(graph))

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the region, or compile it where a reload gains by it."""
        from fusewire.backends.openvino.refusal import held, with_plain_bodies
        from fusewire.contract.region import HELD_BYTES, edge_slots, held_bytes, weight_slots
        from fusewire.ir.text import INLINE_BYTES, constants_of, print_graph

        launch = launch_of(config)
        region = with_plain_bodies(region)
        weights = list(weight_slots(region, INLINE_BYTES + 1))
        slots = (*edge_slots(region), *weights)
        made = Artifact("rebuild", print_graph(region).encode(), slots, launch=launch)
        size = sum(constant.array.nbytes for constant in constants_of(region).values())
        if size > MOST_BYTES or (not weights and len(region.nodes) < FEW_NODES):
            return made
        if held_bytes(region) > HELD_BYTES or not _exports(device):
            return made
        from fusewire.backends.openvino.building import border_of, compiled_model, rounded
        from fusewire.backends.openvino.devices import plugin_of
        from fusewire.backends.openvino.stored import exported

        holding = held(rounded(region, launch))
        # What the engine reads where it lies must be there until all is written.
        compiled, _kept = compiled_model(_core(), plugin_of(device), holding, launch)
        return exported(made, compiled, border_of(holding))

    @property
    def file_formats(self) -> tuple[FileFormat, ...]:
        """It has a reader of ONNX."""
        return ("onnx",)

    @property
    def reduces_files(self) -> bool:
        """The options are those of its compiler, whoever made the model."""
        return True

    def refuses_file(self, file: ModelFile, region: Graph, device: Device) -> str | None:
        """Refuse what it would compute in other dtypes than the file says."""
        if not _exports(device):
            return f"OpenVINO's {device.id} does not write compiled models."
        from fusewire.backends.openvino.reading import refuses_file

        return refuses_file(file, region)

    def compile_file(
        self, file: ModelFile, region: Graph, device: Device, config: Config
    ) -> Artifact:
        """Have the engine read the model, and give its blob."""
        from fusewire.backends.openvino.devices import plugin_of
        from fusewire.backends.openvino.reading import border_of_file, compiled_file
        from fusewire.backends.openvino.stored import exported
        from fusewire.contract.region import edge_slots

        launch, slots = launch_of(config), tuple(edge_slots(region))
        core, plugin = _core(), plugin_of(device)
        compiled = compiled_file(core, plugin, file, region, launch)
        made = Artifact("native", b"", slots, launch=launch)
        return exported(made, compiled, border_of_file(slots))

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Have the engine read its blob, or build a graph over the weights, and compile it."""
        executable = self._load(artifact, device, weights)
        executable.compile_counting = lambda: self._load(artifact, device, weights, counts=True)
        return executable

    def _load(
        self,
        artifact: Artifact,
        device: Device,
        weights: Mapping[str, Array],
        *,
        counts: bool = False,
    ) -> OpenvinoExecutable:
        from fusewire.backends.openvino.devices import plugin_of

        if artifact.kind == "native":
            from fusewire.backends.openvino.stored import imported

            return imported(artifact, _core(), plugin_of(device), counts=counts)
        from fusewire.backends.openvino.building import border_of, compiled_model, rounded
        from fusewire.backends.openvino.executable import OpenvinoExecutable
        from fusewire.backends.openvino.refusal import held
        from fusewire.ir.text import parse_graph

        constants = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), constants)
        holding = held(rounded(graph, artifact.launch))
        compiled, kept = compiled_model(
            _core(), plugin_of(device), holding, artifact.launch, counts=counts
        )
        return OpenvinoExecutable(compiled, artifact.slots, border_of(holding), kept)

    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """Read the runtime model, which names the layers that each of its nodes came from."""
        from fusewire.backends.openvino.devices import plugin_of
        from fusewire.backends.openvino.inspection import runtime_kernels

        return runtime_kernels(_core(), plugin_of(device), region, launch_of(config))

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """A blob depends on processor, device and driver, beside the engine."""
        return {
            "engine": INFO.version,
            "library": native_libraries("openvino", "libs"),
            "cpu": processor(),
            "precision": "f32",
            "device": device.id,
            "chip": device.name,
            **{name: str(device.facts[name]) for name in _DRIVER if name in device.facts},
        }

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """Offer the engine's own nodes, which lose NaN, and sizes that it knows, where it gains."""
        known = self._unmended(region, device)
        if not _is_open(region):
            return known
        # Kernels are fused for sizes that are known, and chosen at each call for others.
        return [*({**options, SIZES: FITTED} for options in known), {SIZES: FITTED}]

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """Offer what the device computes contractions of float32 in faster, with any NaN too."""
        from fusewire.contract.region import has_contraction

        if not has_contraction(region):
            return []
        from fusewire.backends.openvino.devices import precisions
        from fusewire.rewrite.int8 import has_int8_products

        names = precisions(device)
        known: list[dict[str, Fact]] = [{"precision": x} for x in names if x != "int8"]
        if "int8" in names and has_int8_products(region):
            # Smaller blocks take more time, and err less.
            known += [{"precision": "int8"}, {"precision": "int8", "block": 32}]
        varied = self._unmended(region, device)
        return [*known, *({**options, **one} for options in varied for one in known)]

    def loses_nan(self, node: Node, device: Device) -> bool:
        """Look whether its table has a node of the engine's own, which is mended otherwise."""
        from fusewire.backends.openvino.lowering import LOWERINGS

        row = LOWERINGS.get(node.op)
        return row is not None and row.may_lose(node)

    def _unmended(self, region: Graph, device: Device) -> list[dict[str, Fact]]:
        nodes = (node for part in region.walk() for node in part.nodes)
        is_any = any(self.loses_nan(node, device) for node in nodes)
        return [{NAN: ENGINE_NAN}] if is_any else []

    def calibrates(self, device: Device) -> bool:
        """A device that lists int8 computes layers of rounded operands in it."""
        from fusewire.backends.openvino.devices import precisions

        return "int8" in precisions(device)

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        """List products in int8, whose weights we round one by one."""
        from fusewire.rewrite.int8 import int8_places

        return int8_places(region) if options.get("precision") == "int8" else ()

    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Give the model as files, and what runs it."""
        from fusewire.backends.openvino.devices import plugin_of
        from fusewire.backends.openvino.script import script

        return script(_core(), plugin_of(device), region, config)


def _exports(device: Device) -> bool:
    """Tell whether compiled models of a device can be written; one that was not asked can."""
    abilities = device.facts.get("abilities")
    return not isinstance(abilities, tuple) or "EXPORT_IMPORT" in abilities


def _is_open(region: Graph) -> bool:
    """Tell whether calls decide sizes of its inputs."""
    return any(True for value in region.inputs for _ in type_symbols(value.type))
