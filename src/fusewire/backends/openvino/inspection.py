"""The nodes of the engine's runtime model, each with the nodes of ours that it was made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fusewire.backends.openvino.building import compiled_model, labels_of
from fusewire.backends.openvino.refusal import held, with_plain_bodies
from fusewire.contract.backend import Fact
from fusewire.contract.inspection import EngineKernel
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph
from fusewire.ops.declare import Kind

# What holds data, and runs nothing.
_EDGES = ("Input", "Output", "Parameter", "Result")
_CONSTANTS = ("Const", "Constant")
_MOVES = ("Reshape", "Reorder", "Transpose")
# The engine writes the names of a node's layers as a list; ours begin with this.
_LABEL = re.compile(r"fusewire_node_(\d+)(?!\d)")


def runtime_kernels(
    core: Any, plugin: str, region: Graph, launch: Mapping[str, Fact]
) -> list[EngineKernel]:
    """Compile a region with named layers, and read what the engine runs."""
    holding = held(with_plain_bodies(region))
    labels = labels_of(holding)
    compiled, _kept = compiled_model(core, plugin, holding, launch, labels)
    found = list(_kernels(compiled.get_runtime_model()))
    return _with_unnamed(region, [_without_moves(region, kernel) for kernel in found])


def _without_moves(region: Graph, kernel: EngineKernel) -> EngineKernel:
    """Leave out nodes that compute something where a kernel only moves a part of them."""
    if kernel.kind.partition(" ")[0] not in _MOVES:
        return kernel
    nodes = (place for place in kernel.nodes if kind_of(region.nodes[place]) is Kind.FREE)
    return replace(kernel, nodes=tuple(nodes))


def _with_unnamed(region: Graph, kernels: list[EngineKernel]) -> list[EngineKernel]:
    """Add nodes that no kernel names to the only kernel that uses them.

    A convolution and the multiplication after it become a node with the name of the multiplication
    alone (2026.4.1). What one kernel needs and no other computes, it computes.
    """
    holders: dict[int, set[int]] = {}
    for number, kernel in enumerate(kernels):
        for place in kernel.nodes:
            holders.setdefault(place, set()).add(number)
    places = {node: place for place, node in enumerate(region.nodes)}
    for place, node in reversed([*enumerate(region.nodes)]):
        users = {u for value in node.outputs for u in region.users.get(value, ())}
        using = {number for user in users for number in holders.get(places[user], ())}
        if place not in holders and len(using) == 1 and kind_of(node) is not Kind.FREE:
            holders[place] = using
            (number,) = using
            added = sorted((*kernels[number].nodes, place))
            kernels[number] = replace(kernels[number], nodes=tuple(added))
    return kernels


def _kernels(model: Any) -> Iterator[EngineKernel]:
    known: set[str] = set()
    for layer in model.get_ordered_ops():
        about = {name: value.astype(str) for name, value in layer.get_rt_info().items()}
        kind = about.get("layerType", layer.get_type_name())
        sources = {
            port.get_source_output().get_node().get_friendly_name() for port in layer.inputs()
        }
        if kind in _CONSTANTS or (sources and sources <= known):
            # What is made of constants alone ran when the model was compiled.
            known.add(layer.get_friendly_name())
            continue
        if kind in _EDGES:
            continue
        nodes = {int(number) for number in _LABEL.findall(about.get("originalLayersNames", ""))}
        types = tuple(
            f"{port.get_element_type().get_type_name()}{port.get_partial_shape()}"
            for port in layer.inputs()
        )
        yield EngineKernel(
            layer.get_friendly_name(),
            f"{kind} {about.get('primitiveType', '')}".rstrip(),
            tuple(sorted(nodes)),
            parameters=types,
        )
