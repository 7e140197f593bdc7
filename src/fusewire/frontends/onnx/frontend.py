"""ONNX models into graphs: files, bytes of files, and ModelProtos."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError
from fusewire.formats.onnx.reading import open_model
from fusewire.frontend import Example, Frontend, Limits, Reading, Spec, Structure
from fusewire.frontends.onnx.importer import Importer
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType, Type
from fusewire.ops.table import verify


class OnnxFrontend(Frontend):
    """Reads ONNX models; arguments are the model's inputs in their order, or by name."""

    needs_example = False

    def accepts(self, source: object) -> bool:
        if isinstance(source, str | os.PathLike):
            return os.fspath(source).endswith(".onnx")
        # Looked up by name, because importing onnx takes a quarter of a second.
        kind = type(source)
        return kind.__name__ == "ModelProto" and kind.__module__.startswith("onnx")

    def convert(self, source: Any, example: Example, limits: Limits) -> Reading:
        opened = open_model(source, limits)
        names = _free_inputs(opened.proto.graph)
        given = _named(example, names)
        types = {name: found for name, x in given.items() if (found := _type(x)) is not None}
        graph = Importer(opened, limits).model(types)
        verify(graph)
        tree = dict.fromkeys(names, Structure.LEAF)
        return Reading(graph, Structure(tree, tuple(names)), _results(graph))


def _free_inputs(graph: Any) -> list[str]:
    held = {t.name for t in graph.initializer}
    held |= {t.values.name for t in graph.sparse_initializer}
    return [info.name for info in graph.input if info.name not in held]


def _named(example: Example, names: list[str]) -> dict[str, Any]:
    if isinstance(example, Mapping):
        unknown = sorted(set(example) - set(names))
        if unknown:
            raise ShapeMismatchError(
                f"No input is called {', '.join(unknown)}. The model takes {', '.join(names)}."
            )
        return dict(example)
    if example and len(example) > len(names):
        raise ShapeMismatchError(
            f"The model takes {len(names)} inputs ({', '.join(names)}), found {len(example)}."
        )
    return dict(zip(names, example, strict=False))


def _type(x: Any) -> Type | None:
    """Give the type of an example; lists and None leave the type to the file."""
    if isinstance(x, Spec):
        return x.type
    if x is None or isinstance(x, list):
        return None
    array = np.asarray(x)
    return TensorType(dtype(array.dtype), array.shape)


def _results(graph: Graph) -> Structure:
    if len(graph.outputs) == 1:
        return Structure(Structure.LEAF, graph.output_names)
    return Structure((Structure.LEAF,) * len(graph.outputs), graph.output_names)
