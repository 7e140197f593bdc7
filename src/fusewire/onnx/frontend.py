"""ONNX models into graphs: files, bytes of files, and ModelProtos."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusewire.contract.frontend import Example, Frontend, Limits, Reading, Spec, Structure
from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError, SizesNeededError
from fusewire.ir.dims import symbols, unbacked
from fusewire.ir.graph import Graph
from fusewire.ir.types import SequenceType, TensorType, Type
from fusewire.onnx.read.importer import Importer
from fusewire.onnx.read.model_file import Opened, open_model
from fusewire.onnx.read.own_files import Own
from fusewire.onnx.types import input_type
from fusewire.ops.subgraph import dims_of, with_shape
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

    def inputs(self, source: Any, limits: Limits) -> Mapping[str, Type]:
        proto = open_model(source, limits).proto
        own, free = Own(proto), _free_inputs(proto.graph)
        return {i.name: own.type(input_type(i)) for i in proto.graph.input if i.name in free}

    def convert(
        self, source: Any, example: Example, limits: Limits, *, is_open: bool = False
    ) -> Reading:
        opened = open_model(source, limits)
        names = _free_inputs(opened.proto.graph)
        given = _named(example, names)
        types = _types(opened.proto.graph, given)
        make = _opened if is_open else _closed
        graph = make(opened, limits, types)
        verify(graph)
        tree = dict.fromkeys(names, Structure.LEAF)
        is_one_file = isinstance(source, str | os.PathLike) and not opened.states
        digest = opened.file_digest if is_one_file else None
        return Reading(
            graph, Structure(tree, tuple(names)), Structure.of_results(graph.output_names), digest
        )


def _types(graph: Any, given: Mapping[str, Any]) -> dict[str, Type]:
    """Take the types of inputs from examples; of sequences only where the file tells no rank."""
    found: dict[str, Type] = {}
    for info in graph.input:
        type_ = _type(given[info.name]) if info.name in given else None
        if isinstance(type_, SequenceType):
            with contextlib.suppress(SizesNeededError):
                type_ = input_type(info)
        if type_ is not None:
            found[info.name] = type_
    return found


def _closed(opened: Opened, limits: Limits, types: Mapping[str, Type]) -> Graph:
    return Importer(opened, limits).model(types)


def _opened(opened: Opened, limits: Limits, types: Mapping[str, Type]) -> Graph:
    """Import with as few sizes from the example as it takes."""
    bound: set[str] = set()
    while True:
        try:
            return Importer(opened, limits).model(_with_sizes(opened.proto.graph, types, bound))
        except SizesNeededError as error:
            if error.names <= bound:
                break
            bound |= error.names
    return _closed(opened, limits, types)


def _with_sizes(graph: Any, types: Mapping[str, Type], names: set[str]) -> dict[str, Type]:
    """Give the types of inputs as the file says them, with some sizes from the example."""
    found: dict[str, Type] = {}
    for info in graph.input:
        example = types.get(info.name)
        if example is None:
            continue
        try:
            said = input_type(info)
        except SizesNeededError:
            found[info.name] = example
            continue
        if not (isinstance(said, TensorType) and isinstance(example, TensorType)):
            continue
        if said.rank == example.rank:
            pairs = zip(said.shape, example.shape, strict=True)
            shape = [size if names & {s.name for s in symbols(dim)} else dim for dim, size in pairs]
            found[info.name] = said.with_shape(tuple(shape))
    return found


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
    """Give the type of an example; None and empty lists leave it to the file."""
    if isinstance(x, Spec):
        return x.type
    if isinstance(x, list):
        # Elements may differ in size, from each other and from those of other calls.
        shared = _type(x[0]) if x else None
        if shared is None:
            return None
        return SequenceType(with_shape(shared, tuple(unbacked() for _ in dims_of(shared))))
    if x is None:
        return None
    array = np.asarray(x)
    return TensorType(dtype(array.dtype), array.shape)
