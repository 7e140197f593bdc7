"""Compile a region as a model of the engine, and record what its edges need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.devices import block_of, counting, settings
from fusewire.backends.openvino.edges import Border, Told
from fusewire.backends.openvino.holding import Holding, index_operands
from fusewire.backends.openvino.int8 import round_weights
from fusewire.backends.openvino.scope import Scope
from fusewire.contract.backend import CALIBRATED, ENGINE_NAN, EXACT_NODES, NAN, Fact
from fusewire.contract.region import nodes_at
from fusewire.facts.roles import ENTERING
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.process.machine import features
from fusewire.rewrite.int8 import int8_places
from fusewire.rewrite.static_int8 import weight_codes, with_static_int8


def compiled_model(
    core: Any,
    plugin: str,
    holding: Holding,
    launch: Mapping[str, Fact],
    labels: Mapping[Node, str] = MappingProxyType({}),
    *,
    counts: bool = False,
) -> tuple[Any, Sequence[Array]]:
    """Compile a region; give that, and the arrays that the engine reads where they lie.

    With ``counts``, its requests tell how long each node takes.
    """
    # What is rounded to int8 has no NaN: the engine's own nodes are the ones that it knows.
    exact = launch.get(NAN) != ENGINE_NAN and CALIBRATED not in launch
    unrounded = _unrounded(holding, launch)
    # What is to stay exact is found by its name.
    labels = labels or (labels_of(holding) if unrounded else {})
    model, kept = model_of(holding, exact, labels)
    if launch.get("precision") == "int8":
        model = round_weights(model, block_of(launch), {labels[node] for node in unrounded})
    return core.compile_model(
        model, plugin, settings(core, plugin, launch) | counting(counts)
    ), kept


def rounded(graph: Graph, launch: Mapping[str, Fact]) -> Graph:
    """Round the layers of a graph to int8, in the ranges that an artifact is built with."""
    lines = launch.get(CALIBRATED)
    return with_static_int8(graph, lines, codes=weight_codes(features())) if lines else graph


def _unrounded(holding: Holding, launch: Mapping[str, Fact]) -> set[Node]:
    """Find the products that are not rounded."""
    graph, text = holding.graph, str(launch.get(EXACT_NODES, ""))
    return nodes_at(graph, text, int8_places(graph)) if text else set()


def labels_of(holding: Holding) -> dict[Node, str]:
    """Name what is built for each node."""
    return {node: f"fusewire_node_{place}" for place, node in enumerate(holding.graph.nodes)}


def model_of(
    holding: Holding, exact: bool, labels: Mapping[Node, str] = MappingProxyType({})
) -> tuple[Any, Sequence[Array]]:
    """Build a region of the engine's nodes; give that, and the arrays that it has not copied.

    What is built for a node of ``labels`` is called after it.
    """
    scope = Scope(holding, exact)
    scope.labels.update(labels)
    results = [ops.result(x) for x in scope.run(holding.graph)]
    return openvino.Model(results, scope.parameters, holding.graph.name), scope.kept


def border_of(holding: Holding) -> Border:
    """Write down what the graph tells of its inputs and outputs, and of the sizes in it."""
    graph, reach = holding.graph, (ENTERING.low, ENTERING.high)
    inputs = (Told(holding.storage(v), _is_direct(holding, v), reach) for v in graph.inputs)
    outputs = (Told(holding.storage(v)) for v in graph.outputs)
    return Border(tuple(inputs), tuple(outputs), holding.narrowing.sizes)


def _is_direct(holding: Holding, value: Value) -> bool:
    """Tell whether all that uses an input uses it as an index."""
    users = holding.graph.users.get(value, ())
    return all(is_index for node in users for v, is_index in index_operands(node) if v is value)
