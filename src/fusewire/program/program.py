"""The program that the user calls. It runs entries that others made, and decides nothing itself."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy import ndarray

from fusewire.contract.buffer import Buffer, StateBuffer, counted_traffic
from fusewire.contract.frontend import Structure, plain_key
from fusewire.errors import GraphError, ShapeMismatchError
from fusewire.events import EVENTS
from fusewire.ir.dims import Symbol
from fusewire.ir.graph import Graph
from fusewire.ir.live import bytes_at_peak
from fusewire.ir.types import TensorType, Type
from fusewire.plan.observed import ObservedCall
from fusewire.plan.plan import Plan
from fusewire.program.arguments import as_array, plain
from fusewire.program.buffer_calls import WORDS, directed, state_updates
from fusewire.program.entry import Details, Entry, Restore, Run, Serving, State, misfit
from fusewire.program.origin import PROGRAMS, Origin
from fusewire.program.parameters import Parameters

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fusewire.show.plan_view import PlanView
    from fusewire.show.why import NodeWhy, Why

# Shape and dtype of every array argument, and the rest of the arguments as they are.
Signature = tuple[Any, ...]
# The most signatures that a program keeps, each with its entry.
_KEPT = 4096


@dataclass(frozen=True)
class Result:
    """The outputs of one run, as a call returns them and by name, and its cost.

    ``bytes`` are those of the outputs; ``host_bytes`` were copied between the host and devices.
    ``peak`` counts what ``peak_bytes`` says when somebody asks.
    """

    outputs: Any
    by_name: Mapping[str, Any]
    seconds: float
    bytes: int
    metadata: dict[str, Any] = field(default_factory=dict)
    host_bytes: int = 0
    peak: Callable[[], int] = field(default=int, repr=False, compare=False)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that values of the graph take at once, without inputs and weights.

        It is what running it op by op needs. Engines that fuse need less, and their arenas may
        keep more.
        """
        return self.peak()


