"""What a device is and how fast: read from the machine, asked of the backend, or measured on it.

Nothing is typed in. What is measured runs through the backend's own executables, after first
contact, for a fraction of a second each; what a backend refuses is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusewire.backend import Device, Fact, Offer
from fusewire.dtypes import FLOATS, NUMERIC, DType
from fusewire.errors import EngineError, FusewireError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.contraction import matmul
from fusewire.ops.elementwise import add
from fusewire.placement.claims import Home
from fusewire.placement.gauge import FIGURES, HINTS, Bench, Sizes
from fusewire.process.machine import machine, memory_latency

# What is preferred where several kinds of devices are there.
KINDS = ("cuda", "metal", "rocm", "webgpu", "cpu")


@dataclass(frozen=True)
class Measured:
    """A device with all its facts, hints for whoever writes programs for it, and what is not known.

    ``missing`` says of a fact or a hint why it could not be found out.
    """

    backend: str
    device: Device
    hints: Mapping[str, Fact] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def gflops(self) -> float:
        """Throughput; 0 when it is not known."""
        found = self.device.facts.get("gflops", 0.0)
        return float(found) if isinstance(found, int | float) else 0.0


def known(home: Home) -> Device:
    """Add to what a backend says of its device what the machine tells, and what it claims."""
    device = home.device
    facts: dict[str, Fact] = machine() if device.kind == "cpu" else {}
    facts["execution"] = _execution(device.facts, facts)
    if "memory_bytes" in facts:
        facts["max_buffer_bytes"] = facts["memory_bytes"]
    on_host = home.backend.exchange.memory == "host"
    facts["unified_memory"] = on_host or device.is_software
    facts["dtypes"] = _taken(home, NUMERIC, lambda x: add(x, x))
    facts["precisions"] = _taken(home, FLOATS, lambda x: matmul(x, x))
    return replace(device, facts={**facts, **device.facts})


def _execution(own: Mapping[str, Fact], of_machine: Mapping[str, Fact]) -> tuple[str, ...]:
    """Name the ways in which it does many things at once."""
    found = ["simt"] if "max_workgroup" in own else []
    found += ["simd"] if of_machine.get("features") else []
    found += ["tasks"] if of_machine.get("compute_units", 1) != 1 else []
    return tuple(found)


def _taken(home: Home, dtypes: Iterable[DType], op: Callable[[Value], Value]) -> tuple[str, ...]:
    """List the dtypes in which a backend offers an op; they are asked for in one graph."""
    inputs = [Value(TensorType(of, (2, 2)), of.name) for of in dtypes]
    graph = Graph(inputs, [op(x) for x in inputs], name="dtypes")
    try:
        answers = home.claim(graph)
    except EngineError:
        return ()
    offered = {place for x in answers if isinstance(x, Offer) for place in x.nodes}
    names = {node.outputs[0]: node.operands[0].name or "" for node in graph.nodes}
    return tuple(names[graph.nodes[place].outputs[0]] for place in sorted(offered))


def measure(home: Home, sizes: Sizes = Sizes()) -> Measured:
    """Find out all that can be: a second or two for an ordinary device."""
    device = known(home)
    facts: dict[str, Fact] = dict(device.facts)
    if device.kind == "cpu":
        facts["memory_latency_ns"] = memory_latency()
    hints: dict[str, Fact] = {}
    missing: dict[str, str] = {}
    bench = Bench(home, sizes)
    for table, found in ((FIGURES, facts), (HINTS, hints)):
        for name, figure in table.items():
            try:
                found.update(figure(bench))
            except FusewireError as error:
                missing[name] = str(error)
    hints["use_async"] = facts.get("is_async", False)
    hints["vectorize"] = "simd" in str(facts["execution"]) or "subgroup" in facts
    return Measured(home.name, replace(device, facts=facts), hints, missing)


def best(found: Sequence[Measured]) -> Measured:
    """Choose the best device: by its kind, a software one being a CPU; then by throughput."""

    def rank(item: Measured) -> tuple[int, float]:
        kind = "cpu" if item.device.is_software else item.device.kind
        return (KINDS.index(kind) if kind in KINDS else len(KINDS), -item.gflops)

    return min(found, key=rank)
