"""The recipe: source, graph, rewritten graph, executable, program."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fusewire.contract.frontend import Limits, Reading, Structure
from fusewire.errors import SizesNeededError
from fusewire.ir.graph import Graph
from fusewire.options import FALLBACK, Options
from fusewire.records.recall import Recall
from fusewire.runtime.entry import Entry
from fusewire.runtime.program import Program

if TYPE_CHECKING:
    from fusewire.entries import Recipe

# What compiles is imported when something is compiled: a file that was compiled before does
# without, and should not wait for it.


def compile(source: Any, *example: Any, options: Options | None = None, **fields_: Any) -> Program:
    """Make a function, a graph or a model file ready to run.

    ``example`` holds arrays or Specs; without it, a function is read at its first call, and again
    for every new signature. With Specs that name dims, one graph serves every size.

    >>> import numpy as np
    >>> double = compile(lambda x: x + x)
    >>> double(np.ones(3, np.float32))
    array([2., 2., 2.], dtype=float32)
    """
    chosen = Options.of(options, fields_)
    name = source.name if isinstance(source, Graph) else getattr(source, "__name__", "program")

    planner = partial(_recipe, chosen)

    def fresh(arguments: tuple[Any, ...], is_open: bool = False) -> Entry:
        recipe, reading = planner(), _read(source, arguments, is_open)
        return recipe.entry(reading, arguments, recipe.key(reading, arguments, is_open))

    def make(arguments: tuple[Any, ...], is_open: bool = False) -> Entry:
        return recall.entry(arguments, is_open) or fresh(arguments, is_open)

    recall = Recall(source, chosen, partial(_read, source), planner)
    if isinstance(source, Graph) or example:
        return Program(name, make, [make(example)])
    if (found := recall.entry(())) is not None:
        return Program(name, make, [found])
    if not recall.needs_sizes:
        from fusewire.registry import REGISTRY

        if REGISTRY.frontend_for(source).needs_example:
            return Program(name, make)
        try:
            return Program(name, make, [fresh(())])
        except SizesNeededError:
            recall.note_sizes()
    # Read at the first call, with the sizes that it cannot do without.
    return Program(name, partial(make, is_open=True))


def _recipe(options: Options) -> Recipe:
    from fusewire.entries import Recipe

    return Recipe(options)


def load(path: str | os.PathLike[str], *, limits: Limits = Limits()) -> Graph:
    """Read a model file into a graph; dims that the file leaves open stay symbols.

    Raises FormatError for what cannot be read, naming the node, BudgetError past the limits.
    """
    from fusewire.registry import REGISTRY

    return REGISTRY.frontend_for(path).read(path, (), limits)


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


def run(op: str, *arrays: Any, backend: str = "reference", **attrs: Any) -> Any:
    """Run one op on arrays; a tuple when it has several outputs.

    >>> import numpy as np
    >>> run("reduce_sum", np.ones((2, 3), np.float32), axes=(1,))
    array([3., 3.], dtype=float32)
    """
    from fusewire.contract.region import build
    from fusewire.entries import reference
    from fusewire.ops.interpret import graph_of
    from fusewire.ops.table import get_op

    declared = get_op(op)
    graph, inputs = graph_of(declared, arrays, attrs)
    if backend != FALLBACK:
        # As careful as with any program: an engine may crash over one op.
        return compile(graph, backend=backend, fallback="error")(*inputs)
    home = reference()
    outputs = build(home.backend, graph, home.device).run(inputs).wait()
    return tuple(outputs) if declared.is_multiple else outputs[0]


def _read(source: Any, example: tuple[Any, ...], is_open: bool = False) -> Reading:
    if isinstance(source, Graph):
        names = tuple(v.name or "" for v in source.inputs)
        arguments = Structure((Structure.LEAF,) * len(names), names)
        return Reading(source, arguments, Structure.of_results(source.output_names))
    from fusewire.registry import REGISTRY

    frontend = REGISTRY.frontend_for(source)
    found = frontend.convert(source, example, Limits(), is_open=is_open)
    # Arguments are named after parameters, and a program is called with them in order.
    positional = Structure(tuple(found.arguments.tree.values()), found.arguments.names)
    return replace(found, arguments=positional)
