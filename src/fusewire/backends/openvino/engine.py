"""OpenVINO behind the contract. Imports the engine only when something is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, final

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
from fusewire.backends.openvino.gaps import GAPS
from fusewire.backends.openvino.holding import Holding
from fusewire.backends.openvino.info import INFO
from fusewire.errors import EngineRaised
from fusewire.ir.builder import Rebuild
from fusewire.ir.graph import Array, Attr, Constant, Graph, Node
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph
from fusewire.region import claim_by_table, edge_slots, weight_slots
from fusewire.rewrite.legalize import legalize

INSTALL = "Install it with: pip install 'fusewire[openvino]'"


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


@final
class OpenvinoBackend(Backend):
    """OpenVINO's CPU plugin, computing in float32 whatever its own default is."""

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
        """Arrays of the host, one element after the other."""
        return Exchange()

    @property
    def lowerings(self) -> MutableMapping[str, Any]:
        """The table itself."""
        from fusewire.backends.openvino.lowering import LOWERINGS

        return LOWERINGS

    def probe(self) -> list[Device | Unavailable]:
        """Find the CPU, proved by a sum."""
        try:
            import openvino
        except ImportError as error:
            return [Unavailable("not-installed", f"openvino cannot be imported: {error}.", INSTALL)]
        from fusewire.backends.openvino.executable import proves

        if not proves(_core()):
            return [Unavailable("wrong", "OpenVINO's CPU plugin gave a wrong sum.", INSTALL)]
        get = _core().get_property
        facts: dict[str, Fact] = {
            "engine": str(openvino.get_version()),
            "abilities": tuple(str(x) for x in get("CPU", "OPTIMIZATION_CAPABILITIES")),
        }
        return [Device("cpu", str(get("CPU", "FULL_DEVICE_NAME")), facts=facts)]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what the lowering table has, in the dtypes that it takes."""
        graph = with_plain_bodies(graph)
        holding = Holding(graph)
        return claim_by_table(graph, lambda node: refusal(holding, node), shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the region.

        The engine's own blob is no better: it holds all weights again (46.8 MB for 46.8 MB), per
        signature, while building anew from nodes and weights that are mapped takes
        as long as reading one (see benchmarks).
        """
        config.checked(INFO.name, {})
        region = with_plain_bodies(region)
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        launch = {} if config.threads is None else {"threads": config.threads}
        return Artifact("rebuild", print_graph(region).encode(), slots, launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Build the engine's graph over the weights, which are shared, and compile it."""
        from fusewire.backends.openvino.executable import OpenvinoExecutable

        held = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), held)
        holding = Holding(graph)
        if any(refusal(holding, node) for node in graph.nodes):
            # Offered as part of a graph that tells more of what enters here than the region does.
            holding = Holding(graph, guarded=True)
            for node in graph.nodes:
                reason = refusal(holding, node)
                if reason is not None:
                    raise EngineRaised(f"Without the graph around it: {reason}")
        threads = artifact.launch.get("threads")
        return OpenvinoExecutable(_core(), holding, threads if isinstance(threads, int) else None)


def with_plain_bodies(graph: Graph) -> Graph:
    """Expand the composites in bodies that are refused: nobody else does it inside of a node."""
    if not any(True for node in graph.nodes for _ in node.graphs()):
        return graph
    holding, rebuild, nodes = Holding(graph), Rebuild(graph), []
    for node in graph.nodes:
        new = rebuild.copied(node)
        bodies: dict[str, Attr] = {
            key: legalize(body, lambda inner: refusal(holding, inner)).graph
            for key, body in node.graphs()
        }
        if bodies:
            new = new.copy(new.inputs, {**new.attrs, **bodies})
        rebuild.replace(node, new.outputs)
        nodes.append(new)
    outputs = [rebuild.value(value) for value in graph.outputs]
    return Graph(graph.inputs, outputs, nodes, name=graph.name, output_names=graph.output_names)


def refusal(holding: Holding, node: Node) -> str | None:
    """Say why a node is refused, or None."""
    from fusewire.backends.openvino.lowering import LOWERINGS

    row = LOWERINGS.get(node.op)
    if row is None:
        return f"OpenVINO has no {node.op}, and no nodes to make it of."
    found = holding.refuses(node, row)
    if found is None and row.refuses is not None:
        found = row.refuses(node)
    if found is not None:
        return found
    for _, body in node.graphs():
        for inner in body.nodes:
            reason = refusal(holding, inner)
            if reason is not None:
                return f"In the body of {node.op}: {reason}"
    return None
