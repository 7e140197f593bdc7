"""Add your own engine: one that runs a chain of elementwise ops in blocks that fit the cache.

    python examples/own_backend.py

NumPy writes each intermediate array to memory. This engine takes a whole region and runs all of
its steps on a few thousand elements at a time, as numexpr does. It runs few ops; Fusewire gives
the rest to the reference, checks the answers, and compares its times with those of other engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

import fusewire as fw
from fusewire.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Into,
    Offer,
    Refusal,
    claim_by_table,
    edge_slots,
    weight_slots,
)
from fusewire.ir.graph import Constant, Graph, Node
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph

BLOCK = 8192
TABLE: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "negative": np.negative,
    "abs": np.abs,
}


def refuses(node: Node) -> str | None:
    """Say in a sentence why the engine does not run a node; people read it in ``why()``."""
    if node.op not in TABLE:
        return f"{node.op} is not elementwise, or not in the table."
    result = node.outputs[0].tensor
    if result.dtype.name not in ("float32", "float64"):
        return f"{result.dtype.name} is not taken; float32 and float64 are."
    for operand in node.operands:
        if operand.tensor.shape not in (result.shape, ()):
            return "it would broadcast, and blocks of both operands must match."
    return None


@final
class BlocksExecutable(Executable):
    """The steps of a region, and a buffer for each."""

    is_reentrant = True  # Every run has buffers of its own.

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Sequence[Any], into: Into = ()) -> list[Any]:
        """Run all steps on one block after the other."""
        graph = self._graph
        values = {v: v.constant.array for v in graph.constants if v.constant is not None}
        values |= dict(zip(graph.inputs, inputs, strict=True))
        shape = np.broadcast_shapes(*(np.shape(value) for value in values.values()))
        size = int(np.prod(shape))
        flat = {v: np.reshape(array, -1) for v, array in values.items()}
        results = {v: np.empty(size, v.tensor.dtype.numpy) for v in graph.outputs}
        scratch: dict[Any, Any] = {}
        for start in range(0, size, BLOCK):
            part = slice(start, min(start + BLOCK, size))
            held = {v: array if array.size == 1 else array[part] for v, array in flat.items()}
            for node in graph.nodes:
                (out,) = node.outputs
                if out in results:
                    held[out] = results[out][part]
                else:
                    if out not in scratch:
                        scratch[out] = np.empty(BLOCK, out.tensor.dtype.numpy)
                    held[out] = scratch[out][: part.stop - part.start]
                TABLE[node.op](*(held[v] for v in node.operands), out=held[out])
        return [results[v].reshape(shape) for v in graph.outputs]


@final
class BlocksBackend(Backend):
    """Runs elementwise regions in blocks."""

    info = BackendInfo("blocks", "1.0", "NumPy in blocks.", "an example", api=(3, 0))
    gaps = ()
    exchange = Exchange()

    def probe(self) -> list[Any]:
        """Find the processor."""
        return [Device("cpu", "NumPy in blocks")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Offer what is in the table, at any size."""
        return claim_by_table(graph, refuses, shapes="dynamic")

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Keep the region as text; constants of some size are weights, which come apart."""
        config.checked("blocks", ())
        slots = (*edge_slots(region), *weight_slots(region, INLINE_BYTES + 1))
        return Artifact("rebuild", print_graph(region).encode(), slots)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Any]) -> Executable:
        """Read the region again."""
        held = {digest: Constant.of(array) for digest, array in weights.items()}
        return BlocksExecutable(parse_graph(artifact.payload.decode(), held))


def main() -> None:
    """Use the engine for this process; an entry point would register it for all."""
    fw.register("own_backend:BlocksBackend", "blocks")

    def wave(x: Any, damping: float = 0.1) -> Any:
        y = np.exp(-damping * x) * np.sin(x) + np.sqrt(np.abs(np.cos(x)))
        return y - np.mean(y)

    x = np.linspace(0, 20, 300_000)
    program = fw.compile(wave, backend="blocks", fallback="allow")
    assert np.allclose(program(x=x), wave(x))
    for region in program.why().regions:
        print(f"{region.name}: {region.nodes} nodes on {region.backend}")

    # "auto" compares it with every other engine, and takes it only if it is the fastest.
    rivals = fw.compile(wave, fallback="allow", start="measured", budget_seconds=3)
    assert np.allclose(rivals(x=x), wave(x))
    for candidate in rivals.why().tried:
        took = "" if candidate.seconds is None else f"{candidate.seconds * 1e3:.1f} ms"
        print(f"{candidate.name:24} {candidate.status:12} {took}")


if __name__ == "__main__":
    main()
