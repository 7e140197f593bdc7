"""Write a graph of ours as an ONNX model.

A node that the target cannot hold is refused with a sentence. ``write`` expands composites that
are refused, so that it fails only where ONNX has nothing for a primitive.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from fusewire.errors import FormatError
from fusewire.formats.onnx.elements import element_of
from fusewire.formats.onnx.emitter import Emitter, refusal
from fusewire.formats.onnx.families import TABLE
from fusewire.formats.onnx.model import Body, Model, Port, Ref, Write
from fusewire.formats.onnx.proto import model_proto
from fusewire.formats.onnx.target import DEFAULT, Standard, Target
from fusewire.ir.graph import Constant, Graph
from fusewire.ir.types import tensor_of
from fusewire.rewrite.legalize import legalize


@dataclass(frozen=True)
class Written:
    """A model as it was emitted, and the constants that it uses, by the names it gives them."""

    body: Body
    constants: Mapping[str, Constant]
    opset: int

    def proto(self, outside: Container[str] = ()) -> Any:
        """Make a ModelProto; constants of these digests stay outside of it."""
        return model_proto(self.body, self.constants, self.opset, outside)


def write(graph: Graph, opset: int = DEFAULT, *, is_cautious: bool = False) -> Written:
    """Write any graph by the specification; FormatError names what ONNX cannot hold.

    A cautious model holds only what engines agree about.
    """
    target = Standard(opset, is_cautious=is_cautious)
    model = Model(target, TABLE)
    return emit(legalize(graph, lambda node: refusal(node, model)).graph, target)


def emit(graph: Graph, target: Target, table: Mapping[str, Write] = TABLE) -> Written:
    """Emit a graph, every node of which the target takes as it is."""
    names = [v.name or f"input{i}" for i, v in enumerate(graph.inputs)]
    model = Model(target, table, {*names, *graph.output_names})
    if len(model.taken) < len(names) + len(graph.output_names):
        raise FormatError(
            f"Inputs and outputs of a model need different names, found {', '.join(names)} and "
            f"{', '.join(graph.output_names)}."
        )
    emitter = Emitter(model)
    for value, name in zip(graph.inputs, names, strict=True):
        of = tensor_of(value.type).dtype
        element_of(of)
        emitter.bind(value, Ref(name, of))
    emitter.nodes(graph.nodes)
    for value, name in zip(graph.outputs, graph.output_names, strict=True):
        emitter.give(emitter.ref(value), name)
    inputs = [Port(name, v.type) for name, v in zip(names, graph.inputs, strict=True)]
    outputs = [
        Port(name, v.type) for name, v in zip(graph.output_names, graph.outputs, strict=True)
    ]
    return Written(Body(graph.name, inputs, outputs, emitter.steps), model.constants, target.opset)
