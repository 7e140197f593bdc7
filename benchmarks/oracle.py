"""Does the oracle's tolerance fit the true error, and does the judge bite?

Random nets of 12 layers in float32. For each: the tolerance against the true error, right engines
that must pass (other orders of summation, PyTorch with --torch), and planted faults: one element
of one layer moved by 10 times its tolerance, judged at that layer and at the output.

    python benchmarks/oracle.py --trials 1000 --torch --json out.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter
from fusewire.ops.table import get_op

LAYERS = 12
BATCH = 16
PLANTED = 10.0
TRIALS_PER_NET = 20
ACTIVATIONS = ("relu", "gelu", "tanh")


@dataclass
class Net:
    """A graph with one input and one output; faults are planted in ``layers``."""

    graph: Graph
    layers: list[Value]
    before_activation: list[Value] = field(default_factory=list)

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw an input."""
        shape = [int(str(d)) for d in self.graph.inputs[0].tensor.shape]
        return rng.normal(size=shape).astype(np.float32)


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    return (rng.normal(size=shape) * scale).astype(np.float32)


def mlp(rng: np.random.Generator) -> Net:
    """Fully connected; weights scaled so that every layer's sums have unit variance."""
    width, act = int(rng.choice([32, 64, 128])), get_op(str(rng.choice(ACTIVATIONS)))
    x = h = Value(TensorType(float32, (BATCH, width)), "x")
    sample = _normal(rng, 64, width)
    net = Net(Graph([x], [x]), [])
    for layer in range(LAYERS):
        w, b = _normal(rng, width, width), _normal(rng, width, scale=0.1)
        w /= (sample @ w).std()
        sample = act(sample @ w + b)
        h = ops.add(ops.matmul(h, constant(w)), constant(b))
        if layer < LAYERS - 1:
            net.before_activation.append(h)
            h = act(h)
        net.layers.append(h)
    net.graph = Graph([x], [h], name="mlp")
    return net


def residual(rng: np.random.Generator) -> Net:
    """Blocks of layer norm, two matrices and an activation, each added to what came in."""
    width, act = int(rng.choice([32, 64, 128])), get_op(str(rng.choice(ACTIVATIONS)))
    x = h = Value(TensorType(float32, (BATCH, width)), "x")
    net = Net(Graph([x], [x]), [])

    def norm(value: Value) -> Any:
        scale, bias = 1 + _normal(rng, width, scale=0.1), _normal(rng, width, scale=0.1)
        return ops.layer_norm(value, constant(scale), constant(bias), axis=-1, epsilon=1e-5)

    for _ in range(LAYERS):
        w1 = _normal(rng, width, 2 * width, scale=width**-0.5)
        w2 = _normal(rng, 2 * width, width, scale=(2 * width) ** -0.5)
        inner = ops.matmul(norm(h), constant(w1))
        net.before_activation.append(inner)
        h = ops.add(h, ops.matmul(act(inner), constant(w2)))
        net.layers.append(h)
    net.graph = Graph([x], [norm(h)], name="residual")
    return net


def convolution(rng: np.random.Generator, *, classes: int = 0) -> Net:
    """Convolutions from image to image; with ``classes``, pooled and classified at the end."""
    width, act = int(rng.choice([12, 16])), get_op(str(rng.choice(ACTIVATIONS)))
    x = h = Value(TensorType(float32, (BATCH, 3, 8, 8)), "x")
    sample = _normal(rng, BATCH, 3, 8, 8)
    net = Net(Graph([x], [x]), [])
    channels = 3
    for layer in range(LAYERS):
        attrs = {"strides": (1, 1) if layer else (2, 2), "padding": ((1, 1), (1, 1))}
        w, b = _normal(rng, width, channels, 3, 3), _normal(rng, width, scale=0.1)
        if classes and layer == LAYERS - 1:
            pooled = ops.reshape(ops.global_average_pool(h), shape=(BATCH, channels))
            h = ops.matmul(pooled, constant(_normal(rng, channels, classes)))
        else:
            w /= ops.conv(sample, w, **attrs).std()
            sample = act(ops.conv(sample, w, b, **attrs))
            h = ops.conv(h, constant(w), constant(b), **attrs)
        if layer < LAYERS - 1:
            net.before_activation.append(h)
            h = act(h)
        net.layers.append(h)
        channels = width
    net.graph = Graph([x], [h], name="convolution")
    return net


def classifier(rng: np.random.Generator) -> Net:
    """Convolutions, pooled to ten classes: what one element does is averaged away."""
    return convolution(rng, classes=10)


NETS: dict[str, Callable[[np.random.Generator], Net]] = {
    "mlp": mlp,
    "residual": residual,
    "convolution": convolution,
}
HARDER: dict[str, Callable[[np.random.Generator], Net]] = {**NETS, "classifier": classifier}

