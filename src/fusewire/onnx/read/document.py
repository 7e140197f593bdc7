"""An open ONNX model, which is turned into a graph for each set of sizes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from fusewire.contract.frontend import Document, Example, Limits, Reading, Spec, Structure
from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError, SizesNeededError
from fusewire.ir.dims import symbols, unbacked
from fusewire.ir.graph import Graph
from fusewire.ir.types import SequenceType, TensorType, Type
from fusewire.onnx.read.checked_file import checked_file
from fusewire.onnx.read.importer import Importer
from fusewire.onnx.read.model_file import Opened, open_model
from fusewire.onnx.read.own_files import Own
from fusewire.onnx.types import input_type
from fusewire.ops.subgraph import dims_of, with_shape
from fusewire.ops.table import verify


@final
class OnnxDocument(Document):
    """A model that was read and checked; its graph is imported for each set of sizes."""

    def __init__(self, source: Any, limits: Limits) -> None:
        self._opened = open_model(source, limits)
        self._limits = limits
        self._is_path = isinstance(source, str | os.PathLike)

    @property
    def inputs(self) -> Mapping[str, Type]:
        proto = self._opened.proto
        own, free = Own(proto), _free_inputs(proto.graph)
        return {i.name: own.type(input_type(i)) for i in proto.graph.input if i.name in free}

    @property
    def digest(self) -> str | None:
        is_one_file = self._is_path and not self._opened.states
        return self._opened.file_digest if is_one_file else None

    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        proto = self._opened.proto
        names = _free_inputs(proto.graph)
        types = _types(proto.graph, _named(example, names))
        make = _opened if is_open else _closed
        graph, hazards = make(self._opened, self._limits, types)
        verify(graph)
        arguments = Structure(dict.fromkeys(names, Structure.LEAF), tuple(names))
        results = Structure.of_results(graph.output_names)
        file = checked_file(self._opened, graph, hazards) if self._is_path else None
        return Reading(graph, arguments, results, self.digest, file=file)


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


# A graph, and why an engine should not read the file by itself.
_Imported: TypeAlias = tuple[Graph, Sequence[str]]


def _closed(opened: Opened, limits: Limits, types: Mapping[str, Type]) -> _Imported:
    importer = Importer(opened, limits)
    return importer.model(types), importer.hazards


def _opened(opened: Opened, limits: Limits, types: Mapping[str, Type]) -> _Imported:
    """Import with as few sizes from the example as it takes."""
    bound: set[str] = set()
    while True:
        try:
            return _closed(opened, limits, _with_sizes(opened.proto.graph, types, bound))
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
