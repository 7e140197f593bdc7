"""Facts about a device: read from the machine, asked of the backend, or measured on it.

No fact is hard-coded. Measurements run through the backend's own executables, after first contact,
for a fraction of a second each; one that a backend refuses is left out, with the reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fusewire.contract.backend import Config, Device, Exchange, Executable, Fact, Held, Offer
from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import CPU, preference
from fusewire.dtypes import FLOATS, NUMERIC, DType
from fusewire.errors import EngineError, FusewireError, OptionsError, RefusedError
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add, multiply
from fusewire.ops.interpret import type_of
from fusewire.plan.plan import Region
from fusewire.plan.transfer import hand_over
from fusewire.planning.claims import ask
from fusewire.planning.target import Target
from fusewire.process.guard import waited
from fusewire.process.machine import machine, memory_latency
from fusewire.trials.build import BuildTarget, PlanBuilder

_CHAIN = 8
_BATCHES = (1, 8, 64, 512)
_WORKGROUPS = (64, 128, 256)
_RANKS = (64, 32, 16, 8, 4)
_ENOUGH = 0.9


@dataclass(frozen=True)
class Sizes:
    """How much to run: seconds per figure, elements to copy, side of matrices."""

    seconds: float = 0.15
    elements: int = 1 << 22
    side: int = 1024


class Bench:
    """Builds graphs for one device and times them."""

    def __init__(self, target: Target, sizes: Sizes) -> None:
        self.target = target
        self.sizes = sizes
        self.metrics: Mapping[str, float] = {}

    def ready(
        self, graph: Graph, inputs: Sequence[Array], config: Config = Config()
    ) -> tuple[Executable, list[Held]]:
        """Build a graph, after first contact, and put its inputs where the device takes them."""
        target = self.target
        claimed = ask(target, graph)
        if claimed.refusals:
            raise RefusedError(next(iter(claimed.refusals.values())).reason)
        builder = _builder(target, config)
        region = Region.of(claimed.graph, target.name, target.device, "static")
        executable, exchange = builder.build(region, lambda: claimed.graph, inputs).load()
        self.metrics = builder.contacts[-1].contacted.metrics
        return executable, [self._resident(x, exchange) for x in inputs]

    def _resident(self, array: Array, exchange: Exchange) -> Held:
        """Move an array into the memory of the device, by a run that returns it there."""
        value = hand_over(array, exchange)
        if exchange.memory == "host":
            return value
        x = Value(type_of(array), "x")
        graph = Graph([x], [add(x, np.zeros((), array.dtype))], name="resident")
        region = Region.of(graph, self.target.name, self.target.device, "static")
        built = _builder(self.target, Config()).build(region, lambda: graph, [array])
        executable, _ = built.load()
        return waited(executable.run([value]))[0]

    def seconds(self, graph: Graph, inputs: Sequence[Array], config: Config = Config()) -> float:
        """Time a run within a chain: the first output of each is the first input of the next."""
        executable, values = self.ready(graph, inputs, config)
        chain(executable, values, 1)
        once = chain(executable, values, 1)
        count = max(2, int(self.sizes.seconds / max(once, 1e-6)))
        best = min(chain(executable, values, count), chain(executable, values, count)) / count
        executable.close()
        return best


def _builder(target: Target, config: Config) -> PlanBuilder:
    only = BuildTarget.of(target, config)
    return PlanBuilder(only, only, "error", target.limits.seconds)


def chain(executable: Executable, values: Sequence[Held], count: int) -> float:
    """Run this many times in a chain, and return the seconds until the last is done."""
    value, rest = values[0], list(values[1:])
    start = time.perf_counter()
    for _ in range(count):
        value = waited(executable.run([value, *rest]))[0]
    if isinstance(value, Buffer):
        value.read(0, 1)
    return time.perf_counter() - start


def _graph(name: str, inputs: Sequence[Array], make: Callable[..., Any]) -> Graph:
    values = [Value(type_of(x), f"x{i}") for i, x in enumerate(inputs)]
    return Graph(values, [make(*values)], name=name)


def _bandwidth(bench: Bench) -> dict[str, Fact]:
    """Read and write every element once."""
    x = np.zeros(bench.sizes.elements, np.float32)
    graph = _graph("copy", [x], lambda x: add(x, np.float32(1)))
    return {"bandwidth_gb_s": round(2 * x.nbytes / bench.seconds(graph, [x]) / 1e9, 2)}


def _throughput(bench: Bench) -> dict[str, Fact]:
    """Multiply matrices; if that is refused, multiply and add elements many times."""
    side = bench.sizes.side
    # A permutation matrix: values keep their size, however often they are multiplied.
    inputs = [np.ones((side, side), np.float32), np.roll(np.eye(side, dtype=np.float32), 1, 0)]
    try:
        seconds = bench.seconds(_graph("matmul", inputs, matmul), inputs)
        return {"gflops": round(2 * side**3 / seconds / 1e9, 2), "gflops_of": "matmul"}
    except RefusedError:
        x = inputs[0]
        graph = _graph("chain", [x], _multiply_add)
        flops = 2 * _CHAIN * x.size
        gflops = round(flops / bench.seconds(graph, [x]) / 1e9, 2)
        return {"gflops": gflops, "gflops_of": "multiply and add"}


def _multiply_add(x: Value) -> Value:
    for _ in range(_CHAIN):
        x = add(multiply(x, np.float32(0.5)), np.float32(0.5))
    return x


def _latency(bench: Bench) -> dict[str, Fact]:
    x = np.zeros(4, np.float32)
    graph = _graph("tiny", [x], lambda x: add(x, np.float32(1)))
    return {"call_us": round(bench.seconds(graph, [x]) * 1e6, 1)}


def _rank(bench: Bench) -> dict[str, Fact]:
    """Find the most axes that a tensor may have, among a few numbers."""
    for rank in _RANKS:
        x = np.zeros((1,) * rank, np.float32)
        try:
            executable, values = bench.ready(_graph("rank", [x], lambda x: add(x, x)), [x])
            chain(executable, values, 1)
        except FusewireError:
            continue
        return {"max_dims": rank}
    raise RefusedError(f"No tensor of {_RANKS[-1]} axes or more can be added.")


def _parts(bench: Bench) -> dict[str, Fact]:
    """Test whether a part of a buffer can be read by itself."""
    x = np.arange(8, dtype=np.float32)
    executable, values = bench.ready(_graph("parts", [x], lambda x: add(x, x)), [x])
    (result,) = executable.run(values)
    part = result.read(2, 3) if isinstance(result, Buffer) else np.asarray(result)[2:5]
    return {"sub_buffers": part.tolist() == [4.0, 6.0, 8.0]}


def _asynchrony(bench: Bench) -> dict[str, Fact]:
    """Test whether a run returns before the work is done."""
    x = np.zeros(bench.sizes.elements // 4, np.float32)
    executable, values = bench.ready(_graph("async", [x], _multiply_add), [x])
    chain(executable, values, 1)
    start = time.perf_counter()
    (value,) = executable.run(values)
    started = time.perf_counter() - start
    if isinstance(value, Buffer):
        value.read(0, 1)
    return {"is_async": started < (time.perf_counter() - start) / 2}


def _caching(bench: Bench) -> dict[str, Fact]:
    """Compare the times of loading and compiling at first contact."""
    x = np.zeros((64, 64), np.float32)
    bench.ready(_graph("caching", [x], _multiply_add), [x])
    metrics = bench.metrics
    if not {"compile_seconds", "load_seconds"} <= metrics.keys():
        raise RefusedError("It runs in this process from the start: there is nothing to cache.")
    return {"cache_kernels": metrics["compile_seconds"] > metrics["load_seconds"]}


def _batch(bench: Bench) -> dict[str, Fact]:
    """Find the smallest batch that is nearly as fast per row as the best."""
    weights = np.roll(np.eye(256, dtype=np.float32), 1, 0)
    rates = {}
    for rows in _BATCHES:
        inputs = [np.ones((rows, 256), np.float32), weights]
        rates[rows] = rows / bench.seconds(_graph("batch", inputs, matmul), inputs)
    enough = _ENOUGH * max(rates.values())
    return {"batch": next(rows for rows, rate in rates.items() if rate >= enough)}


def _workgroup(bench: Bench) -> dict[str, Fact]:
    """Time the sizes of workgroups, if the backend has that option."""
    x = np.zeros(bench.sizes.elements // 4, np.float32)
    graph = _graph("workgroup", [x], _multiply_add)
    seconds = {}
    for size in _WORKGROUPS:
        try:
            seconds[size] = bench.seconds(graph, [x], Config(options={"workgroup": size}))
        except OptionsError as error:
            if size == _WORKGROUPS[0]:
                raise RefusedError(f"It has no workgroups: {error}") from error
    return {"workgroup": min(seconds, key=lambda size: seconds[size])}


def _alignment(bench: Bench) -> dict[str, Fact]:
    return {"alignment": bench.target.exchange.alignment}


FIGURES: Mapping[str, Callable[[Bench], Mapping[str, Fact]]] = {
    "bandwidth_gb_s": _bandwidth,
    "gflops": _throughput,
    "call_us": _latency,
    "max_dims": _rank,
    "sub_buffers": _parts,
    "is_async": _asynchrony,
}
HINTS: Mapping[str, Callable[[Bench], Mapping[str, Fact]]] = {
    "alignment": _alignment,
    "batch": _batch,
    "workgroup": _workgroup,
    "cache_kernels": _caching,
}


@dataclass(frozen=True)
class Measured:
    """A device with all its facts, hints for authors of programs, and what is unknown.

    ``missing`` maps a fact or a hint to the reason why it could not be measured.
    """

    backend: str
    device: Device
    hints: Mapping[str, Fact] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def gflops(self) -> float:
        """Throughput; 0 if it is unknown."""
        gflops = self.device.facts.get("gflops", 0.0)
        return float(gflops) if isinstance(gflops, int | float) else 0.0


def known(target: Target) -> Device:
    """Return the device with facts of the backend, of the machine, and from claims."""
    device = target.device
    facts: dict[str, Fact] = machine() if device.kind == "cpu" else {}
    facts["execution"] = _execution(device.facts, facts)
    if "memory_bytes" in facts:
        facts["max_buffer_bytes"] = facts["memory_bytes"]
    on_host = target.exchange.memory == "host"
    facts["unified_memory"] = on_host or device.is_software
    facts["dtypes"] = _offered_dtypes(target, NUMERIC, lambda x: add(x, x))
    facts["precisions"] = _offered_dtypes(target, FLOATS, lambda x: matmul(x, x))
    return replace(device, facts={**facts, **device.facts})


def _execution(own: Mapping[str, Fact], of_machine: Mapping[str, Fact]) -> tuple[str, ...]:
    """Name the kinds of parallelism that the device has."""
    kinds = ["simt"] if "max_workgroup" in own else []
    kinds += ["simd"] if of_machine.get("features") else []
    kinds += ["tasks"] if of_machine.get("compute_units", 1) != 1 else []
    return tuple(kinds)


def _offered_dtypes(
    target: Target, dtypes: Iterable[DType], op: Callable[[Value], Value]
) -> tuple[str, ...]:
    """List the dtypes for which a backend offers an op, asking for all in one graph."""
    inputs = [Value(TensorType(dtype, (2, 2)), dtype.name) for dtype in dtypes]
    graph = Graph(inputs, [op(x) for x in inputs], name="dtypes")
    try:
        answers = target.claim(graph)
    except EngineError:
        return ()
    offered = {place for x in answers if isinstance(x, Offer) for place in x.nodes}
    names = {node.outputs[0]: node.operands[0].name or "" for node in graph.nodes}
    return tuple(names[graph.nodes[place].outputs[0]] for place in sorted(offered))


def measure(target: Target, sizes: Sizes = Sizes(), seconds: float = math.inf) -> Measured:
    """Measure all facts and hints of a device; takes a second or two for an ordinary one.

    After so many ``seconds`` no other figure is begun.
    """
    end = time.monotonic() + seconds
    device = known(target)
    facts: dict[str, Fact] = dict(device.facts)
    if device.kind == "cpu":
        facts["memory_latency_ns"] = memory_latency()
    hints: dict[str, Fact] = {}
    missing: dict[str, str] = {}
    bench = Bench(target, sizes)
    for table, results in ((FIGURES, facts), (HINTS, hints)):
        for name, figure in table.items():
            if time.monotonic() > end:
                missing[name] = f"It was not measured: {seconds:.0f} s were over."
                continue
            try:
                results.update(figure(bench))
            except FusewireError as error:
                missing[name] = str(error)
    hints["use_async"] = facts.get("is_async", False)
    hints["vectorize"] = "simd" in str(facts["execution"]) or "subgroup" in facts
    return Measured(target.name, replace(device, facts=facts), hints, missing)


def best(devices: Sequence[Measured]) -> Measured:
    """Choose the best device: by kind, where a software device counts as a CPU; by throughput."""

    def order(item: Measured) -> tuple[int, float]:
        return preference(CPU if item.device.is_software else item.device.kind), -item.gflops

    return min(devices, key=order)
