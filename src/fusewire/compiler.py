"""The recipe: read a source, rewrite its graph, plan it, and make a program of the plan.

``fw.compile`` and every command about a model go through ``Session``. Modules that only compiling
needs are imported where they are used, so that a warm start does not wait for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from fusewire.bundling import save
from fusewire.contract.frontend import Limits, Reading
from fusewire.errors import GraphError, SizesNeededError
from fusewire.ir.graph import Graph, HostValue
from fusewire.options import FALLBACK, OptionFields, Options, documented
from fusewire.plan.plan import Plan
from fusewire.program.entry import Details, Entry, Undecided, misfit
from fusewire.program.origin import Origin
from fusewire.program.program import Program
from fusewire.session.context import CompileContext, reference_target
from fusewire.session.model_source import ModelSource
from fusewire.session.warm_start import WarmStart
from fusewire.store.key import Key

if TYPE_CHECKING:
    from fusewire.background.job import FileSource
    from fusewire.contract.calling import Calling
    from fusewire.program.module_program import ModuleProgram
    from fusewire.registry import Registry
    from fusewire.session.decider import Decider
    from fusewire.session.sizes import SeenSizes
    from fusewire.show.why import Why


# None would hide the mistake of who gives it.
_NO_SOURCE: Any = object()


@overload
def compile(
    *,
    options: Options | None = None,
    registry: Registry | None = None,
    **fields_: Unpack[OptionFields],
) -> Callable[[Any], Program]: ...


@overload
def compile(
    source: Any,
    *example: Any,
    options: Options | None = None,
    registry: Registry | None = None,
    **fields_: Unpack[OptionFields],
) -> Program: ...


@documented
def compile(
    source: Any = _NO_SOURCE,
    *example: Any,
    options: Options | None = None,
    registry: Registry | None = None,
    **fields_: Unpack[OptionFields],
) -> Any:
    """Compile a function, a module, a graph or a model file into a program.

    Without a source it is a decorator: ``@fw.compile(backend="xla")``.

    ``example`` holds arrays or Specs; without it, a function is traced at its first call, and again
    for every new signature. With Specs that name dims, one graph serves every size. The program of
    a module of PyTorch takes and returns what the module does. With a ``registry``, its backends
    take the place of those of the process: tests and libraries keep theirs apart.

    >>> import numpy as np
    >>> double = compile(lambda x: x + x)
    >>> double(np.ones(3, np.float32))
    array([2., 2., 2.], dtype=float32)
    """
    session = Session(Options.of(options, fields_), registry)
    if source is _NO_SOURCE:
        return lambda function: compile(
            function, *example, options=session.options, registry=registry
        )
    again = compile_again if registry is None else compile_nowhere
    model = ModelSource(source)
    if (calling := model.calling()) is not None:
        module_program = session.module_program(calling, example)
        module_program.origin = Origin(source, example, session.options, again, save)
        return module_program
    program = session.program(model, example)
    program.origin = Origin(source, example, session.options, again, save)
    if callable(source):
        update_wrapper(program, source, updated=())
    return program


def compile_again(source: Any, example: tuple[Any, ...], options: Options) -> Program:
    """Compile what a pickled or forked program was made from; the cache makes it quick."""
    return compile(source, *example, options=options)


def compile_nowhere(source: Any, example: tuple[Any, ...], options: Options) -> Program:
    """Say that a program with a registry of its own is not made again in another process."""
    raise GraphError(
        "This program was compiled with a registry of its own, which no pickle or forked process "
        "has. Compile it there, with fw.compile(..., registry=...)."
    )


def load(path: str | os.PathLike[str], *, limits: Limits = Limits()) -> Graph:
    """Read a model file into a graph; dims that the file leaves open stay symbols.

    Raises FormatError, naming the node, if the file cannot be read, and BudgetError if it exceeds
    the limits.
    """
    return ModelSource(path, limits).read().graph


def save_onnx(
    source: Any,
    path: str | os.PathLike[str],
    example: Any = (),
    *,
    opset: int | None = None,
    inside_bytes: int | None = None,
) -> None:
    """Write a graph, a function or a module to an ONNX file.

    ``example`` has the arguments that a function or a module is read for: an array, a tensor or a
    Spec, or a tuple of them. A node that ONNX has no op for calls a local function. Weights of more
    than ``inside_bytes`` together go to a file beside it, with ``.data`` added to its name. Raises
    FormatError for what ONNX cannot hold, such as complex numbers.

    >>> import numpy as np
    >>> save_onnx(lambda x: np.exp(x).sum(), "sum.onnx", Spec(("n",), "float32"))
    >>> load("sum.onnx").output_names
    ('output',)
    """
    from fusewire.registry import REGISTRY

    arguments = example if isinstance(example, tuple) else (example,)
    graph = source if isinstance(source, Graph) else ModelSource(source).read(arguments).graph
    REGISTRY.frontends.get("onnx").save(graph, path, opset, inside_bytes)


def trace(source: Any, *example: Any) -> Graph:
    """Trace a function or a module into a graph.

    >>> print(trace(lambda x: x * 2, Spec(("n",), "float32")))
    graph lambda(%x: float32[n]) {
      %0 = constant float32[] {2.0}
      %1 = multiply(%x, %0) : float32[n]
      return %1 as output
    }
    """
    return ModelSource(source).read(example).graph


def run(op: str, *arrays: Any, backend: str = FALLBACK, **attrs: Any) -> Any:
    """Run one op on arrays; returns a tuple if the op has several outputs.

    >>> import numpy as np
    >>> run("reduce_sum", np.ones((2, 3), np.float32), axes=(1,))
    array([3., 3.], dtype=float32)
    """
    from fusewire.contract.region import build
    from fusewire.ops.interpret import graph_of
    from fusewire.ops.table import get_op

    declared = get_op(op)
    graph, inputs = graph_of(declared, arrays, attrs)
    if backend != FALLBACK:
        # An engine may crash over a single op, so it runs in a child first, as in any program.
        return compile(graph, backend=backend, fallback="error")(*inputs)
    fallback = reference_target()
    outputs = build(fallback.backend, graph, fallback.device).run(inputs)
    return tuple(outputs) if declared.is_multiple else outputs[0]


@dataclass(frozen=True)
class Session:
    """Compiles models with one set of options.

    A program has entries. An entry is recalled, or made by reading the model, rewriting its graph,
    and planning it on one target or deciding among several.
    """

    options: Options = field(default_factory=Options)
    registry: Registry | None = None

    @cached_property
    def context(self) -> CompileContext:
        """What every part of this session shares."""
        return CompileContext(self.options, own_registry=self.registry)

    @cached_property
    def warm_start(self) -> WarmStart:
        """Makes entries of what earlier processes saved."""
        return WarmStart(self.context)

    @cached_property
    def decider(self) -> Decider:
        """Makes entries of graphs."""
        from fusewire.session.decider import Decider

        return Decider(self.context)

    def program(self, model: ModelSource, example: tuple[Any, ...] = ()) -> Program:
        """Make a program; a model that declares its types is compiled at once."""
        maker = _EntryMaker(self, model)
        if isinstance(model.source, Graph) or example:
            return self._program(maker, maker.make(example))
        recalled = self.warm_start.entry(model, (), is_open=False)
        if recalled is not None:
            return self._program(maker, recalled)
        if not self.warm_start.is_known_to_need_sizes(model):
            if model.is_file:
                # A child starts, and imports the engine, while the file is read.
                self.context.start_engine()
            if model.needs_example:
                return self._program(maker)
            try:
                return self._program(maker, self._new_entry(model, (), is_open=False))
            except SizesNeededError:
                self.warm_start.record_need_for_sizes(model)
        # Read at the first call, which fixes the sizes that must be known.
        return self._program(_EntryMaker(self, model, is_open=True))

    def module_program(
        self, calling: Calling, example: tuple[Any, ...] = (), *, may_raise: bool = True
    ) -> ModuleProgram:
        """Make the program of a source that takes values of its own library.

        Without ``may_raise``, the source answers where no engine can, even if one was named.
        """
        from fusewire.program.module_program import CallPolicy, ModuleProgram

        options, is_recalled = self.options, self.options.level == "recall"
        is_named = options.backend != "auto" or self.context.registry.default != "auto"
        is_asked_for = is_named or options.device is not None or is_recalled
        policy = CallPolicy(
            waits=is_asked_for
            or self.context.level == 0
            or options.measures_first
            or options.isolate == "always",
            raises=(is_asked_for and may_raise) or options.fallback == "error",
            compares=not is_recalled,
        )
        program = ModuleProgram(calling, self._flat_program, policy)
        if example:
            program.prepare_example(example)
        return program

    def _flat_program(self, source: Any, example: tuple[Any, ...]) -> Program:
        return self.program(ModelSource(source), example)

    def _program(self, maker: _EntryMaker, *entries: Entry) -> Program:
        return Program(
            maker.model.name,
            maker.make,
            entries,
            parameters=maker.model.parameters(entries),
            casts=self.options.cast == "same_kind",
            make_apart=maker.make_apart,
            compares=self.options.level != "recall",
        )

    def entry(
        self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool = False
    ) -> Entry:
        """Recall the entry of a model for such arguments, or make a new one."""
        recalled = self.warm_start.entry(model, example, is_open=is_open)
        return recalled or self._new_entry(model, example, is_open=is_open)

    def _new_entry(self, model: ModelSource, example: tuple[Any, ...], *, is_open: bool) -> Entry:
        start = time.monotonic()
        try:
            reading = model.read(example, is_open=is_open)
        finally:
            # The next reading may be long after this, and must be of the file as it is then.
            model.release()
        self.context.records.model = model.name
        key = self.warm_start.key(reading.digest, example, is_open)
        file = _file_of(model, reading, example, is_open)
        return self.entry_of(reading, example, key, file, start)

    def entry_of(
        self,
        reading: Reading,
        example: tuple[Any, ...],
        key: Key | None = None,
        file: FileSource | None = None,
        start: float | None = None,
    ) -> Entry:
        """Make the entry of what was read, to be decided at the first call if need be."""
        graph = self.rewrite(reading.graph)
        self._check_samples(graph)
        if self.context.level == 0:
            return self.decider.entries.planned_entry(reading, graph, key)
        from fusewire.background.first import FirstCall

        decide = FirstCall(self.decider, reading, graph, key, file)
        if example and all(isinstance(x, np.ndarray | np.generic) for x in example):
            return decide.entry(example, start)
        return Entry(
            graph.inputs,
            Undecided(),
            reading.arguments,
            reading.results,
            "auto",
            len(graph.nodes),
            _LevelZeroDetails(self, reading, graph),
            decide.entry,
        )

    def _check_samples(self, graph: Graph) -> None:
        """Raise OptionsError for samples that do not fit; later calls may have other sizes."""
        calibration = self.options.calibrate
        if calibration is None or not calibration.is_at_hand:
            return
        if not (self._sampled and calibration.has_other_sizes(graph.inputs)):
            calibration.values(graph.inputs)
            self._sampled.add(graph.name)

    @cached_property
    def _sampled(self) -> set[str]:
        """The graphs that samples fit."""
        return set()

    def interpret(self, graph: Graph, inputs: Sequence[HostValue]) -> list[Any]:
        """Run a graph on the reference."""
        from fusewire.contract.region import build
        from fusewire.ops.limits import limited

        target = reference_target()
        with limited(self.options.run_limits):
            return build(target.backend, graph, target.device).run(inputs)

    def rewrite(self, graph: Graph) -> Graph:
        """Rewrite a verified graph into its canonical form."""
        from fusewire.rewrite.pipeline import run_pipeline

        return run_pipeline(graph).graph


@dataclass(frozen=True, eq=False)
class _EntryMaker:
    """Makes the entries of one program, and learns from calls which sizes vary."""

    session: Session
    model: ModelSource
    is_open: bool = False

    @cached_property
    def _seen(self) -> SeenSizes:
        from fusewire.session.sizes import SeenSizes

        return SeenSizes()

    def make(self, arguments: tuple[Any, ...]) -> Entry:
        """Make the entry for arguments that fit no other entry."""
        if self.model.is_file or not self.model.needs_example:
            entry = self.session.entry(self.model, arguments, is_open=self.is_open)
            is_misfit = bool(arguments) and misfit(entry, arguments, casts=True) is not None
            return (self.make_apart(arguments) if is_misfit else None) or entry
        learned = self._with_open_sizes(arguments)
        if learned is not None:
            return learned
        entry = self.session.entry(self.model, arguments)
        # Sizes at which it raised are nothing to learn from.
        self._seen.note(arguments)
        return entry

    def make_apart(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Make the entry for arguments that misfit names of sizes in a file; None if they fit."""
        from fusewire.session.learned_entries import read_names_apart

        reading = read_names_apart(self.model, arguments)
        return None if reading is None else self.session.entry_of(reading, arguments)

    def _with_open_sizes(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Make an entry for sizes like these, from the second shape of a function on."""
        opening = self._seen.opening(arguments)
        if opening is None:
            return None
        from fusewire.session.learned_entries import open_entry
        from fusewire.session.sizes import read_opened

        session = self.session
        opened = read_opened(self.model, opening, arguments, session.rewrite, session.interpret)
        if opened is None:
            self._seen.refuse(arguments)
            return None
        return open_entry(session.decider, opened, opening, arguments)


@dataclass(frozen=True, eq=False)
class _LevelZeroDetails:
    """The plan of level 0, for a program that is asked for its plan before the first call."""

    session: Session
    reading: Reading
    graph: Graph

    @cached_property
    def _details(self) -> Details:
        return self.session.decider.entries.planned_entry(self.reading, self.graph, None).details

    @property
    def plan(self) -> Plan:
        return self._details.plan

    def why(self) -> Why:
        return self._details.why()


def _file_of(
    model: ModelSource, reading: Reading, example: tuple[Any, ...], is_open: bool
) -> FileSource | None:
    """Say how another process reads the same graph from the file; None if it cannot."""
    from fusewire.background.job import FileSource

    is_plain = all(isinstance(x, np.ndarray | np.generic) for x in example)
    if not model.is_file or reading.digest is None or not is_plain:
        return None
    path = Path(os.fsdecode(model.source)).absolute()
    return FileSource(str(path), reading.digest, bool(example), is_open)
