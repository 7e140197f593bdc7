"""Sizes that only a run tells reach every region that names them."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import bool_
from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ir.verify import mentioned
from fusewire.ops.declare import Op
from fusewire.ops.table import all_ops, size_makers
from fusewire.planning.partition import Cutter, partition
from fusewire.rewrite.expand import expand, refuses_composites
from fusewire.testing.conformance import first_cases

COMPOSITES = [op for op in all_ops().values() if op.is_composite]


def _masked(op: Op[Any], place: int) -> Graph | None:
    """Apply an op to its first sample, one operand of which is masked; None if that has no type."""
    graph, _ = first_cases(op)[0].make()
    node, taken = graph.nodes[0], graph.inputs[place].type
    if not isinstance(taken, TensorType) or taken.rank == 0:
        return None
    inputs = [Value(value.type, f"input{i}") for i, value in enumerate(graph.inputs)]
    mask = Value(TensorType(bool_, taken.shape[:1]), "mask")
    given = dict(zip(graph.inputs, inputs, strict=True))
    try:
        given[graph.inputs[place]] = ops.boolean_mask(inputs[place], mask)
        operands = [None if value is None else given.get(value, value) for value in node.inputs]
        outputs = op(*operands, **node.attrs)
    except FusewireError:
        return None
    return Graph([*inputs, mask], outputs if isinstance(outputs, tuple) else (outputs,))


def _unknown(graph: Graph) -> set[str]:
    """List the sizes that a node names before anything has told them."""
    known = {symbol for value in graph.inputs for symbol in type_symbols(value.type)}
    makers, unknown = size_makers(graph), set()
    for node in graph.nodes:
        known |= {symbol for symbol, maker in makers.items() if maker is node}
        unknown |= {s.key for s in mentioned(node) if s not in known and s.unbacked}
    return unknown


@pytest.mark.parametrize("op", COMPOSITES, ids=[op.name for op in COMPOSITES])
def test_regions_of_an_expanded_composite_know_the_sizes_that_they_name(op: Op[Any]) -> None:
    for place in range(len(first_cases(op)[0].make()[0].inputs)):
        graph = _masked(op, place)
        if graph is None:
            continue
        expanded = expand(graph, refuses_composites).graph
        # As on an engine that has all but what tells a size.
        told = set(size_makers(expanded).values())
        targets = {node: "host" if node in told else "engine" for node in expanded.nodes}
        groups = partition(expanded, targets)
        cutter = Cutter(expanded, [nodes for _, nodes in groups])
        for number in range(len(groups)):
            region, _, _ = cutter.region(number, "region")
            assert not _unknown(region), region


@pytest.mark.parametrize(
    "engine", ["reference", "onnxruntime", "openvino", "torch", "xla", "webgpu"]
)
def test_unpooling_of_a_masked_tensor_runs_on_every_engine(engine: str) -> None:
    def unpooled(x: Any, mask: Any, places: Any) -> Any:
        return ops.max_unpool(ops.boolean_mask(x, mask), places, shape=(2, 1, 4))

    x = np.arange(1, 9, dtype=np.float32).reshape(4, 1, 2)
    mask, places = np.array([True, False, True, False]), np.array([[[0, 1]], [[5, 6]]])
    graph = fw.trace(unpooled, x, mask, places)
    program = fw.compile(graph, backend=engine, isolate=False, cache=False, fallback="allow")
    answer = np.asarray(program(x, mask, places))
    assert answer.tolist() == [[[1, 2, 0, 0]], [[0, 5, 6, 0]]]
