"""The recipe: source, graph, rewritten graph, executable, program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fusewire.backend import Executable
from fusewire.errors import OptionsError
from fusewire.frontend import Limits, Reading, Structure
from fusewire.ir.graph import Graph
from fusewire.ops.interpret import graph_of
from fusewire.ops.table import get_op, verify
from fusewire.region import build, first_device
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.runtime.program import Entry, Program

FIRST_BACKEND = "reference"


@dataclass(frozen=True)
class Options:
    """How to compile. ``backend`` is a name, or "auto" for the best there is."""

    backend: str = "auto"
    level: int = 0

    def __post_init__(self) -> None:
        if self.level not in range(4):
            raise OptionsError(f"level={self.level}: levels are 0, 1, 2 and 3.")
        if self.level > 0:
            raise OptionsError(
                f"level={self.level} measures engines, and only the reference is built so far. "
                "Use level=0."
            )


def compile(source: Any, *example: Any, options: Options | None = None, **fields_: Any) -> Program:
    """Make a function or a graph ready to run.

    ``example`` holds arrays or Specs; without it, a function is read at its first call, and again
    for every new signature. With Specs that name dims, one graph serves every size.

    >>> import numpy as np
    >>> double = compile(lambda x: x + x)
    >>> double(np.ones(3, np.float32))
    array([2., 2., 2.], dtype=float32)
    """
    chosen = _options(options, fields_)

    def make(arguments: tuple[Any, ...]) -> Entry:
        return _entry(_read(source, arguments), chosen)

    name = source.name if isinstance(source, Graph) else getattr(source, "__name__", "program")
    if isinstance(source, Graph) or example:
        return Program(name, make, [make(example)])
    REGISTRY.frontend_for(source)
    return Program(name, make)


def trace(source: Any, *example: Any) -> Graph:
    """Turn a function into a graph.

    >>> print(trace(lambda x: x * 2, Spec(("n",), "float32")))
    graph lambda(%x: float32[n]) {
      %0 = constant float32[] {2.0}
      %1 = multiply(%x, %0) : float32[n]
      return %1 as output
    }
    """
    return _read(source, example).graph


def run(op: str, *arrays: Any, backend: str = FIRST_BACKEND, **attrs: Any) -> Any:
    """Run one op on arrays; a tuple when it has several outputs.

    >>> import numpy as np
    >>> run("reduce_sum", np.ones((2, 3), np.float32), axes=(1,))
    array([3., 3.], dtype=float32)
    """
    declared = get_op(op)
    graph, inputs = graph_of(declared, arrays, attrs)
    outputs = _built(backend, graph).run(inputs).wait()
    return tuple(outputs) if declared.is_multiple else outputs[0]


def _options(options: Options | None, given: Mapping[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    if unknown := sorted(set(given) - set(known)):
        raise OptionsError(
            f"No option is called {', '.join(unknown)}. There are {', '.join(known)}."
        )
    return replace(options or Options(), **given)


def _read(source: Any, example: tuple[Any, ...]) -> Reading:
    if isinstance(source, Graph):
        names = tuple(v.name or "" for v in source.inputs)
        arguments = Structure((Structure.LEAF,) * len(names), names)
        return Reading(source, arguments, _results(source))
    found = REGISTRY.frontend_for(source).convert(source, example, Limits())
    # Arguments are named after parameters, and a program is called with them in order.
    positional = Structure(tuple(found.arguments.tree.values()), found.arguments.names)
    return replace(found, arguments=positional)


def _results(graph: Graph) -> Structure:
    """One output is given alone, several as a tuple."""
    if len(graph.outputs) == 1:
        return Structure(Structure.LEAF, graph.output_names)
    return Structure((Structure.LEAF,) * len(graph.outputs), graph.output_names)


def _entry(reading: Reading, options: Options) -> Entry:
    verify(reading.graph)
    graph = run_pipeline(reading.graph).graph
    name = FIRST_BACKEND if options.backend == "auto" else options.backend
    return Entry(graph, _built(name, graph), reading.arguments, reading.results, name)


def _built(name: str, graph: Graph) -> Executable:
    backend = REGISTRY.backends.get(name)
    return build(backend, graph, first_device(backend))