Contract = Callable[[Array, Array], Array]


def permuted(rng: np.random.Generator) -> Contract:
    """Contract in another order, as another blocking would."""

    def contract(a: Array, b: Array) -> Array:
        order = rng.permutation(len(b))
        return np.asarray(a[..., order] @ b[order])

    return contract


def sequential(a: Array, b: Array) -> Array:
    """Add one product after another in float32, as a simple kernel would."""
    total = np.zeros((*a.shape[:-1], b.shape[1]), np.float32)
    for k in range(len(b)):
        total += a[..., k : k + 1] * b[k]
    return total


def run_engine(graph: Graph, x: Array, contract: Contract) -> dict[Value, Array]:
    """Run node by node with another contraction; everything else as the reference does."""
    values: dict[Value, Array] = {graph.inputs[0]: x}
    for node in graph.nodes:
        operands: list[Any] = [None if v is None else _read(values, v) for v in node.inputs]
        if node.op == "matmul":
            out = contract(*operands)
        elif node.op == "conv":
            out = _convolve(node, operands, contract)
        else:
            out = get_op(node.op)(*operands, **node.attrs)
        values[node.outputs[0]] = out
    return values


def _read(values: dict[Value, Array], value: Value) -> Array:
    return values[value] if value.constant is None else value.constant.array


def _convolve(node: Node, operands: Sequence[Any], contract: Contract) -> Array:
    x, w, b = operands
    attrs: Any = node.attrs
    step = attrs["strides"][0]
    padded = np.pad(x, ((0, 0), (0, 0), *attrs["padding"]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::step, ::step].transpose(0, 2, 3, 1, 4, 5)
    columns = np.ascontiguousarray(windows).reshape(*windows.shape[:3], -1)
    sums = contract(columns, np.ascontiguousarray(w.reshape(len(w), -1).T))
    return np.ascontiguousarray((sums + b).transpose(0, 3, 1, 2))


def run_torch(graph: Graph, x: Array) -> dict[Value, Array]:
    """Run in PyTorch: an engine that shares no code with the reference."""
    import torch
    from torch.nn import functional

    def layer_norm(x: Any, scale: Any, bias: Any, axis: int, epsilon: float) -> Any:
        return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)

    def conv(x: Any, w: Any, b: Any, strides: Any, padding: Any, **_: Any) -> Any:
        return functional.conv2d(x, w, b, strides, [p[0] for p in padding])

    table: dict[str, Callable[..., Any]] = {
        "add": torch.add,
        "matmul": torch.matmul,
        "relu": torch.relu,
        "tanh": torch.tanh,
        "gelu": lambda x, approximate: functional.gelu(x),
        "layer_norm": layer_norm,
        "conv": conv,
        "reshape": lambda x, shape: x.reshape(shape),
        "global_average_pool": lambda x: x.mean((2, 3), keepdim=True),
    }
    values: dict[Value, Array] = {graph.inputs[0]: x}
    with torch.no_grad():
        for node in graph.nodes:
            operands = [
                None if v is None else torch.from_numpy(np.array(_read(values, v)))
                for v in node.inputs
            ]
            values[node.outputs[0]] = table[node.op](*operands, **node.attrs).numpy()
    return values


def engines(rng: np.random.Generator, torch: bool) -> Iterator[tuple[str, Any]]:
    """Yield engines that are right, by name."""
    yield "reference", lambda graph, x: run_engine(graph, x, np.matmul)
    yield "permuted", lambda graph, x: run_engine(graph, x, permuted(rng))
    yield "sequential", lambda graph, x: run_engine(graph, x, sequential)
    if torch:
        yield "torch", run_torch


@dataclass
class Record:
    """What one kind of net showed."""

    kind: str
    nets: int = 0
    # Tolerance over true error of the outputs: of their rms, and of their largest.
    rms_ratios: list[float] = field(default_factory=list)
    max_ratios: list[float] = field(default_factory=list)
    judged: int = 0
    alarms: int = 0
    highest: float = 0.0
    trials: int = 0
    caught_at_layer: int = 0
    reached: int = 0
    reached_stored: int = 0
    caught_at_output: int = 0
    caught_stored: int = 0

    def row(self) -> dict[str, Any]:
        """Summarise."""
        return {
            "kind": self.kind,
            "nets": self.nets,
            "tolerance / true error, rms: median": float(np.median(self.rms_ratios)),
            "rms: worst": max(self.rms_ratios),
            "largest: worst": max(self.max_ratios),
            "right runs judged": self.judged,
            "false alarms": self.alarms,
            "highest score of a right run": self.highest,
            "planted": self.trials,
            "caught at the layer": self.caught_at_layer / max(self.trials, 1),
            "did not reach": self.trials - self.reached,
            "caught at the output": self.caught_at_output / max(self.reached, 1),
            "caught, of those that change a float32 of it": self.caught_stored
            / max(self.reached_stored, 1),
        }


