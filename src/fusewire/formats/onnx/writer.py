"""Write a graph of ours as an ONNX model.

A node that the target cannot hold is refused with a sentence. ``write`` expands composites that
are refused, so that it fails only where ONNX has nothing for a primitive.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.errors import FormatError
from fusewire.formats.onnx.elements import element_of
from fusewire.formats.onnx.emitter import Emitter, refusal
from fusewire.formats.onnx.families import TABLE
from fusewire.formats.onnx.model import Body, Model, Port, Ref, Step, Write
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


def emit(
    graph: Graph,
    target: Target,
    table: Mapping[str, Write] = TABLE,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Written:
    """Emit a graph, every node of which the target takes as it is.

    ``names`` are for inputs and outputs, where those of the graph will not do.
    """
    inputs, outputs = names or (
        [v.name or f"input{i}" for i, v in enumerate(graph.inputs)], graph.output_names,
    )  # fmt: skip
    model = Model(target, table, {*inputs, *outputs})
    if len(model.taken) < len(inputs) + len(outputs):
        raise FormatError(
            "Inputs and outputs of a model need different names, found "
            f"{', '.join(inputs)} and {', '.join(outputs)}."
        )
    emitter = Emitter(model)
    for value, name in zip(graph.inputs, inputs, strict=True):
        of = tensor_of(value.type).dtype
        element_of(of)
        emitter.bind(value, Ref(name, of))
    emitter.nodes(graph.nodes)
    _name_outputs(emitter, [emitter.ref(v) for v in graph.outputs], outputs)
    body = Body(
        graph.name,
        [Port(name, v.type) for name, v in zip(inputs, graph.inputs, strict=True)],
        [Port(name, v.type) for name, v in zip(outputs, graph.outputs, strict=True)],
        emitter.steps,
    )
    return Written(body, model.constants, target.opset)


def _name_outputs(emitter: Emitter, found: Sequence[Ref], wanted: Sequence[str]) -> None:
    """Give what nodes make the names of outputs; inputs, constants and repeats are copied."""
    made = {name for step in emitter.steps for name in step.outputs}
    renamed: dict[str, str] = {}
    for ref, name in zip(found, wanted, strict=True):
        if ref.name in made and ref.name not in renamed:
            renamed[ref.name] = name
        else:
            emitter.give(ref, name)
    _rename(emitter.steps, renamed)


def _rename(steps: Sequence[Step], names: Mapping[str, str]) -> None:
    for step in steps:
        step.inputs = [names.get(name, name) for name in step.inputs]
        step.outputs = [names.get(name, name) for name in step.outputs]
        for attr in step.attrs.values():
            if isinstance(attr, Body):
                _rename(attr.steps, names)
