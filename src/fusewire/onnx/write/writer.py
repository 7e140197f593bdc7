"""Write a graph as an ONNX model.

A node that the target cannot hold is refused with a sentence. ``write`` expands composites that
are refused, so that it fails only where ONNX has nothing for a primitive.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewire.errors import FormatError
from fusewire.ir.graph import Constant, Graph
from fusewire.ir.types import tensor_of
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.write_table import WRITERS
from fusewire.onnx.write.emitter import Emitter, name_outputs, refusal
from fusewire.onnx.write.local_functions import Locals
from fusewire.onnx.write.model import LocalFunction, Model, OnnxBody, Port, Ref, Write
from fusewire.onnx.write.proto import model_proto
from fusewire.onnx.write.target import DEFAULT, OnnxTarget, Standard
from fusewire.rewrite.expand import expand


@dataclass(frozen=True)
class WrittenModel:
    """A model as it was emitted, and the constants that it uses, by the names it gives them."""

    body: OnnxBody
    constants: Mapping[str, Constant]
    opset: int
    functions: Mapping[str, LocalFunction] = field(default_factory=dict)

    def proto(self, outside: Container[str] = ()) -> Any:
        """Make a ModelProto; constants of these digests stay outside of it."""
        return model_proto(self.body, self.constants, self.opset, outside, self.functions)


def write(graph: Graph, opset: int = DEFAULT, *, is_cautious: bool = False) -> WrittenModel:
    """Write any graph by the specification; FormatError names what ONNX cannot hold.

    A cautious model holds only what engines agree about.
    """
    target = Standard(opset, is_cautious=is_cautious)
    model = Model(target, WRITERS)
    return emit(expand(graph, lambda node: refusal(node, model)).graph, target)


def emit(
    graph: Graph,
    target: OnnxTarget,
    table: Mapping[str, Write] = WRITERS,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
    functions: Locals | None = None,
) -> WrittenModel:
    """Emit a graph, every node of which the target takes as it is, or ``functions`` can call.

    ``names`` are for inputs and outputs, where those of the graph will not do. With functions, the
    model keeps all names of values and constants too.
    """
    inputs, outputs = names or (
        [v.name or f"input{i}" for i, v in enumerate(graph.inputs)],
        graph.output_names,
    )
    model = Model(target, table, taken={*inputs, *outputs})
    _require_different(graph, inputs, outputs)
    if functions is not None:
        model.call, model.kept = functions.call, {}
    emitter = Emitter(model)
    for value, name in zip(graph.inputs, inputs, strict=True):
        of = tensor_of(value.type).dtype
        element_of(of)
        emitter.bind(value, Ref(name, of))
    emitter.nodes(graph.nodes)
    made = (v for node in graph.nodes for v in node.outputs)
    kept = {v: v.name for v in made if v.name is not None and functions is not None}
    name_outputs(emitter, [emitter.ref(v) for v in graph.outputs], outputs, kept)
    body = OnnxBody(
        graph.name,
        [Port(name, v.type) for name, v in zip(inputs, graph.inputs, strict=True)],
        [Port(name, v.type) for name, v in zip(outputs, graph.outputs, strict=True)],
        emitter.steps,
    )
    found = {} if functions is None else functions.functions
    return WrittenModel(body, model.constants, target.opset, found)


def _require_different(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuse one name for two values; an input that is given back may keep its name."""
    named = dict(zip(inputs, graph.inputs, strict=True))
    ends = zip(outputs, graph.outputs, strict=True)
    shared = sum(name in named and named[name] is value for name, value in ends)
    if len({*inputs, *outputs}) < len(inputs) + len(outputs) - shared:
        raise FormatError(
            "Inputs and outputs of a model need different names, found "
            f"{', '.join(inputs)} and {', '.join(outputs)}."
        )
