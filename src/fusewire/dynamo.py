"""The backend "fusewire" of torch.compile: graphs of Dynamo in, programs out.

Dynamo gives parameters as arguments of its graphs. They are bound to the graph by reference, so
that engines get them as constants, and each set of them has a program of its own: layers of one
class share a graph. A call that needs gradients runs the graph itself, on PyTorch's autograd.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from fusewire.compiler import Session
from fusewire.errors import OptionsError
from fusewire.model_source import ModelSource
from fusewire.options import Options

if TYPE_CHECKING:
    from fusewire.runtime.module_program import ModuleProgram

LOG = logging.getLogger("fusewire")
# What the modes of torch.compile stand for.
_MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "max-autotune": {"level": 3, "budget_seconds": 60.0},
    "max-autotune-no-cudagraphs": {"level": 3, "budget_seconds": 60.0},
}
# The most sets of parameters that a graph has programs for.
_MOST_PROGRAMS = 64


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
    if mode is not None and mode not in _MODES:
        raise OptionsError(
            f"mode={mode!r} asks for CUDA graphs, which Fusewire does not make. Leave it out, or "
            f"give {' or '.join(map(repr, _MODES))}."
        )
    chosen = Options.of(None, {**_MODES[mode or "default"], **(options or {})})
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return GraphPrograms(graph, _Arguments(places, example), chosen)


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
        rest = set(range(len(example))) - {*self.static, *self.tensors}
        dims = _open_dims(places, self.tensors)
        # The argument and axis of each size; None if it is not the size of an argument.
        self.sizes = {place: dims.get(_expression(example[place])) for place in rest}

    @property
    def problem(self) -> str | None:
        """Why no engine can take such arguments; None if one can."""
        if not self.tensors:
            return "A graph takes no tensors, and PyTorch runs it."
        if None in self.sizes.values():
            return "A graph takes a number that changes from call to call, and PyTorch runs it."
        return None


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
class GraphPrograms:
    """Runs a graph of Dynamo; takes what the graph takes."""

    def __init__(self, graph: Any, arguments: _Arguments, options: Options) -> None:
        from torch import is_grad_enabled

        self._graph, self._arguments = graph, arguments
        self._session = Session(options)
        self._static, self._tensors = arguments.static, arguments.tensors
        self._is_grad_enabled = is_grad_enabled
        self._programs: dict[tuple[int, ...], ModuleProgram] = {}
        self._said: set[str] = set()

    def __call__(self, *arguments: Any) -> Any:
        """Run the graph on an engine, or by itself if the call needs gradients."""
        if self._is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in arguments):
            self._say(
                "A call needs gradients, so PyTorch runs it: engines do not compute gradients. Use "
                "torch.no_grad() or torch.inference_mode() for inference."
            )
            return self._graph(*arguments)
        program = self._programs.get(tuple([id(arguments[place]) for place in self._static]))
        if program is None:
            return self._first(arguments)
        return program(*[arguments[place] for place in self._tensors])

    def _first(self, arguments: tuple[Any, ...]) -> Any:
        """Answer a call with other parameters than those before."""
        problem = self._arguments.problem
        if problem is None and len(self._programs) >= _MOST_PROGRAMS:
            problem = f"A graph has more than {_MOST_PROGRAMS} sets of parameters; PyTorch runs it."
        if problem is not None:
            self._say(problem)
            return self._graph(*arguments)
        static = [arguments[place] for place in self._static]
        module = bound_graph(self._graph, self._arguments, static)
        calling = ModelSource(module).calling()
        assert calling is not None, "it is a module"
        # Of a model that Dynamo cut into graphs, those that no engine takes stay with PyTorch.
        program = self._session.module_program(calling, may_raise=False)
        # The program holds the parameters, so nothing else gets their ids.
        self._programs[tuple(map(id, static))] = program
        return program(*[arguments[place] for place in self._tensors])

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            LOG.info("%s", sentence)


def bound_graph(graph: Any, arguments: _Arguments, static: Sequence[Any]) -> Any:
    """Make a module of a graph and its parameters, which takes the other tensors."""
    from torch import nn

    class BoundGraph(nn.Module):  # type: ignore[misc]  # torch is not typed here
        """A graph of Dynamo with its parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.graph = graph
            for place, tensor in zip(arguments.static, static, strict=True):
                if isinstance(tensor, nn.Parameter):
                    self.register_parameter(f"p{place}", tensor)
                else:
                    self.register_buffer(f"p{place}", tensor)

        def forward(self, *tensors: Any) -> Any:
            given: dict[int, Any] = dict(zip(arguments.tensors, tensors, strict=True))
            given |= {place: getattr(self, f"p{place}") for place in arguments.static}
            for place, origin in arguments.sizes.items():
                assert origin is not None, "such graphs are not bound"
                given[place] = given[origin[0]].shape[origin[1]]
            return self.graph(*[given[place] for place in range(len(given))])

    return BoundGraph().eval()
