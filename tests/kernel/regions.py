"""Random regions that kernels take: made, fused, lowered, interpreted, judged."""

from __future__ import annotations

from dataclasses import dataclass

from fusewire.fusion.grouping import Fusion, fuse
from fusewire.ir.graph import Graph, Node
from fusewire.kernel.form import Lowered
from fusewire.kernel.interpret import interpret
from fusewire.kernel.lower.region import lower_fusion
from fusewire.kernel.lower.table import expansion_refusal, refusal
from fusewire.kernel.verify import verify_lowered
from fusewire.numerics.judge import Verdict, judge_op
from tests.random_graphs import FromRandom, Generated, random_graph


@dataclass(frozen=True)
class Region:
    """A random region, its groups and its kernels."""

    generated: Generated
    fusion: Fusion
    lowered: Lowered

    def judge(self) -> Verdict:
        """Interpret the kernels, and compare with the oracle."""
        got = interpret(self.lowered, self.generated.inputs)
        return judge_op(self.generated.graph, self.generated.inputs, got)


def random_region(seed: int) -> Region:
    """Make a region of some nodes that kernels take; the same for the same seed."""
    nodes = 3 + seed % 10
    made = _computed(random_graph(FromRandom(seed), nodes, _takes))
    fusion = fuse(made.graph, refusal)
    lowered = lower_fusion(fusion)
    verify_lowered(lowered)
    return Region(made, fusion, lowered)


def _takes(node: Node) -> bool:
    return expansion_refusal(node) is None


def _computed(made: Generated) -> Generated:
    """Keep outputs that are computed, and the inputs that nodes use: those are tensors."""
    graph = made.graph
    used = {v for node in graph.nodes for v in node.operands}
    inputs = [(v, x) for v, x in zip(graph.inputs, made.inputs, strict=True) if v in used]
    found = zip(graph.outputs, graph.output_names, made.outputs, strict=True)
    outputs = [(v, name, x) for v, name, x in found if v.node is not None]
    kept = Graph(
        [v for v, _ in inputs],
        [v for v, _, _ in outputs],
        graph.nodes,
        output_names=[name for _, name, _ in outputs],
    )
    return Generated(kept, [x for _, x in inputs], [x for _, _, x in outputs])
