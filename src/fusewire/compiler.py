"""The recipe: source, graph, rewritten graph, executable, program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fusewire.backend import Config, Fact
from fusewire.errors import (
    FallbackWarning,
    OptionsError,
    RefusedError,
    SizesNeededError,
    UnavailableError,
)
from fusewire.frontend import Limits, Reading, Structure
from fusewire.ir.graph import Graph, Node
from fusewire.ops.interpret import graph_of
from fusewire.ops.table import get_op, verify
from fusewire.placement.claims import Home
from fusewire.placement.contact import Fallback, Maker
from fusewire.placement.explain import Explanation
from fusewire.placement.planner import Planned, make_plan
from fusewire.placement.select import FirstWith, ForDevice, Policy, Search, choose
from fusewire.process.child import ChildLimits
from fusewire.region import build, first_device
from fusewire.registry import REGISTRY
from fusewire.rewrite.pipeline import run_pipeline
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import Plan
from fusewire.runtime.program import Entry, Program

# Runs every graph, and is always there.
FALLBACK = "reference"


LEVELS = {
    1: "measures engines",
    2: "splits a graph over engines",
    3: "tunes kernels",
}


# What the numbers among the options count, and the least of each that means something.
_LEAST = (
    ("deadline", 0.001, "seconds"),
    ("memory_limit", 1, "bytes"),
    ("max_crossings", 0, "a number of tensors"),
    ("threads", 1, "a number of threads"),
)


@dataclass(frozen=True)
class Options:
    """How to compile.

    ``backend`` is a name, "auto", or a policy of placement.select. ``fallback`` says what becomes
    of nodes that it refuses: "error" raises, "warn" and "allow" run them on the reference, unless
    more than ``max_crossings`` tensors would change hands: then all of it runs there.
    An engine meets each region first in a child process, unless ``isolate`` is off; what crashes
    there, takes more than ``deadline`` seconds, or more memory than ``memory_limit`` bytes, counts
    as refused. ``backend_config`` holds options of the backend's own.
    """

    backend: Policy = "auto"
    device: str | None = None
    level: int = 0
    fallback: Fallback = "warn"
    max_crossings: int | None = None
    threads: int | None = None
    memory_limit: int | None = None
    deadline: float = 60.0
    isolate: bool = True
    deterministic: bool = False
    backend_config: Mapping[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.level not in (0, *LEVELS):
            raise OptionsError(f"level={self.level}: levels are 0, 1, 2 and 3.")
        if self.level in LEVELS:
            raise OptionsError(
                f"level={self.level} {LEVELS[self.level]}, and that is not built yet. Use level=0."
            )
        if self.fallback not in ("error", "warn", "allow"):
            raise OptionsError(f"fallback={self.fallback!r}: give 'error', 'warn' or 'allow'.")
        if not (isinstance(self.backend, str | ForDevice | FirstWith) or callable(self.backend)):
            raise OptionsError(f"backend={self.backend!r}: give a name, 'auto' or a policy.")
        for name, least, unit in _LEAST:
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value >= least):
                raise OptionsError(f"{name}={value!r}: give {unit}, at least {least}.")

    @property
    def limits(self) -> ChildLimits:
        """What first contact may take."""
        return ChildLimits(self.deadline, self.memory_limit)

    @property
    def config(self) -> Config:
        """What of this a backend is told."""
        return Config(self.threads, self.memory_limit, self.deterministic, self.backend_config)


def compile(source: Any, *example: Any, options: Options | None = None, **fields_: Any) -> Program:
    """Make a function, a graph or a model file ready to run.

    ``example`` holds arrays or Specs; without it, a function is read at its first call, and again
    for every new signature. With Specs that name dims, one graph serves every size.

    >>> import numpy as np
    >>> double = compile(lambda x: x + x)
    >>> double(np.ones(3, np.float32))
    array([2., 2., 2.], dtype=float32)
    """
    chosen = _options(options, fields_)

    def make(arguments: tuple[Any, ...], is_open: bool = False) -> Entry:
        return _entry(_read(source, arguments, is_open), chosen)

    name = source.name if isinstance(source, Graph) else getattr(source, "__name__", "program")
    if isinstance(source, Graph) or example:
        return Program(name, make, [make(example)])
    if REGISTRY.frontend_for(source).needs_example:
        return Program(name, make)
    try:
        return Program(name, make, [make(())])
    except SizesNeededError:
        # Read at the first call, with the sizes that it cannot do without.
        return Program(name, lambda arguments: make(arguments, is_open=True))


def load(path: str | os.PathLike[str], *, limits: Limits = Limits()) -> Graph:
    """Read a model file into a graph; dims that the file leaves open stay symbols.

    Raises FormatError for what cannot be read, naming the node, BudgetError past the limits.
    """
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


def run(op: str, *arrays: Any, backend: str = FALLBACK, **attrs: Any) -> Any:
    """Run one op on arrays; a tuple when it has several outputs.

    >>> import numpy as np
    >>> run("reduce_sum", np.ones((2, 3), np.float32), axes=(1,))
    array([3., 3.], dtype=float32)
    """
    declared = get_op(op)
    graph, inputs = graph_of(declared, arrays, attrs)
    if backend != FALLBACK:
        # As careful as with any program: an engine may crash over one op.
        return compile(graph, backend=backend, fallback="error")(*inputs)
    runs = REGISTRY.backends.get(FALLBACK)
    outputs = build(runs, graph, first_device(runs)).run(inputs).wait()
    return tuple(outputs) if declared.is_multiple else outputs[0]


def _options(options: Options | None, given: Mapping[str, Any]) -> Options:
    known = [field.name for field in fields(Options)]
    if unknown := sorted(set(given) - set(known)):
        raise OptionsError(
            f"No option is called {', '.join(unknown)}. There are {', '.join(known)}."
        )
    return replace(options or Options(), **given)


def _read(source: Any, example: tuple[Any, ...], is_open: bool = False) -> Reading:
    if isinstance(source, Graph):
        names = tuple(v.name or "" for v in source.inputs)
        arguments = Structure((Structure.LEAF,) * len(names), names)
        return Reading(source, arguments, _results(source))
    frontend = REGISTRY.frontend_for(source)
    found = frontend.convert(source, example, Limits(), is_open=is_open)
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
    notes: list[str] = []
    spare = _reference()
    home = _home(graph, options, notes)
    homes = [home] if options.fallback == "error" else [home, spare]
    planned = make_plan(graph, homes, spare)
    if options.max_crossings is not None and planned.plan.crossings() > options.max_crossings:
        planned = _uncrossed(graph, planned, home, options, notes)
    elif options.fallback == "warn" and (left := planned.left_over()):
        warnings.warn(_left_over(home, left, planned.plan), FallbackWarning, stacklevel=5)

    maker = Maker(home, spare, options.config, options.fallback)
    runner = PlanRunner(
        planned.plan, maker.make, maker.rescue, lambda body: make_plan(body, homes, spare).plan
    )
    explain = Explanation(planned, maker, tuple(notes)).why
    return Entry(
        graph, runner, reading.arguments, reading.results, home.name, planned.plan, explain
    )


def _home(graph: Graph, options: Options, notes: list[str]) -> Home:
    """Find the home that is asked for; the reference if it has no device and that is allowed."""
    search = Search(REGISTRY, options.isolate, options.limits)
    try:
        return choose(options.backend, options.device, graph, search)
    except UnavailableError as error:
        if options.fallback == "error":
            raise
        notes.append(f"{error} All of it runs on {FALLBACK}.")
        if options.fallback == "warn":
            warnings.warn(notes[-1], FallbackWarning, stacklevel=6)
        return _reference()


def _reference() -> Home:
    backend = REGISTRY.backends.get(FALLBACK)
    return Home(backend, first_device(backend))


def _left_over(home: Home, left: Mapping[Node, str], plan: Plan) -> str:
    node, reason = next(iter(left.items()))
    return (
        f"{len(left)} of {len(plan.graph.nodes)} nodes do not run on {home.name} and run on "
        f"{FALLBACK}, in {len(plan.steps)} regions. The first is {node!r}: {reason} "
        "Use fallback='allow' to accept this, or 'error' to refuse it."
    )


def _uncrossed(
    graph: Graph, planned: Planned, home: Home, options: Options, notes: list[str]
) -> Planned:
    """Run all of it on the reference, or raise: the plan would change hands too often."""
    count = planned.plan.crossings()
    said = f"{home.name} would hand over {count} tensors, and {options.max_crossings} are allowed."
    if options.fallback == "error":
        raise RefusedError(f"{said} Raise max_crossings, or choose another backend.")
    notes.append(f"{said} All of it runs on {FALLBACK}.")
    if options.fallback == "warn":
        warnings.warn(notes[-1], FallbackWarning, stacklevel=6)
    return make_plan(graph, [_reference()])
