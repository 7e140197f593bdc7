"""What does one call cost over ONNX Runtime run bare?

Interleaved, best of many rounds of a tiny MLP (16-32-4) and of a graph of one node, the same
session on both sides of each row; the first row is bare against itself: the noise.
Run: python benchmarks/onnxruntime_calls.py
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from fusewire.backends.onnxruntime.engine import OnnxRuntimeBackend
from fusewire.contract.backend import Config, Device
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.text import constants_of
from fusewire.ir.types import TensorType
from fusewire.ops.activation import relu
from fusewire.ops.contraction import linear
from fusewire.ops.elementwise import add

ROUNDS, CALLS = 200, 100
BACKEND, CPU = OnnxRuntimeBackend(), Device("cpu", "cpu")


def graphs() -> dict[str, Graph]:
    """Make the graphs that are called."""
    rng = np.random.default_rng(0)
    x = Value(TensorType(float32, (symbol("n"), 16)), "x")

    def weight(*shape: int) -> Value:
        return constant(rng.normal(size=shape).astype(np.float32))

    hidden = relu(linear(x, weight(32, 16), weight(32)))
    mlp = linear(hidden, weight(4, 32), weight(4))
    return {
        "mlp": Graph([x], [mlp], output_names=["y"]),
        "one node": Graph([x], [add(x, x)], output_names=["y"]),
    }


def measure(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Give microseconds a call, the best of interleaved rounds."""
    best = dict.fromkeys(ways, float("inf"))
    for call in ways.values():
        for _ in range(500):
            call()
    for _ in range(ROUNDS):
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / CALLS * 1e6)
    return best


def ways(graph: Graph, x: Array) -> dict[str, Callable[[], object]]:
    """Load a graph once, and give the ways to call it."""
    artifact = BACKEND.compile(graph, CPU, Config())
    held = {digest: found.array for digest, found in constants_of(graph).items()}
    ours: Any = BACKEND.load(artifact, CPU, held)
    session = ours._held[0]
    native = session._sess
    return {
        "session.run": lambda: session.run(["y0"], {"x0": x}),
        "session.run again": lambda: session.run(["y0"], {"x0": x}),
        "without its checks": lambda: native.run(["y0"], {"x0": x}, None),
        "ours": lambda: ours.run([x])[0],
    }


def main() -> None:
    """Print microseconds a call, and ratios to bare."""
    x = np.random.default_rng(1).normal(size=(1, 16)).astype(np.float32)
    for name, graph in graphs().items():
        found = measure(ways(graph, x))
        bare = found["session.run"]
        print(f"{name}, onnxruntime {onnxruntime.__version__}")
        for way, microseconds in found.items():
            print(f"  {way:20} {microseconds:6.2f} us  {microseconds / bare:5.2f}")


if __name__ == "__main__":
    main()
