"""How does the core scale? Verify, print, parse, hash and the whole pipeline on large graphs.

    python benchmarks/graph_scale.py [--nodes 1000 10000 100000] [--json]

The graphs are decoder blocks as exporters spell them out: layer norms in parts, attention with
shape arithmetic, rotary parts, gated feed-forward, casts, repeated subexpressions, and a
subgraph now and then; weights are shared between blocks so that memory stays small.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.hash import exact_hash, structural_hash
from fusewire.ir.text import constants_of, parse_graph, print_graph
from fusewire.ir.types import TensorType
from fusewire.ops.table import verify
from fusewire.rewrite.pipeline import run_pipeline

WIDTH, HEADS = 64, 4


class Decoder:
    """Decoder blocks over one set of weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.batch = symbol("batch")
        self.x = Value(TensorType(float32, (self.batch, 16, WIDTH)), "x")
        shapes = {
            "q": (64, 64),
            "k": (64, 64),
            "v": (64, 64),
            "o": (64, 64),
            "up": (64, 128),
            "gate": (64, 128),
            "down": (128, 64),
            "scale": (64,),
            "bias": (64,),
        }
        self.weights = {
            key: constant(rng.standard_normal(shape).astype(np.float32) * 0.1, key)
            for key, shape in shapes.items()
        }
        self.one = constant(np.array([1], np.int64))

    def norm(self, x: Any) -> Any:
        centred = ops.subtract(x, ops.reduce_mean(x, axes=(-1,), keepdims=True))
        again = ops.subtract(x, ops.reduce_mean(x, axes=(-1,), keepdims=True))
        variance = ops.reduce_mean(ops.multiply(centred, again), axes=(-1,), keepdims=True)
        normal = ops.divide(centred, ops.sqrt(ops.add(variance, 1e-5)))
        return ops.add(ops.multiply(normal, self.weights["scale"]), self.weights["bias"])

    def heads(self, x: Any, weight: str) -> Any:
        batch = ops.gather(ops.shape_of(x), np.array([0]), axis=0)
        rest = np.array([16, HEADS, WIDTH // HEADS])
        shape = ops.concat(ops.multiply(batch, self.one), rest, axis=0)
        dims = (self.batch, 16, HEADS, WIDTH // HEADS)
        split = ops.dynamic_reshape(ops.matmul(x, self.weights[weight]), shape, dims=dims)
        return ops.transpose(ops.transpose(split, perm=(0, 2, 3, 1)), perm=(0, 1, 3, 2))

    def attention(self, x: Any) -> Any:
        q, k, v = (self.heads(x, weight) for weight in "qkv")
        scores = ops.multiply(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), 0.25)
        exps = ops.exp(ops.subtract(scores, ops.reduce_max(scores, axes=(-1,), keepdims=True)))
        weights = ops.divide(exps, ops.reduce_sum(exps, axes=(-1,), keepdims=True))
        mixed = ops.transpose(ops.matmul(weights, v), perm=(0, 2, 1, 3))
        flat = ops.reshape(mixed, shape=(self.batch, 16, WIDTH))
        return ops.matmul(flat, self.weights["o"])

    def feed_forward(self, x: Any) -> Any:
        up = ops.matmul(x, self.weights["up"])
        gate = ops.matmul(x, self.weights["gate"])
        gated = ops.multiply(up, ops.multiply(gate, ops.sigmoid(gate)))
        same = ops.cast(ops.cast(gated, dtype="float64"), dtype="float32")
        return ops.matmul(ops.add(same, -0.0), self.weights["down"])

    def choice(self, x: Any) -> Any:
        branches = []
        for op in (ops.relu, ops.tanh):
            operand = Value(x.type, "operand")
            branches.append(Graph([operand], [op(operand)], output_names=["result"]))
        known = constant(np.array(True))
        return ops.cond(known, x, then=branches[0], otherwise=branches[1])[0]


def decoder(nodes: int) -> Graph:
    """Make a graph of about so many nodes."""
    parts = Decoder()

    def block(x: Value, choose: bool) -> Any:
        x = ops.add(x, parts.attention(parts.norm(x)))
        x = ops.add(x, parts.feed_forward(parts.norm(x)))
        return parts.choice(x) if choose else x

    per_block = len(Graph([parts.x], [block(parts.x, False)]).nodes)
    x = parts.x
    for number in range(max(1, round(nodes / per_block))):
        x = block(x, number % 16 == 0)
    return Graph([parts.x], [x], name="decoder")


STAGES = ("verify", "print", "parse", "structural hash", "exact hash", "pipeline")


def stages(graph: Graph) -> dict[str, Callable[[], Any]]:
    """Map the names of ``STAGES`` to what is timed."""
    text = print_graph(graph)
    constants = constants_of(graph)
    calls: list[Callable[[], Any]] = [
        lambda: verify(graph),
        lambda: print_graph(graph),
        lambda: parse_graph(text, constants),
        lambda: structural_hash(graph),
        lambda: exact_hash(graph),
        lambda: run_pipeline(graph),
    ]
    return dict(zip(STAGES, calls, strict=True))


def measure(nodes: int) -> dict[str, Any]:
    """Time every stage once, with collection of garbage between stages, not within."""
    start = time.perf_counter()
    graph = decoder(nodes)
    row: dict[str, Any] = {"nodes": len(graph.nodes), "build": time.perf_counter() - start}
    for name, stage in stages(graph).items():
        gc.collect()
        start = time.perf_counter()
        result = stage()
        row[name] = time.perf_counter() - start
        if name == "pipeline":
            row["nodes after"] = len(result.graph.nodes)
        del result
    row["total"] = sum(row[name] for name in STAGES)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(nodes) for nodes in args.nodes]
    ratio = rows[-1]["total"] / rows[-2]["total"] if len(rows) > 1 else None
    if args.json:
        json.dump({"rows": rows, "ratio of the last two": ratio}, sys.stdout, indent=1)
        return
    print(f"Python {platform.python_version()}, NumPy {np.__version__}; seconds")
    for key in rows[0]:
        cells = [
            f"{r[key]:>12.3f}" if isinstance(r[key], float) else f"{r[key]:>12,}" for r in rows
        ]
        print(f"{key:16}" + "".join(cells))
    if ratio is not None:
        print(f"the last size takes {ratio:.1f} times the one before")


if __name__ == "__main__":
    main()
