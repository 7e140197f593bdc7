"""Compile a region as a model of the engine, and record what its edges need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fusewire.backends.openvino.api import openvino, ops
from fusewire.backends.openvino.devices import block_of, counting, settings
from fusewire.backends.openvino.edges import Told
from fusewire.backends.openvino.holding import Holding, index_operands
from fusewire.backends.openvino.int8 import round_weights
from fusewire.backends.openvino.scope import Scope
from fusewire.contract.backend import Fact, Role
from fusewire.ir.graph import Array, Node, Value
from fusewire.rewrite.roles import ENTERING


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
    model, kept = model_of(holding, launch.get("nan") != "engine", labels)
    if launch.get("precision") == "int8":
        model = round_weights(model, block_of(launch))
    return core.compile_model(
        model, plugin, settings(core, plugin, launch) | counting(counts)
    ), kept


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


def told(holding: Holding) -> dict[Role, list[Told]]:
    """Write down what the graph tells of its inputs and outputs."""
    graph, reach = holding.graph, (ENTERING.low, ENTERING.high)
    inputs = [Told(holding.storage(v), _is_direct(holding, v), reach) for v in graph.inputs]
    return {"input": inputs, "output": [Told(holding.storage(v)) for v in graph.outputs]}


def _is_direct(holding: Holding, value: Value) -> bool:
    """Tell whether all that uses an input uses it as an index."""
    users = holding.graph.users.get(value, ())
    return all(is_index for node in users for v, is_index in index_operands(node) if v is value)
