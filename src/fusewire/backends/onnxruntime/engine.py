"""The ONNX Runtime backend. Imports that only compiling needs happen then."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, final

from fusewire.backends.onnxruntime.copies import Copies
from fusewire.backends.onnxruntime.gaps import GAPS
from fusewire.backends.onnxruntime.info import INFO, WHEELS
from fusewire.backends.onnxruntime.providers import (
    ARENA,
    CPU_PROVIDER,
    EXACT_CODES,
    FULL,
    SPINNING,
    all_options,
    launch_options,
    provider_of,
    provider_options,
)
from fusewire.contract.artifact_writer import ArtifactWriter
from fusewire.contract.backend import (
    CALIBRATED,
    ENGINE_NAN,
    EXACT_NODES,
    FITTED,
    INT8,
    NAN,
    PRECISION,
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
    Slot,
    Unavailable,
)
from fusewire.contract.devices import CPU, KINDS, preference
from fusewire.contract.inspection import EngineKernel, Inspector
from fusewire.contract.model_file import FileFormat, FileReader, ModelFile
from fusewire.contract.script import Script, Scripted
from fusewire.errors import OptionsError, RefusedError
from fusewire.ir.graph import Array, Graph, Node
from fusewire.process.machine import processor
from fusewire.process.wheels import installed, native_libraries

# Constants of so many bytes are weights: bound by digest, never in the model that is written.
WEIGHT_BYTES = 1024
# Fewer nodes, without weights, are optimised as quickly as they are read.
FEW_NODES = 16


@final
class OnnxRuntimeBackend(Backend, ArtifactWriter, Scripted, FileReader, Inspector):
    """Every execution provider that the engine has is a device, that of the CPU among them."""

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

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.onnxruntime.lowering import LOWERING

        return LOWERING

    @property
    def options(self) -> Sequence[BackendOption]:
        """Those of its providers."""
        return all_options()

    def probe(self) -> list[Device | Unavailable]:
        """Run a node with every provider, once."""
        if self._probed is None:
            self._probed = self._found()
        return list(self._probed)

    def _found(self) -> list[Device | Unavailable]:
        if importlib.util.find_spec("onnxruntime") is None:
            return [Unavailable.not_installed(INFO, "onnxruntime")]
        from fusewire.backends.onnxruntime.discovery import other_devices

        found = [self._processor(), *other_devices(), *several_wheels()]
        # The engine's own kernels come before other ways to use the processor.
        return sorted(found, key=_order)

    def _processor(self) -> Device | Unavailable:
        device = Device(CPU, platform.processor() or platform.machine())
        found = _doubled(self, device)
        if found == [2.0, 2.0, 2.0]:
            return device
        return Unavailable(
            "wrong", f"ONNX Runtime added 1 and 1 to {found}.", "Reinstall onnxruntime.", CPU
        )

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what the ONNX writer can write for the kernels there are."""
        from fusewire.backends.onnxruntime.lowering import opsets, refuses
        from fusewire.contract.region import claim_by_table

        versions, provider = opsets(graph), provider_of(device)
        if provider is None:
            return claim_by_table(graph, lambda node: refuses(node, versions), "dynamic")
        from fusewire.backends.onnxruntime.trust import provider_refusal

        return claim_by_table(
            graph,
            lambda node: refuses(node, versions) or provider_refusal(provider, node),
            provider.shapes,
        )

    def write_artifact(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Write the model."""
        from fusewire.backends.onnxruntime.lowering import in_place, lower, needs_exact_codes
        from fusewire.contract.region import edge_slots, weight_slots
        from fusewire.onnx.elements import can_lie_outside

        launch, given = _launch(device, config), region
        region = _in_int8(given, device, config)
        if not region.nodes and all(v in region.inputs for v in region.outputs):
            places = tuple(region.inputs.index(v) for v in region.outputs)
            return Artifact("rebuild", b"", tuple(edge_slots(region)), launch={"copies": places})
        # What a file packs, and strings, cannot be read where they lie.
        slots = weight_slots(region, WEIGHT_BYTES)
        weights = [slot for slot in slots if can_lie_outside(slot.dtype)]
        if region is not given:
            from fusewire.ir.text import constants_of

            # Codes that were made of weights are nobody's but this artifact's.
            known = constants_of(given)
            weights = [slot for slot in weights if slot.digest in known]
        outside = {slot.digest for slot in weights if slot.digest is not None}
        written = lower(region, launch)
        if places := in_place(written, len(region.inputs), len(region.outputs)):
            launch["in_place"] = places
        if needs_exact_codes(region):
            launch[EXACT_CODES] = True
        model = written.proto(outside)
        edges = edge_slots(region)
        return Artifact("rebuild", model.SerializeToString(), (*edges, *weights), launch=launch)

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Write the model, and have the engine optimise it where a reload gains by it."""
        from fusewire.contract.region import weights_of
        from fusewire.ir.text import constants_of

        made = self.write_artifact(region, device, config)
        has_weights = any(slot.role == "weight" for slot in made.slots)
        is_short = not has_weights and len(region.nodes) < FEW_NODES
        # What another provider compiles stays in its session.
        if is_short or provider_of(device) is not None:
            return made
        from fusewire.backends.onnxruntime.stored import optimised

        constants = constants_of(region)
        held = frozenset(digest for digest, x in constants.items() if x.is_held)
        return optimised(made, weights_of(made, constants), held)

    @property
    def file_formats(self) -> tuple[FileFormat, ...]:
        """ONNX is its own format."""
        return ("onnx",)

    def refuses_file(self, file: ModelFile, region: Graph, device: Device) -> str | None:
        """Refuse what has kernels that are not right, which we go around."""
        from fusewire.backends.onnxruntime.lowering import distrusts

        if (provider := provider_of(device)) is not None:
            from fusewire.backends.onnxruntime.trust import graph_refusal

            if refused := graph_refusal(provider, file.graph):
                return refused
        return distrusts(file.graph)

    def compile_file(
        self, file: ModelFile, region: Graph, device: Device, config: Config
    ) -> Artifact:
        """Have the engine optimise the model that was read."""
        from fusewire.backends.onnxruntime.lowering import needs_exact_codes
        from fusewire.contract.region import edge_slots, weights_of
        from fusewire.onnx.write.typed_file import file_slots, typed_model

        model, launch = typed_model(file, region), _launch(device, config)
        launch["inputs"] = tuple(info.name for info in model.graph.input)
        launch["outputs"] = tuple(info.name for info in model.graph.output)
        if needs_exact_codes(file.graph):
            launch[EXACT_CODES] = True
        slots = (*edge_slots(region), *file_slots(file))
        made = Artifact("rebuild", model.SerializeToString(), slots, launch=launch)
        is_short = not file.weights and len(model.graph.node) < FEW_NODES
        if is_short or provider_of(device) is not None:
            return made
        from fusewire.backends.onnxruntime.stored import optimised

        return optimised(made, weights_of(made, file.weights))

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Make a session; weights that are lent stay where they are."""
        if "copies" in artifact.launch:
            places: Any = artifact.launch["copies"]
            return Copies(places)
        from fusewire.backends.onnxruntime.executable import open_session, profilable

        if artifact.kind == "native":
            from fusewire.backends.onnxruntime.stored import open_stored

            return profilable(lambda measures: open_stored(artifact, weights, measures))
        place = None if provider_of(device) is None else device
        return profilable(lambda measures: open_session(artifact, weights, place, measures))

    def kernels(self, region: Graph, device: Device, config: Config) -> Sequence[EngineKernel]:
        """Read the model that the engine optimised; on the CPU, where it writes one."""
        if (provider := provider_of(device)) is not None:
            raise RefusedError(f"ONNX Runtime does not tell what {provider.name} fuses.")
        from fusewire.backends.onnxruntime.inspection import optimised_kernels

        return optimised_kernels(region, _launch(device, config))

    def fingerprint(self, device: Device) -> Mapping[str, str]:
        """What is optimised depends on the processor, beside the engine and the provider."""
        provider = provider_of(device)
        fields = {
            "engine": INFO.version,
            "library": native_libraries("onnxruntime", "capi"),
            "cpu": processor(),
            "providers": CPU_PROVIDER if provider is None else provider.name,
        }
        if package := str(device.facts.get("package", "")):
            version = str(device.facts.get("provider_version", ""))
            fields["provider"] = f"{version} {native_libraries(package)}"
        return fields

    def configs(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """Offer kernels that lose NaN on the CPU, and known sizes where they leave out a branch."""
        if provider_of(device) is not None:
            return []
        from fusewire.backends.onnxruntime.lowering import gains_by_sizes

        known: list[dict[str, Fact]] = []
        nodes = (node for part in region.walk() for node in part.nodes)
        if any(self.loses_nan(node, device) for node in nodes):
            known.append({NAN: ENGINE_NAN})
        if not gains_by_sizes(region):
            return known
        return [*({**options, SIZES: FITTED} for options in known), {SIZES: FITTED}]

    def loses_nan(self, node: Node, device: Device) -> bool:
        """Look whether its own kernel is among those that are mended."""
        from fusewire.backends.onnxruntime.mended import loses

        return loses(node)

    def reduced(self, region: Graph, device: Device) -> Sequence[Mapping[str, Fact]]:
        """Offer int8 for products with weights on the CPU, and what other providers have."""
        provider = provider_of(device)
        if provider is None:
            from fusewire.rewrite.int8 import has_int8_products

            return [{PRECISION: INT8}] if has_int8_products(region) else []
        from fusewire.contract.region import has_contraction

        # A default may be any of the others.
        own = (name for name in provider.precisions if name not in (FULL, "default"))
        return [{PRECISION: name} for name in own] if has_contraction(region) else []

    def calibrates(self, device: Device) -> bool:
        """Its own kernels on the CPU compute pairs of quantize and dequantize in int8."""
        return provider_of(device) is None

    def reduced_nodes(
        self, region: Graph, device: Device, options: Mapping[str, Fact]
    ) -> Sequence[int]:
        """List products in int8, which we write one by one."""
        from fusewire.rewrite.int8 import int8_places

        is_int8 = provider_of(device) is None and options.get(PRECISION) == INT8
        return int8_places(region) if is_int8 else ()

    def script(self, region: Graph, device: Device, config: Config) -> Script | None:
        """Give the model as a file, and what runs it, on the CPU; None for other providers."""
        from fusewire.backends.onnxruntime.script import script

        return script(region, config) if provider_of(device) is None else None


def _in_int8(region: Graph, device: Device, config: Config) -> Graph:
    """Round what the options ask for; the region itself if they ask for nothing."""
    is_dynamic = config.options.get(PRECISION) == INT8 and provider_of(device) is None
    lines = config.options.get(CALIBRATED)
    if not is_dynamic and not lines:
        return region
    from fusewire.contract.region import nodes_at
    from fusewire.process.machine import features
    from fusewire.rewrite.int8 import int8_places, with_int8_products
    from fusewire.rewrite.static_int8 import weight_codes, with_static_int8

    codes = weight_codes(features())
    if is_dynamic:
        places = str(config.options.get(EXACT_NODES, ""))
        exact = nodes_at(region, places, int8_places(region))
        region = with_int8_products(region, exact, codes)
    return with_static_int8(region, lines, codes=codes, rounds_outputs=True) if lines else region


def _launch(device: Device, config: Config) -> dict[str, Fact]:
    """Give what an artifact is optimised and run with."""
    options = provider_options(provider_of(device), device, config)
    if config.threads is not None and config.threads < 1:
        raise OptionsError(f"threads={config.threads}: at least 1 is needed, or none given.")
    launch: dict[str, Fact] = {"deterministic": config.deterministic}
    launch |= {name: False for name in (SPINNING, ARENA) if not config.options.get(name, True)}
    # What is rounded to int8 has no NaN, and other providers have kernels of their own.
    if config.options.get(NAN) == ENGINE_NAN or config.options.get(CALIBRATED) or options:
        launch[NAN] = ENGINE_NAN
    if options:
        launch["provider_options"] = launch_options(options)
    return launch if config.threads is None else {**launch, "threads": config.threads}


def _order(found: Device | Unavailable) -> int:
    """Sort by the kind of device, and what there is no device for last."""
    return preference(found.kind) if isinstance(found, Device) else len(KINDS) + 1


def several_wheels() -> list[Unavailable]:
    """Say that several wheels hold the engine: each overwrites files of the others."""
    found = {name: version for name in WHEELS if (version := installed(name))}
    if len(found) < 2:
        return []
    named = " and ".join(f"{name} {version}" for name, version in found.items())
    reason = f"{named} are installed, and have overwritten files of each other."
    fix = f"Run: pip uninstall -y {' '.join(found)}, then pip install the one you want."
    return [Unavailable("broken", reason, fix)]


def _doubled(backend: Backend, device: Device) -> list[float]:
    """Have three ones added to themselves."""
    import numpy as np

    from fusewire.backends.onnxruntime.discovery import SUM
    from fusewire.dtypes import float32

    slots = (Slot("input", "x", float32, (3,)), Slot("output", "y", float32, (3,)))
    launch: dict[str, Fact] = {**_launch(device, Config()), "inputs": ("x",), "outputs": ("y",)}
    artifact = Artifact("rebuild", SUM, slots, launch=launch)
    (sums,) = backend.load(artifact, device, {}).run([np.ones(3, np.float32)])
    doubled: list[float] = np.asarray(sums).tolist()
    return doubled
