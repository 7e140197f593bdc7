"""The backend "fusewire" of torch.compile: graphs of Dynamo in, programs out.

Dynamo gives parameters as arguments of its graphs. They are bound to the graph by reference, so
that engines get them as constants, and each set of them has a program of its own: layers of one
class share a graph. A call that needs gradients runs the graph itself, on PyTorch's autograd.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from fusewire.compiler import Session
from fusewire.dynamo.fakes import is_recorded, may_be_written, requires_gradients, storages_of
from fusewire.dynamo.names import graph_name, parameter_path
from fusewire.dynamo.views import CutGraph, cut_views
from fusewire.errors import OptionsError
from fusewire.options import Options
from fusewire.session.model_source import ModelSource

if TYPE_CHECKING:
    from fusewire.program.module_program import Answer, ModuleProgram

LOG = logging.getLogger("fusewire")
# What the modes of torch.compile stand for.
_MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "max-autotune": {"level": 3, "budget_seconds": 60.0},
    "max-autotune-no-cudagraphs": {"level": 3, "budget_seconds": 60.0},
}
# The most sets of parameters that a graph has programs for.
_MOST_PROGRAMS = 64
_SHARED_MEMORY = (
    "Results of a graph share memory with its arguments or with each other in a way that only "
    "PyTorch keeps, and PyTorch runs it."
)


def compile_graph(
    graph: Any,
    example: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> GraphPrograms:
    """Compile a graph of Dynamo: ``torch.compile(model, backend="fusewire")`` calls this.

    ``options`` are those of ``fw.compile``.
    """
    chosen = Options.of(None, {**_mode_options(mode or "default"), **(options or {})})
    if isinstance(chosen.backend, str) and chosen.backend != "auto":
        from fusewire.registry import REGISTRY

        # Raises for a name that does not exist; imports nothing.
        REGISTRY.backends.describe(chosen.backend)
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return GraphPrograms(graph, _Arguments(places, example), chosen)


def _mode_options(mode: str) -> Mapping[str, Any]:
    """Return the options that a mode of torch.compile stands for."""
    if mode in _MODES:
        return _MODES[mode]
    found = "is not a mode that Fusewire knows"
    if mode == "reduce-overhead":
        found = "asks for CUDA graphs, which Fusewire does not make"
    known = ", ".join(map(repr, _MODES))
    raise OptionsError(f"mode={mode!r} {found}. Leave it out, or give one of {known}.")


@final
class _Arguments:
    """Which arguments of a graph are parameters, which are tensors, and which are their sizes."""

    def __init__(self, places: Sequence[Any], example: Sequence[Any]) -> None:
        import torch

        is_static = [getattr(x, "_dynamo_static_input_type", None) is not None for x in example]
        self.static = [place for place, is_one in enumerate(is_static) if is_one]
        self.tensors = [
            place
            for place, x in enumerate(example)
            if isinstance(x, torch.Tensor) and not is_static[place]
        ]
        self.written = [place for place in self.tensors if may_be_written(places[place])]
        rest = set(range(len(example))) - {*self.static, *self.tensors}
        dims = _open_dims(places, self.tensors)
        self.names = _buffer_names([parameter_path(places[place]) for place in self.static])
        # The argument and axis of each size; None if it is not the size of an argument.
        self.sizes = {place: dims.get(_expression(example[place])) for place in rest}
        # Whether Dynamo sees to it that all calls have tensors of the same types.
        self.is_fixed = not dims and not rest

    @property
    def problem(self) -> str | None:
        """Why no engine can take such arguments; None if one can."""
        if not self.tensors:
            return "A graph takes no tensors, and PyTorch runs it."
        if None in self.sizes.values():
            return "A graph takes a number that changes from call to call, and PyTorch runs it."
        return None


def _buffer_names(paths: Sequence[str | None]) -> list[str]:
    """Return names for buffers: what the user calls them, unless two would be called the same."""
    if len(set(paths)) == len(paths) and None not in paths:
        return [path for path in paths if path is not None]
    return [f"{path or 'tensor'}_{place}" for place, path in enumerate(paths)]


def _expression(size: Any) -> Any:
    """Return the expression of a size; of a plain number, the number."""
    return size.node.expr if hasattr(size, "node") else size


def _open_dims(places: Sequence[Any], tensors: Sequence[int]) -> dict[Any, tuple[int, int]]:
    """Find where arguments have the sizes that Dynamo left open, by their expressions."""
    dims: dict[Any, tuple[int, int]] = {}
    for place in tensors:
        shape = getattr(places[place].meta.get("example_value"), "shape", ())
        for axis, size in enumerate(shape):
            if hasattr(size, "node"):
                dims.setdefault(_expression(size), (place, axis))
    return dims


@final
class _ParameterSet:
    """The program of a graph with one set of parameters, which it does not keep alive.

    It has tensors of its own that share the memory and the versions of the parameters.
    """

    def __init__(self, module: Any, program: ModuleProgram) -> None:
        from torch import Tensor

        self._module, self.program = module, program
        self._data_ptr = Tensor.data_ptr
        self._pointers: list[int] = []
        self._storages: set[int] = set()
        self._references: list[weakref.ref[Any]] = []
        self._key: Hashable = None

    def answer(self, tensors: tuple[Any, ...]) -> Answer | None:
        """Return what answers calls at once, if all have tensors of the same types."""
        if self._key is None:
            self._key = self.program.key(tensors, {})
        return self.program.answer(self._key)

    def watch(self, static: Sequence[Any], died: Callable[[Any], None]) -> None:
        """Have ``died`` called when one of the parameters is gone."""
        self._note_memory(static)
        self._references = [weakref.ref(tensor, died) for tensor in static]

    def follow(self, static: Sequence[Any]) -> None:
        """Follow parameters that were given other memory, as by ``parameter.data = ...``."""
        if list(map(self._data_ptr, static)) != self._pointers:
            self._module.bind(static)
            self._note_memory(static)

    def _note_memory(self, static: Sequence[Any]) -> None:
        self._pointers = list(map(self._data_ptr, static))
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in static}

    def shares_memory(self, tensors: Sequence[Any]) -> bool:
        """Tell whether tensors may be views of the parameters."""
        return any(x.untyped_storage().data_ptr() in self._storages for x in tensors if x.numel())


@final
class GraphPrograms:
    """Runs a graph of Dynamo; takes what the graph takes."""

    def __init__(self, graph: Any, arguments: _Arguments, options: Options) -> None:
        from torch import _C, is_grad_enabled

        self._name = graph_name()
        self._graph, self._arguments = graph, arguments
        self._session = Session(options)
        self._static, self._tensors = arguments.static, arguments.tensors
        self._written = arguments.written
        self._is_grad_enabled = is_grad_enabled
        # Dynamo does not look at the modes that see every call of an op.
        self._is_fixed, self._dispatch_modes = arguments.is_fixed, _C._len_torch_dispatch_stack
        self._problem = arguments.problem or _gradient_problem(graph)
        cut = cut_views(graph) if self._problem is None else CutGraph(graph)
        if cut is None:
            self._problem, cut = _SHARED_MEMORY, CutGraph(graph)
        self._computed, self._views = cut.computed, cut.views
        self._sets: dict[tuple[int, ...], _ParameterSet] = {}
        self._said: set[str] = set()

    @property
    def programs(self) -> list[ModuleProgram]:
        """The programs so far, one for each set of parameters."""
        return [found.program for found in list(self._sets.values())]

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph on an engine, or by itself if the call needs gradients."""
        if self._is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arguments):
            self._say(
                "A call needs gradients, so PyTorch runs it: engines do not compute gradients. Use "
                "torch.no_grad() or torch.inference_mode() for inference."
            )
            return self._graph(*arguments)
        static = [arguments[place] for place in self._static]
        found = self._sets.get(tuple(map(id, static)))
        if found is None:
            if (problem := self._why_not()) is not None:
                self._say(problem)
                return self._graph(*arguments)
            found = self._bound(static)
        found.follow(static)
        if self._written and found.shares_memory([arguments[place] for place in self._written]):
            self._say("A call has its own parameters written to, and PyTorch runs it.")
            return self._graph(*arguments)
        tensors = tuple([arguments[place] for place in self._tensors])
        answer = found.answer(tensors) if self._is_fixed and not self._dispatch_modes() else None
        if answer is None:
            results = found.program(*tensors)
        elif found.program.is_source(answer):
            # The way through the program takes longer than a small graph.
            return self._graph.forward(*arguments)
        else:
            results = answer(tensors, {})
        return results if self._views is None else self._views(*arguments, *results)

    def _why_not(self) -> str | None:
        """Say why no engine gets a further set of parameters."""
        if self._problem is None and len(self._sets) >= _MOST_PROGRAMS:
            return f"A graph has more than {_MOST_PROGRAMS} sets of parameters; PyTorch runs it."
        return self._problem

    def _bound(self, static: Sequence[Any]) -> _ParameterSet:
        """Make the program for parameters other than those before."""
        module = bound_graph(self._computed, self._arguments, self._name)
        module.bind(static)
        calling = ModelSource(module).calling()
        assert calling is not None, "it is a module"
        # Of a model that Dynamo cut into graphs, those that no engine takes stay with PyTorch.
        program = self._session.module_program(calling, may_raise=False)
        key, found = tuple(map(id, static)), _ParameterSet(module, program)
        # Before another object can get the id of one that is gone.
        found.watch(static, partial(_drop, weakref.ref(self), key))
        self._sets[key] = found
        return found

    def drop(self, key: tuple[int, ...]) -> None:
        """Let go of a program whose parameters are gone; its engines are closed with it."""
        self._sets.pop(key, None)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            LOG.info("%s", sentence)


