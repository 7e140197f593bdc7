"""Turn PyTorch modules, exported programs and flat calls into graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fusewire.contract.calling import Calling
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
from fusewire.dtypes import dtype
from fusewire.errors import TraceError
from fusewire.frontends.torch.flat_call import FlatCall
from fusewire.ir.graph import Graph
from fusewire.ir.types import TensorType, Type, concrete_shape

if TYPE_CHECKING:
    from fusewire.frontends.torch.ranges import Range
    from fusewire.ir.dims import Symbol


def _is_a(source: object, module: str, name: str) -> bool:
    """Tell whether an object is of a class, by name: importing torch takes seconds."""
    kinds = type(source).__mro__
    return any(kind.__module__ == module and kind.__name__ == name for kind in kinds)


class TorchFrontend(Frontend):
    """Reads modules, and calls whose arguments were taken apart.

    The arguments of a module may be nested tuples, lists and dicts of arrays, tensors or Specs;
    anything else in them is part of the program.
    """

    needs_example = True
    package = "torch"

    def accepts(self, source: object) -> bool:
        return isinstance(source, FlatCall) or _is_a(source, "torch.nn.modules.module", "Module")

    def open(self, source: Any, limits: Limits) -> Document:
        return _Call(source, limits)

    def calling(self, source: Any) -> Calling | None:
        if isinstance(source, FlatCall):
            return None
        from fusewire.frontends.torch.calling import ModuleCalling

        return ModuleCalling(source)

    def wrapped(self, program: Callable[..., Any], name: str, takes_arrays: bool) -> Any:
        from fusewire.frontends.torch.program_module import program_module

        return program_module(program, name, takes_arrays)


class ExportedProgramFrontend(Frontend):
    """Reads what torch.export made: its arguments have types, some with open sizes."""

    needs_example = False
    package = "torch"

    def accepts(self, source: object) -> bool:
        return _is_a(source, "torch.export.exported_program", "ExportedProgram")

    def open(self, source: Any, limits: Limits) -> Document:
        return _Exported(source, limits)

    def calling(self, source: Any) -> Calling | None:
        from fusewire.frontends.torch.calling import ModuleCalling

        return ModuleCalling.of_exported(source)


@final
class _Call(Document):
    """A module or a flat call, which is exported each time it is converted."""

    def __init__(self, source: Any, limits: Limits) -> None:
        self._source = source
        self._limits = limits

    @property
    def inputs(self) -> Mapping[str, Type]:
        return {}

    @property
    def digest(self) -> str | None:
        return None

    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        from fusewire.frontends.torch.convert import converted

        nested = None if isinstance(self._source, FlatCall) else NestedCall(self._source, example)
        call = self._source if nested is None else nested.call
        given = _flat(call, example) if nested is None else nested.leaves
        types = [_type(leaf) for leaf in given]
        graph = (call.read or converted)(call, types, self._limits)
        if all(type_.is_static for type_ in types):
            call.sizes[:] = [concrete_shape(type_, {}) for type_ in types]
        arguments = Structure(dict.fromkeys(call.names, Structure.LEAF), call.names)
        results = Structure.of_results(graph.output_names)
        if nested is not None:
            arguments, results = nested.arguments, nested.results(graph.output_names)
        function = (call.run or _on_arrays(call)) if nested is None else nested.on_arrays
        traced: TracedFunction | None = TracedFunction(
            function if not call.updated else _with_updated(function, tuple(call.updated)),
            frozenset(call.updated),
            title="your module",
            may_share=call.run is not None,
            burden=call.burden,
        )
        if nested is not None and call.updated:
            # It takes nested arguments, of which it would have to return parts.
            traced = None
        updates = _updates(graph, call.updated)
        return Reading(graph, arguments, results, function=traced, updates=updates)


def _updates(graph: Graph, updated: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Pair the last outputs with the inputs that they replace."""
    first = len(graph.outputs) - len(updated)
    return tuple((first + rank, place) for rank, place in enumerate(updated))