@dataclass(frozen=True)
class ProgramPort:
    """An input or output of a program; a size that is not fixed is a name or an expression."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def _port(name: str | None, type_: Type) -> ProgramPort:
    if not isinstance(type_, TensorType):
        return ProgramPort(name or "", str(type_), ())
    dims = tuple(dim if isinstance(dim, int) else str(dim) for dim in type_.shape)
    return ProgramPort(name or "", type_.dtype.name, dims)


class Program:
    """A compiled source; called with arrays, it returns arrays, and with buffers, buffers.

    An entry is made for each input signature when it is first seen. Safe to call from several
    threads. ``make_apart`` makes one for arguments in which one name of a size stands for several;
    it returns None if they misfit for another reason. Without ``compares``, it is settled from the
    start: its plans are recalled.
    """

    # What it was compiled from, and what replaced it in a forked child.
    origin: Origin | None = None
    _is_forked = False
    _remade: Program | None = None
    # Cancels submitted calls that have not begun, once there were some.
    _cancel_submitted: Callable[[object], None] | None = None
    # Called when calls of some signature run another plan than before.
    changed: Callable[[], None] | None = None

    def __init__(
        self,
        name: str,
        make: Callable[[tuple[Any, ...]], Entry],
        entries: Sequence[Entry] = (),
        *,
        parameters: Parameters,
        casts: bool = False,
        make_apart: Callable[[tuple[Any, ...]], Entry | None] = lambda arguments: None,
        compares: bool = True,
    ) -> None:
        self.name = name
        self._make = make
        self._make_apart = make_apart
        self._parameters = parameters
        self._casts = casts
        self._compares = compares
        self._initial = list(entries)
        # What ends the searches of entries that serve first, if nobody has the program any more.
        self._searches: dict[Serving, weakref.finalize[[], Program]] = {}
        for entry in entries:
            self._follow(entry)
        self._entries: dict[Signature, Entry] = {}
        # What a call needs of the entries.
        self._calls: dict[Signature, tuple[Run, Restore]] = {}
        self._lock = threading.Lock()
        self._closed = False
        PROGRAMS.add(self)

    @property
    def options(self) -> Any:
        """The options that it was compiled with, as ``Options``; None if it was not compiled."""
        return self.origin and self.origin.options

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run on arrays, by position or by name; results are fresh arrays of the caller's.

        The inputs of a model can also be given as one mapping from their names. If an argument is a
        Buffer, the results are buffers, where the engine left them. Unless the program has inputs
        of these names, ``outputs="device"`` asks for that, ``out`` is what the results are written
        to, and ``donate`` names inputs whose buffers the call may have.
        """
        given = arguments
        if named:
            if not WORDS.isdisjoint(named):
                return self.run(*arguments, **named).outputs
            arguments = self._parameters.bind(arguments, named)
        if len(arguments) == 1 and type(x := arguments[0]) is ndarray:
            # Most calls of tiny programs: a loop over one argument takes longer than this.
            found = self._calls.get((x.shape, x.dtype))
        else:
            found = self._calls.get(signature(arguments))
        if found is None:
            if any(map(_is_traced, arguments)):
                # The caller is being traced, and this is a part of it.
                from fusewire.program.inlining import inlined

                return inlined(self, given, named)
            arguments = self._parameters.bind(arguments, {})
            entry = self.entry(arguments)
            found = self._calls.get(signature(arguments)) or (entry.run, entry.restore)
        run, restore = found
        return restore(run(arguments))

    def __get__(self, instance: object, owner: type | None = None) -> Program:
        """Bind a compiled method: every object has a program, in which its attributes are known."""
        if instance is None:
            return self
        from fusewire.program.methods import bound

        return bound(self, instance)

    def run(self, *arguments: Any, **named: Any) -> Result:
        """Run, and report the outputs by name too, the time, the bytes, and what ran."""
        directions, named = directed(named, self._parameters)
        arguments = self._parameters.bind(arguments, named)
        entry = self.entry(arguments)
        run = entry.run if directions is None else partial(directions.run, entry)
        run = _observed(run, self.name, entry)
        with counted_traffic() as traffic:
            start = time.perf_counter()
            outputs = run(arguments)
            for output in outputs:
                if isinstance(output, Buffer):
                    # A device goes on after the call.
                    output.wait()
            seconds = time.perf_counter() - start
        size = sum(x.nbytes for x in outputs if isinstance(x, np.ndarray | Buffer))
        about = {"backend": entry.backend, "nodes": entry.nodes}
        by_name = dict(zip(entry.results.names, outputs, strict=True))
        result = entry.restore(outputs)
        sizes = entry.sizes(arguments) if entry.is_open else {}
        peak = partial(_peak_bytes, entry.details, sizes)
        return Result(result, by_name, seconds, size, about, traffic.total, peak)

    def submit(self, *arguments: Any, **named: Any) -> Future[Any]:
        """Have a thread make a call; returns a future at once, which gets the answer or the error.

        The calls of a device run in the order in which they were submitted, also those of other
        programs. One that has not begun can be cancelled. If 1,024 calls wait, this waits too. The
        first call of a signature is compiled here. Leave the arrays alone until the future is done.
        """
        from fusewire.program.submitting import QUEUES

        _, inputs = directed(named, self._parameters)
        entry = self.entry(self._parameters.bind(arguments, inputs))
        self._cancel_submitted = QUEUES.cancel
        return QUEUES.of(entry.device).submit(self, self, arguments, named)

    async def acall(self, *arguments: Any, **named: Any) -> Any:
        """Call it from a coroutine: as ``submit``, and the event loop goes on meanwhile."""
        from fusewire.program.submitting import awaited

        return await awaited(self, arguments, named)

    def submits_at_once(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Tell whether to submit such a call takes no time: nothing is made, and there is room."""
        from fusewire.program.submitting import QUEUES

        _, inputs = directed(named, self._parameters)
        entry = self._entries.get(signature(self._parameters.bind(arguments, inputs)))
        return entry is not None and not QUEUES.of(entry.device).is_full

    def entry(self, arguments: tuple[Any, ...]) -> Entry:
        """Find or make the entry for such arguments."""
        self._check_open()
        if self._is_forked:
            self._remake()
        key = signature(arguments)
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:
                # Somebody may have closed it while this call waited.
                self._check_open()
                arrays = _with_arrays(arguments)
                with EVENTS.span("prepare", self.name):
                    entry = self._known(key, arrays) or self._fitting(arrays) or self._make(arrays)
                    if entry.decide is not None:
                        entry = self._decided(entry, entry.decide(arrays))
                self._follow(entry)
                entry = _fitted(entry, entry.arguments.flatten(arguments))
                while len(self._entries) >= _KEPT:
                    self._evict()
                self._put(key, entry)
        return entry

    def _known(self, key: Signature, arrays: tuple[Any, ...]) -> Entry | None:
        """Find the entry of a signature, or of arrays with the elements of its buffers."""
        return self._entries.get(key) or self._entries.get(signature(arrays))

    @property
    def is_busy(self) -> bool:
        """Whether some call makes an entry, which may take long."""
        return self._lock.locked()

    def is_prepared(self, arguments: tuple[Any, ...]) -> bool:
        """Tell whether a call with such arrays would make nothing, and wait for nobody."""
        if signature(arguments) in self._entries:
            return True
        if self.is_busy:
            return False
        entries = [*self._initial, *dict.fromkeys(self._entries.values())]
        return any(
            entry.decide is None
            and entry.is_open
            and misfit(entry, arguments, self._casts) is None
            and (entry.learned is None or entry.learned.is_near(entry.sizes(arguments)))
            for entry in entries
        )

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[Entry, Run]:
        """Find or make the entry for such arguments; returns what its calls run now, too."""
        entry = self.entry(arguments)
        run, _ = self._calls.get(signature(arguments)) or (entry.run, entry.restore)
        return entry, run

    def _check_open(self) -> None:
        if self._closed:
            raise GraphError(f"The program {self.name} is closed. Compile it again.")

    def _put(self, key: Signature, entry: Entry) -> None:
        """Have calls of a signature run an entry, as soon as it is ready for their sizes."""
        self._entries[key] = entry
        run, learned = entry.run, entry.learned
        if learned is not None and learned.interim is not None and entry.needs_sizes:
            from fusewire.program.warming import WarmingRun

            run = WarmingRun(entry, learned.interim, partial(_ready, weakref.ref(self), key, entry))
        self._calls[key] = _observed(run, self.name, entry), entry.restore
        if self.changed is not None:
            self.changed()

    def observe(self, timeout: float = -1) -> bool:
        """Have calls be noted if a profile is on, and no longer if none is.

        Returns False if it was making an entry for ``timeout`` seconds; -1 waits for as long as
        that takes.
        """
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            for key, (run, restore) in list(self._calls.items()):
                entry = self._entries.get(key)
                if entry is not None:
                    self._calls[key] = _observed(run, self.name, entry), restore
            if self.changed is not None:
                self.changed()
        finally:
            self._lock.release()
        return True

    def _decided(self, entry: Entry, decided: Entry) -> Entry:
        """Replace an entry that was undecided."""
        # In place: after a fork, two programs share the list.
        self._initial[:] = [decided if initial is entry else initial for initial in self._initial]
        entry.runner.close()
        return decided

    def _follow(self, entry: Entry) -> None:
        """Have an entry that serves first be replaced once its search has settled."""
        if entry.serving is not None and not entry.serving.is_attached:
            entry.serving.attach(self._swap)
            self._searches[entry.serving] = weakref.finalize(self, entry.serving.cancel)
            self._searches[entry.serving].atexit = False

    def _swap(self, serving: Serving, settled: Entry) -> None:
        """Replace what the next calls run; calls that are running keep what they run."""
        with self._lock:
            # It would keep the first plan alive.
            if (search := self._searches.pop(serving, None)) is not None:
                search.detach()
            if self._closed:
                settled.runner.close()
                return
            self._follow(settled)
            # In place: after a fork, two programs share the list.
            self._initial[:] = [settled if x.serving is serving else x for x in self._initial]
            for key, entry in self._entries.items():
                if entry.serving is serving:
                    self._put(key, _as_before(settled, entry))

    @property
    def state(self) -> State:
        """How far the program is: "serving-first", "comparing" or "settled".

        Until it has been called, and until engines are compared, it is "serving-first"; it stays so
        if the chosen plan is beaten in its own table, as ``why()`` then says first. A settled
        program keeps its plan. With ``level="recall"`` it is always "settled": nothing is compared.
        """
        if not self._compares:
            return "settled"
        entries = self.all_entries()
        states = {entry.serving.state for entry in entries if entry.serving is not None}
        if "comparing" in states:
            return "comparing"
        is_open = not entries or any(entry.decide is not None for entry in entries)
        return "serving-first" if is_open or "serving-first" in states else "settled"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the program is settled; returns whether it is.

        Waits for what has been called so far, at most ``timeout`` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for entry in self.all_entries():
            if entry.serving is not None:
                left = None if end is None else max(end - time.monotonic(), 0.0)
                entry.serving.wait(left)
        return self.state == "settled"

    def _evict(self) -> None:
        """Forget the oldest signature, and close its runner unless another entry uses it.

        A running call keeps its executables until it ends.
        """
        key = next(iter(self._entries))
        del self._calls[key]
        runner = self._entries.pop(key).runner
        if all(entry.runner is not runner for entry in (*self._initial, *self._entries.values())):
            runner.close()

    def _fitting(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Find an entry that these arguments fit; of initial entries, one must fit."""
        made = [entry for entry in dict.fromkeys(self._entries.values()) if entry.is_open]
        problems = [(entry, misfit(entry, arguments, self._casts)) for entry in self._initial]
        problems += [(entry, misfit(entry, arguments, self._casts)) for entry in made]
        fitting = [entry for entry, problem in problems if problem is None]
        for entry in fitting:
            if entry.learned is None or entry.learned.is_near(entry.sizes(arguments)):
                return entry
        if fitting and fitting[0].learned is not None:
            return fitting[0].learned.decide(arguments)
        if not self._initial:
            return None
        if (apart := self._make_apart(arguments)) is not None:
            return apart
        said = (problem or "" for entry, problem in problems if entry in self._initial)
        raise ShapeMismatchError(" ".join(dict.fromkeys(said)))

    def all_entries(self) -> list[Entry]:
        """List the entries, each once."""
        entries = [*self._initial, *self._entries.values()]
        return list({entry.runner: entry for entry in entries}.values())

    def bound(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Put arguments in the order of the inputs; ShapeMismatchError if they do not fit."""
        return self._parameters.bind(arguments, named)

    @property
    def inputs(self) -> tuple[ProgramPort, ...]:
        """Name, dtype and shape of every input; for the latest signature if there are several."""
        return tuple(_port(value.name, value.type) for value in self._latest().inputs)

    @property
    def outputs(self) -> tuple[ProgramPort, ...]:
        """Name, dtype and shape of every output; for the latest signature if there are several."""
        entry = self._latest()
        types = [value.type for value in entry.graph.outputs]
        return tuple(map(_port, entry.results.names, types))

    @property
    def graph(self) -> Graph:
        """The graph; that of the latest signature if there are several."""
        return self._latest().graph

    def _latest(self) -> Entry:
        if entries := [*self._initial, *self._entries.values()]:
            return entries[-1]
        raise GraphError(
            f"The program {self.name} has no graph yet: it has not been called. "
            "Call it, or give example arrays or Specs to fw.compile."
        )

    @property
    def plan(self) -> Plan:
        """Which region runs where; for the latest signature if there are several."""
        return self._latest().details.plan

    @overload
    def why(self) -> Why: ...

    @overload
    def why(self, node: int | str) -> NodeWhy: ...

    def why(self, node: int | str | None = None) -> Why | NodeWhy:
        """Explain why the program, or one node of ``plan.graph`` by its place, runs as it does.

        Explains the latest signature if there are several; regions that did not run yet have no
        contact. The place of a node in a body is that of the node around it, the body, and its
        own: "4.then.0".
        """
        why = self._latest().details.why()
        return why if node is None else why.node(node)

    def explain(self, *arguments: Any, **named: Any) -> PlanView:
        """Return the plan in a form to look at: a page in notebooks, and files by ``save``.

        With arguments, it explains their signature, and runs them some times for the timeline.
        """
        from fusewire.program.timeline import measure
        from fusewire.show.plan_view import PlanView

        if not arguments and not named:
            return PlanView(self.name, self.why())
        bound = self._parameters.bind(arguments, named)
        entry = self.entry(bound)
        # The runs come first: they build regions that have not been run.
        timeline = measure(entry, bound)
        return PlanView(self.name, entry.details.why(), timeline)

    def to_torch(self) -> Any:
        """Return a torch.nn.Module that runs this program: tensors in, tensors out, no copies.

        It has no parameters and computes no gradients.
        """
        from fusewire.registry import REGISTRY

        return REGISTRY.frontends.get("torch").wrapped(self, self.name, takes_arrays=True)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        weights: bool = False,
        key: str | os.PathLike[str] | None = None,
        generation: int = 0,
        expires: int | None = None,
        release: str | None = None,
    ) -> tuple[str, ...]:
        """Write it to a bundle, which ``fw.open`` makes a program of, here or elsewhere.

        Call it before: the plans of all signatures so far are saved. Without ``weights``, weights
        that artifacts do not hold are read from the model file. ``key`` is the private key to sign
        with; unsigned, the bundle is only data, and is compiled again where it is opened. Readers
        refuse it from ``expires`` on, in seconds since 1970, and if they have seen a higher
        ``generation`` of this program, or, if they ask for a release of this name, of that
        ``release``. Returns what those who open it should know.
        """
        origin = self.origin
        if origin is None or origin.save is None:
            raise GraphError(f"The program {self.name} was not made by fw.compile.")
        how = {
            "weights": weights,
            "key": key,
            "generation": generation,
            "expires": expires,
            "release": release,
        }
        return origin.save(self, path, origin.options, origin.source, how)

    @property
    def signatures(self) -> list[str]:
        """The input types of every entry so far."""
        return [", ".join(str(v.type) for v in entry.inputs) for entry in self.all_entries()]

    def __repr__(self) -> str:
        entries = self.all_entries()
        if not entries:
            return f"<Program {self.name}: not called yet>"
        latest = entries[-1]
        takes = ", ".join(map(str, self.inputs))
        return f"<Program {self.name}({takes}) on {latest.backend}, {latest.nodes} nodes>"

    def __str__(self) -> str:
        from fusewire.program.description import program_text

        return program_text(self)

    def _repr_html_(self) -> str:
        """Show inputs, outputs and where it runs in a notebook."""
        from fusewire.program.description import program_html

        return program_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name of the source and the options; a copy is compiled again."""
        if self.origin is None:
            raise TypeError(
                f"The program {self.name} cannot be pickled or copied: it was not made by "
                "fw.compile. Compile the model in each process."
            )
        return self.origin.reduced(self, self.name)

    def abandon(self) -> Any:
        """Let go of all engines after a fork, and return them: closing them could hang."""
        engines = self._initial, self._entries, self._calls, self._lock
        self._initial, self._entries, self._calls = [], {}, {}
        self._lock = threading.Lock()
        self._is_forked = not self._closed
        return engines

    def _remake(self) -> None:
        """Compile again after a fork; the other fields are those of a program that is new."""
        with self._lock:
            if not self._is_forked:
                return
            if self.origin is None:
                raise GraphError(f"The program {self.name} was forked. Compile it here.")
            remade: Program = self.origin.remake(self.name)
            self._remade, self._make, self._parameters = remade, remade._make, remade._parameters
            self._make_apart = remade._make_apart
            self._initial, self._entries, self._calls = (
                remade._initial,
                remade._entries,
                remade._calls,
            )
            # What replaces its entries later holds the lock of the new program.
            self._lock = remade._lock
            self._is_forked = False

    def close(self) -> None:
        """Close all entries, and cancel submitted calls that have not begun.

        Calling the program afterwards is an error.
        """
        with self._lock:
            self._closed = True
            if self._remade is not None:
                # What its searches settle on comes too late.
                self._remade._closed = True
            entries = self.all_entries()
            self._calls.clear()
            self._entries.clear()
            self._initial.clear()
            for entry in entries:
                entry.runner.close()
        if self._cancel_submitted is not None:
            self._cancel_submitted(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _observed(run: Run, name: str, entry: Entry) -> Run:
    """Return a run as calls should use it now: noted if a profile is on, or else itself."""
    if isinstance(run, ObservedCall):
        run = run.unobserved
    return ObservedCall(run, name, entry.backend) if EVENTS.is_on else run


def _ready(program: weakref.ref[Program], key: Signature, entry: Entry, run: Run) -> None:
    """Have the next calls of a signature run an entry directly, if they still run that entry."""
    found = program()
    if found is None:
        return
    with found._lock:
        if found._entries.get(key) is entry:
            found._calls[key] = _observed(run, found.name, entry), entry.restore
            if found.changed is not None:
                found.changed()


def _as_before(settled: Entry, entry: Entry) -> Entry:
    """Have an entry take the arguments of the one that it replaces."""
    return replace(
        settled,
        is_plain=entry.is_plain,
        learned=entry.learned,
        holds=entry.holds,
        updates=entry.updates,
    )


def _peak_bytes(details: Details, sizes: Mapping[Symbol, int]) -> int:
    """Return the most bytes that the values of a call take at once, without its inputs."""
    return bytes_at_peak(details.plan.graph, sizes)


def _fitted(entry: Entry, leaves: list[Any]) -> Entry:
    """Have an entry take such arguments: arrays as they are or converted, or buffers."""
    if any(isinstance(leaf, Buffer) for leaf in leaves):
        states = state_updates(entry, leaves)
        return replace(entry, holds=True, updates=tuple(dict.fromkeys((*entry.updates, *states))))
    taken = map(plain, entry.inputs, leaves)
    is_plain = all(x is y for x, y in zip(taken, leaves, strict=True))
    return replace(entry, is_plain=is_plain and entry.is_plain, holds=False)


def signature(arguments: tuple[Any, ...]) -> Signature:
    """Return the key of arguments: arrays by shape and dtype, containers by their parts."""
    key: list[Any] = []
    for x in arguments:
        key += (x.shape, x.dtype) if type(x) is ndarray else _keys(x)
    return tuple(key)


def _keys(argument: Any) -> Signature:
    """Return the parts of a signature that an argument makes: two if it is an array."""
    key = _key(argument)
    return key if isinstance(argument, np.ndarray | np.generic) else (key,)


def _with_arrays(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Turn tensors of other libraries into arrays, also in containers."""
    structure, tensors = Structure.of(arguments, _is_array_like)
    return tuple(structure.restore([as_array(x) for x in tensors])) if tensors else arguments


def _is_array_like(argument: Any) -> bool:
    if isinstance(argument, np.ndarray | np.generic):
        return False
    return hasattr(type(argument), "__array__") and hasattr(argument, "shape")


def _is_traced(argument: Any) -> bool:
    if not _is_array_like(argument):
        return False
    from fusewire.ops.operand import Traced

    return isinstance(argument, Traced)


def _key(argument: Any) -> Signature:
    if isinstance(argument, np.ndarray | np.generic):
        # Naming np.ma imports it, which takes long: only other kinds of arrays need it.
        if type(argument) is not ndarray and isinstance(argument, np.ma.MaskedArray):
            raise ShapeMismatchError(
                "An argument is a masked array, and programs know no masks. Give its data, or "
                "x.filled(value)."
            )
        return (argument.shape, argument.dtype)
    if isinstance(argument, Buffer):
        said = argument.output if isinstance(argument, StateBuffer) else None
        return (type(argument), said, argument.shape, argument.dtype)
    if _is_array_like(argument):
        return (type(argument), tuple(argument.shape), str(argument.dtype))
    if isinstance(argument, dict):
        return (type(argument), *((_key(key), _key(item)) for key, item in argument.items()))
    if isinstance(argument, list | tuple):
        return (type(argument), *map(_key, argument))
    try:
        hash(argument)
    except TypeError:
        raise ShapeMismatchError(
            f"An argument of type {type(argument).__name__} is neither an array nor a plain value "
            "that can be part of a program. Give arrays, numbers, strings, or containers of them."
        ) from None
    return plain_key(argument)
