"""Turn functions into graphs, by running them once on stand-ins for arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from fusewire.contract.frontend import (
    Document,
    Example,
    Frontend,
    Limits,
    Reading,
    Spec,
    Structure,
    TracedFunction,
)
from fusewire.contract.sources import is_of_torch
from fusewire.dtypes import dtype
from fusewire.errors import TraceError
from fusewire.frontends.trace.recording import Recording
from fusewire.frontends.trace.sizes import Size
from fusewire.frontends.trace.tracer import Tracer
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, Type
from fusewire.ops.table import verify


class TraceFrontend(Frontend):
    """Reads Python functions.

    Arguments may be nested tuples, lists and dicts of arrays or Specs; anything else in them is
    part of the program. If the function assigns to an argument, it assigns to a copy: the caller's
    array never changes.
    """

    needs_example = True

    def accepts(self, source: object) -> bool:
        return callable(source) and not isinstance(source, type) and not is_of_torch(source)

    def open(self, source: Any, limits: Limits) -> Document:
        return _Function(source, limits)


@final
class _Function(Document):
    """A function that is traced each time it is converted."""

    def __init__(self, source: Callable[..., Any], limits: Limits) -> None:
        self._source = source
        self._limits = limits

    @property
    def inputs(self) -> Mapping[str, Type]:
        return {}

    @property
    def digest(self) -> str | None:
        return None

    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        source, recording = self._source, Recording(self._limits)
        given, by_name = _arguments(source, example)
        arguments, leaves = Structure.of(given, _is_array)
        arguments = Structure(arguments.tree, _unique(arguments.names))
        inputs = [
            recording.input(_type(leaf), name, isinstance(leaf, np.generic))
            for leaf, name in zip(leaves, arguments.names, strict=True)
        ]
        values = [x.value for x in inputs]
        filled = recording.rebinder(arguments.restore(inputs))
        found = _called(recording.rebinder.entry(source), filled, by_name)
        results, outputs = Structure.of(found, _is_result)
        if not outputs:
            raise TraceError(
                f"The function {source!r} returned {type(found).__name__}, not an array: a program "
                "needs an output. Return arrays, in tuples, lists or dicts if there are several."
            )
        names = _unique([_output_name(name) for name in results.names])
        results = Structure(results.tree, names)
        name = getattr(source, "__name__", type(source).__name__)
        graph = _closed(recording, values, outputs, names, "traced" if "<" in name else name)
        written = frozenset(place for place, x in enumerate(inputs) if x.is_written)
        traced = TracedFunction(source, written, recording.rebinder.has_written)
        return Reading(graph, arguments, results, function=traced)


def _called(function: Callable[..., Any], filled: Mapping[str, Any], by_name: set[str]) -> Any:
    try:
        positional = [value for name, value in filled.items() if name not in by_name]
        return function(*positional, **{name: filled[name] for name in by_name})
    except ValueError as error:
        # NumPy says "setting an array element with a sequence" when we refuse an element.
        if isinstance(error.__cause__, TraceError):
            raise error.__cause__ from None
        raise


def _closed(
    recording: Recording, inputs: list[Value], outputs: list[Any], names: Any, name: str
) -> Graph:
    values = [recording.array(x).value for x in outputs]
    graph = Graph(inputs, values, name=name, output_names=names)
    recording.checked(verify, graph)
    return graph


def _arguments(source: Callable[..., Any], example: Example) -> tuple[dict[str, Any], set[str]]:
    """Name the arguments after their parameters, and tell which are passed by name."""
    if isinstance(example, Mapping):
        return dict(example), set(example)
    try:
        parameters = [*inspect.signature(source).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(len(example) - len(names))]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(parameter.name)
    if parameters and len(example) > len(names):
        raise TraceError(
            f"{source!r} takes {len(names)} argument{'s' * (len(names) != 1)} "
            f"({', '.join(names)}), found {len(example)} in the example."
        )
    names += [f"input{i}" for i in range(len(names), len(example))]
    given = dict(zip(names, example, strict=False))
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in given}
    return given, by_name


def _is_array(x: Any) -> bool:
    return isinstance(x, Spec | np.ndarray | np.generic)


def _is_result(x: Any) -> bool:
    return isinstance(x, Tracer | Size | np.ndarray | np.generic)


def _type(leaf: Any) -> TensorType:
    return leaf.type if isinstance(leaf, Spec) else TensorType(dtype(leaf.dtype), leaf.shape)


def _output_name(path: str) -> str:
    return f"output{path}" if path[:1].isdigit() or not path else path


def _unique(names: Any) -> tuple[str, ...]:
    """Make equal names distinct by a number."""
    seen: dict[str, int] = {}
    told = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        told.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(told)
