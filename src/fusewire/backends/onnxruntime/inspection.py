"""The nodes of the model that the engine optimised, each with the nodes of ours behind it.

A node of the optimised model computes all that lies, in the model that was given, between its
inputs and its outputs. The engine keeps the names of values there; where it makes one up, that is a
value in another layout (1.31.1: ``ReorderInput``, ``ReorderOutput``, and kernels between them that
are named after the value they make), or in another shape around a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from fusewire.backends.onnxruntime.executable import session_of, settings
from fusewire.backends.onnxruntime.lowering import lower
from fusewire.contract.backend import Fact
from fusewire.contract.inspection import EngineKernel
from fusewire.errors import RefusedError
from fusewire.ir.graph import Graph
from fusewire.onnx.write.model import OnnxStep
from fusewire.onnx.write.proto import parsed

# A model that is written with its weights is smaller than this.
MOST_BYTES = 1 << 30
# These give their first input in another form.
_SAME = ("ReorderInput", "ReorderOutput", "Reshape", "Transpose", "Cast", "Squeeze", "Unsqueeze")
_BLOCKED = "_nchwc"


def optimised_kernels(region: Graph, launch: Mapping[str, Fact]) -> list[EngineKernel]:
    """Have the engine optimise a region, and list what it will run."""
    constants = (value.constant for part in region.walk() for value in part.constants)
    size = sum(constant.array.nbytes for constant in constants if constant is not None)
    if size > MOST_BYTES:
        raise RefusedError(
            f"The region has {size:,} bytes of weights, and what ONNX Runtime fuses is looked at "
            f"for {MOST_BYTES:,} at most. Look at a part of it."
        )
    written, options = lower(region, launch), settings(launch)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        options.optimized_model_filepath = str(path)
        session_of(written.proto().SerializeToString(), options)
        model = parsed(path.read_bytes())
    places = {node: place for place, node in enumerate(region.nodes)}
    reading = _Reading({name: step for step in written.body.steps for name in step.outputs}, model)
    kernels = []
    for node in model.graph.node:
        steps = reading.steps_of(node)
        nodes = {places[x.source] for x in steps if x.source is not None and x.source in places}
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        kernels.append(EngineKernel(node.name or node.output[0], kind, tuple(sorted(nodes))))
    return kernels


@final
class _Reading:
    """An optimised model beside the steps that it was made of, by what they make."""

    def __init__(self, given: Mapping[str, OnnxStep], model: Any) -> None:
        self._given = given
        self._model = model
        known = [*given, *(name for step in given.values() for name in step.inputs)]
        self._known = {*known, *(x.name for x in model.graph.input)}

    @cached_property
    def _makers(self) -> Mapping[str, Any]:
        return {name: node for node in self._model.graph.node for name in node.output}

    @cached_property
    def _readers(self) -> Mapping[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for node in self._model.graph.node:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    def steps_of(self, node: Any) -> list[OnnxStep]:
        """List the steps that were given between the inputs of a node and its outputs."""
        ends = {self._meaning(name) for name in node.input}
        waiting = [self._meaning(name) for name in node.output]
        seen: set[str | None] = set(ends)
        steps = []
        while waiting:
            name = waiting.pop()
            if name in seen or name is None or name not in self._given:
                continue
            step = self._given[name]
            # All that a step makes is made at once.
            seen.update(step.outputs)
            steps.append(step)
            waiting += step.inputs
        return steps

    def _meaning(self, name: str) -> str | None:
        """Name the value that was given for one of the optimised model."""
        if name in self._known:
            return name
        maker = self._makers.get(name)
        if maker is None:
            return None
        if maker.op_type in _SAME and maker.input:
            return self._meaning(maker.input[0])
        base = maker.name.partition(_BLOCKED)[0]
        if _BLOCKED in maker.name and base in self._known:
            return str(base)
        readers = self._readers.get(name, [])
        ahead = [x for x in readers if x.op_type in _SAME and x.output[0] in self._known]
        return str(ahead[0].output[0]) if ahead else None