def _drop(graph: weakref.ref[GraphPrograms], key: tuple[int, ...], _: Any) -> None:
    programs = graph()
    if programs is not None:
        programs.drop(key)


def _gradient_problem(graph: Any) -> str | None:
    """Say that a graph records gradients whatever the mode of the call, if it does."""
    nodes = list(graph.graph.nodes)
    places = [node for node in nodes if node.op == "placeholder"]
    # Views of a parameter require gradients, too, even where none are recorded.
    learned = {s for place in places if requires_gradients(place) for s in storages_of(place)}
    for node in nodes[len(places) :]:
        is_asked_for = requires_gradients(node) and learned.isdisjoint(storages_of(node))
        if is_asked_for or is_recorded(node):
            return (
                "A graph turns gradients on by itself (torch.enable_grad, requires_grad_), and "
                "PyTorch runs it: engines do not compute gradients."
            )
    return None


def bound_graph(graph: Any, arguments: _Arguments, name: str) -> Any:
    """Make a module of a graph, which takes all tensors but the parameters; ``bind`` these."""
    from torch import inference_mode, nn

    class BoundGraph(nn.Module):  # type: ignore[misc]  # torch is not typed here
        """A graph of Dynamo with its parameters."""

        def __init__(self) -> None:
            super().__init__()
            # Its code is made when it is first asked for; later that would look like a change.
            assert graph.code is not None
            self.graph_of_dynamo = graph
            # The part that has each parameter, and its name there.
            self.holders: list[tuple[Any, str]] = []

        def bind(self, static: Sequence[Any]) -> None:
            """Use tensors that share memory and versions with parameters."""
            with inference_mode(False):
                aliases = [tensor.detach() for tensor in static]
            named = zip(arguments.names, aliases, strict=True)
            self.holders = [_set_buffer(self, path, alias) for path, alias in named]

        def __call__(self, *tensors: Any) -> Any:
            # It has no hooks, and what a module does for them takes as long as a small graph.
            return self.forward(*tensors)

        def forward(self, *tensors: Any) -> Any:
            given: dict[int, Any] = dict(zip(arguments.tensors, tensors, strict=True))
            for place, (holder, name) in zip(arguments.static, self.holders, strict=True):
                given[place] = holder._buffers[name]
            for place, origin in arguments.sizes.items():
                assert origin is not None, "such graphs are not bound"
                given[place] = given[origin[0]].shape[origin[1]]
            return self.graph_of_dynamo.forward(*[given[place] for place in range(len(given))])

    BoundGraph.__name__ = BoundGraph.__qualname__ = name
    return BoundGraph().eval()


def _set_buffer(module: Any, path: str, tensor: Any) -> tuple[Any, str]:
    """Set a buffer, in parts of a module that are made where they are missing; say where."""
    from torch import nn

    *parts, name = path.split(".")
    for part in parts:
        if part not in module._modules:
            module.add_module(part, nn.Module().eval())
        module = module._modules[part]
    module.register_buffer(name, tensor)
    return module, name