def measure(
    make: Callable[[np.random.Generator], Net],
    seed: Sequence[int],
    record: Record,
    torch: bool,
    before: bool,
) -> None:
    """Make a net, judge right engines, plant faults."""
    rng = np.random.default_rng(seed)
    net = make(rng)
    x = net.draw(rng)
    oracle = Oracle(net.graph, [x])
    places = net.before_activation if before else net.layers
    oracle.values([*places, *net.graph.outputs])
    exact, tolerance = oracle.outputs[0], oracle.tolerance[0]
    record.nets += 1
    for name, run in engines(rng, torch):
        values = run(net.graph, x)
        if name == "reference":
            true = np.abs(values[net.graph.outputs[0]] - exact)
            record.rms_ratios.append(float(np.sqrt(np.mean(tolerance**2) / np.mean(true**2))))
            record.max_ratios.append(float(tolerance.max() / true.max()))
        for value in (*places, net.graph.outputs[0]):
            verdict = oracle.judge_value(value, values[value])
            record.judged += 1
            record.alarms += verdict.status != "right"
            record.highest = max(record.highest, verdict.error)
    for _ in range(TRIALS_PER_NET):
        plant(net, x, oracle, places[rng.integers(len(places))], rng, record)


def plant(
    net: Net, x: Array, oracle: Oracle, layer: Value, rng: np.random.Generator, record: Record
) -> None:
    """Move one element of one layer by 10 times its tolerance; judge the layer and the output."""
    (expected,) = oracle.values([layer])[layer]
    index = tuple(int(rng.integers(n)) for n in expected.wide.shape)
    size = PLANTED * float(expected.tolerance[index]) * float(rng.choice([-1.0, 1.0]))
    held: dict[str, Array] = {}

    def observe(node: Node, outputs: list[Any]) -> list[Any]:
        if node is not layer.node:
            return outputs
        moved = np.array(outputs[0])
        moved[index] += size
        held["layer"] = moved
        return [moved]

    (wide,) = Interpreter(net.graph, wide=True, observe=observe)([x])
    (got,) = Interpreter(net.graph, observe=observe)([x])
    record.trials += 1
    record.caught_at_layer += oracle.judge_value(layer, held["layer"]).status == "wrong"
    exact = oracle.outputs[0]
    caught = oracle.judge([got]).status == "wrong"
    if np.any(wide != exact):
        record.reached += 1
        record.caught_at_output += caught
    if np.any(wide.astype(np.float32) != exact.astype(np.float32)):
        record.reached_stored += 1
        record.caught_stored += caught


def run(trials: int, seed: int, torch: bool, harder: bool) -> list[Record]:
    """Plant so many faults in each kind of net."""
    records = []
    kinds = [(name, make, False) for name, make in (HARDER if harder else NETS).items()]
    if harder:
        kinds += [(f"{name}, before the activation", make, True) for name, make in NETS.items()]
    for number, (name, make, before) in enumerate(kinds):
        record = Record(name)
        for net in range(max(1, round(trials / TRIALS_PER_NET))):
            measure(make, [seed, number, net], record, torch, before)
        records.append(record)
    return records


def table(records: Sequence[Record]) -> str:
    """Print as Markdown, one column for each kind of net."""
    rows = [record.row() for record in records]
    lines = ["| | " + " | ".join(r["kind"] for r in rows) + " |"]
    lines.append("|---|" + "---|" * len(rows))
    for key in list(rows[0])[1:]:
        cells = [r[key] for r in rows]
        shown = [
            f"{c:.1%}" if "caught" in key else f"{c:,}" if isinstance(c, int) else f"{c:.3g}"
            for c in cells
        ]
        lines.append(f"| {key} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def versions(torch: bool) -> dict[str, str]:
    """List what the figures depend on."""
    found = {"python": platform.python_version(), "numpy": np.__version__}
    if torch:
        import torch as module

        found["torch"] = module.__version__
    return found | {"machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000, help="planted faults per kind of net")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torch", action="store_true", help="judge PyTorch as well")
    parser.add_argument("--harder", action="store_true", help="also where the judge cannot see")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    start = time.perf_counter()
    records = run(args.trials, args.seed, args.torch, args.harder)
    print(table(records))
    print(f"\n{versions(args.torch)}, {time.perf_counter() - start:.0f} s")
    if args.json:
        data = {"versions": versions(args.torch), "records": [asdict(r) for r in records]}
        args.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