def _with_updated(function: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """Return the arguments that a function of arrays writes to, too."""

    def run(*arrays: Any) -> Any:
        found = function(*arrays)
        results = found if isinstance(found, tuple) else (found,)
        return (*results, *(arrays[place] for place in places))

    return run


def _flat(call: FlatCall, example: Example) -> list[Any]:
    if len(example) != len(call.names):
        raise TraceError(
            f"{call.label} takes {len(call.names)} tensors ({', '.join(call.names)}), found "
            f"{len(example)} in the example."
        )
    return list(example.values() if isinstance(example, Mapping) else example)


def _type(leaf: Any) -> TensorType:
    if isinstance(leaf, Spec):
        return leaf.type
    if isinstance(leaf, np.ndarray | np.generic):
        return TensorType(dtype(leaf.dtype), leaf.shape)
    from fusewire.frontends.torch.tensors import our_dtype

    return TensorType(our_dtype(leaf.dtype), tuple(leaf.shape))


def _on_arrays(call: FlatCall) -> Callable[..., Any]:
    """Make a function of arrays of a call of tensors; it answers as the graph does."""

    def run(*arrays: Any) -> Any:
        import torch

        from fusewire.frontends.torch.tensors import array_of, tensor_from

        with torch.no_grad():
            found = [array_of(x) for x in call.function(*map(tensor_from, arrays))]
        return found[0] if len(found) == 1 else tuple(found)

    return run


@final
class NestedCall:
    """A module with an example of its arguments, taken apart into a flat call."""

    def __init__(self, module: Any, example: Example) -> None:
        named, self._by_name = _named_arguments(module, example)
        self.arguments, self.leaves = Structure.of(named, _is_array)
        self._module = module
        self._results: list[Structure] = []
        label = type(module).__name__
        self.call = FlatCall(self._flat, module, self.arguments.names, label=label)

    def _flat(self, *tensors: Any) -> list[Any]:
        structure, found = Structure.of(self._called(self.arguments.restore(tensors)), _is_tensor)
        self._results[:] = [structure]
        return found

    def _called(self, named: Mapping[str, Any]) -> Any:
        by_name = {name: value for name, value in named.items() if name in self._by_name}
        return self._module(*(named[name] for name in named if name not in by_name), **by_name)

    def results(self, names: tuple[str, ...]) -> Structure:
        """Return the structure that the latest call returned."""
        return Structure(self._results[0].tree, names)

    def on_arrays(self, *arguments: Any) -> Any:
        """Call the module on arrays, nested as in the example; returns arrays."""
        run = _on_arrays(self.call)
        leaves = self.arguments.flatten(dict(zip(self.arguments.tree, arguments, strict=True)))
        found = run(*leaves)
        return self._results[0].restore(found if isinstance(found, tuple) else (found,))


def _is_tensor(x: object) -> bool:
    return _is_a(x, "torch", "Tensor")


def _is_array(x: object) -> bool:
    return isinstance(x, Spec | np.ndarray | np.generic) or _is_tensor(x)


def _named_arguments(module: Any, example: Example) -> tuple[dict[str, Any], set[str]]:
    """Name the arguments after the parameters of forward, and tell which are passed by name."""
    if isinstance(example, Mapping):
        return dict(example), set(example)
    names: list[str] = []
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(len(example) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    if len(example) > len(names):
        raise TraceError(
            f"{type(module).__name__} takes {len(names)} arguments ({', '.join(names)}), found "
            f"{len(example)} in the example."
        )
    return dict(zip(names, example, strict=False)), set()


@final
class _Exported(Document):
    """An exported program; its graph is converted once."""

    def __init__(self, source: Any, limits: Limits) -> None:
        self._source = source
        self._limits = limits

    @cached_property
    def _read(self) -> tuple[Graph, tuple[tuple[int, int], ...], Mapping[Symbol, Range]]:
        """The graph, which inputs its last outputs replace, and for which sizes it is."""
        from fusewire.frontends.torch.convert import ProgramConversion
        from fusewire.frontends.torch.exporting import decomposed_program

        program = decomposed_program(self._source)
        names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
        conversion = ProgramConversion(program, self._limits)
        graph = conversion.graph("exported", names, None)
        return graph, _updates(graph, conversion.updated), conversion.ranges

    @property
    def inputs(self) -> Mapping[str, Type]:
        return {value.name or "": value.type for value in self._read[0].inputs}

    @property
    def digest(self) -> str | None:
        return None

    def convert(self, example: Example, *, is_open: bool = False) -> Reading:
        from fusewire.frontends.torch.ranges import with_sizes

        graph, updates, ranges = self._read
        names = tuple(value.name or "" for value in graph.inputs)
        given = example if isinstance(example, Mapping) else dict(zip(names, example, strict=False))
        leaves = [None if is_open else given.get(name) for name in names]
        bound = with_sizes(graph, [None if x is None else _type(x) for x in leaves], ranges)
        arguments = Structure(dict.fromkeys(names, Structure.LEAF), names)
        return Reading(bound, arguments, self._results, updates=updates)

    @property
    def _results(self) -> Structure:
        """The tree that the module returned when it was exported."""
        from torch.utils._pytree import tree_unflatten

        specs = self._source.graph_signature.output_specs
        leaves = [_constant(spec) for spec in specs if spec.kind.name == "USER_OUTPUT"]
        tree = tree_unflatten(leaves, self._source.call_spec.out_spec)
        found, _ = Structure.of(tree, lambda leaf: leaf is Structure.LEAF)
        return Structure(found.tree, self._read[0].output_names)


def _constant(spec: Any) -> Any:
    """Return what an exported program returns every time, or the mark of what it computes."""
    is_constant = type(spec.arg).__name__ == "ConstantArgument"
    return spec.arg.value if is_constant else Structure.LEAF
