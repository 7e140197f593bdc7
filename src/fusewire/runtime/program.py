"""What the user calls. A program runs plans that others made; it decides nothing itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from numpy import ndarray

from fusewire.dtypes import dtype
from fusewire.errors import GraphError, ShapeMismatchError
from fusewire.frontend import Structure, plain_key
from fusewire.ir.dims import lone_symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops.sample import HostValue
from fusewire.runtime.execute import PlanRunner
from fusewire.runtime.plan import Plan
from fusewire.runtime.why import NodeWhy, Why

# Shape and dtype of every array argument, and the rest of the arguments as they are.
Signature = tuple[Any, ...]
Run = Callable[[tuple[Any, ...]], list[Any]]
Restore = Callable[[list[Any]], Any]
# Signatures that a program remembers to have checked.
_KEPT = 4096


@dataclass(frozen=True, eq=False)
class Entry:
    """A graph made ready to run, and how arguments and results lie in it."""

    graph: Graph
    executable: PlanRunner
    arguments: Structure
    results: Structure
    backend: str
    plan: Plan
    explain: Callable[[], Why]
    # Arguments are arrays as engines know them; otherwise every call makes such arrays of them.
    is_plain: bool = True

    @cached_property
    def is_open(self) -> bool:
        """Whether arguments of several shapes fit."""
        return any(True for v in self.graph.inputs for _ in type_symbols(v.type))

    @cached_property
    def run(self) -> Run:
        """Run on arguments of a signature that was found to fit, and give outputs in a row."""
        call, flatten = self.executable.call, self.arguments.flatten
        if not self.is_plain:
            inputs = self.graph.inputs
            return lambda arguments: call(list(map(_plain, inputs, flatten(arguments))))
        return call if _is_flat(self.arguments) else lambda arguments: call(flatten(arguments))

    @cached_property
    def restore(self) -> Restore:
        """Give outputs in a row the structure of the result."""
        if self.results.tree is Structure.LEAF:
            return itemgetter(0)
        return tuple if _is_flat(self.results) else self.results.restore


@dataclass(frozen=True)
class Result:
    """The outputs of one run, and what it took."""

    outputs: Any
    seconds: float
    bytes: int
    metadata: dict[str, Any] = field(default_factory=dict)


class Program:
    """A source made ready to run; called with arrays, it gives arrays.

    Entries are made per input signature, the first time it is seen. Safe to call from several
    threads.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[tuple[Any, ...]], Entry],
        entries: Sequence[Entry] = (),
    ) -> None:
        self.name = name
        self._make = make
        self._given = list(entries)
        self._entries: dict[Signature, Entry] = {}
        # What a call does, taken out of the entries.
        self._calls: dict[Signature, tuple[Run, Restore]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, *arguments: Any) -> Any:
        """Run on arrays; results are fresh arrays of the caller's."""
        found = self._calls.get(
            tuple([(x.shape, x.dtype) if type(x) is ndarray else _key(x) for x in arguments])
        )
        if found is None:
            entry = self.entry(arguments)
            found = entry.run, entry.restore
        run, restore = found
        return restore(run(arguments))

    def run(self, *arguments: Any) -> Result:
        """Run and tell time, bytes of the outputs, and what ran."""
        entry = self.entry(arguments)
        start = time.perf_counter()
        outputs = entry.run(arguments)
        seconds = time.perf_counter() - start
        size = sum(x.nbytes for x in outputs if isinstance(x, np.ndarray))
        about = {"backend": entry.backend, "nodes": len(entry.graph.nodes)}
        return Result(entry.restore(outputs), seconds, size, about)

    def entry(self, arguments: tuple[Any, ...]) -> Entry:
        """Find or make what runs such arguments."""
        if self._closed:
            raise GraphError(f"The program {self.name} is closed. Compile it again.")
        key = signature(arguments)
        entry = self._entries.get(key)
        if entry is None:
            with self._lock:
                entry = self._entries.get(key) or self._fitting(arguments) or self._make(arguments)
                given = entry.arguments.flatten(arguments)
                plain = map(_plain, entry.graph.inputs, given)
                if any(x is not y for x, y in zip(plain, given, strict=True)):
                    entry = replace(entry, is_plain=False)
                if self._given and len(self._entries) >= _KEPT:
                    # All of them are entries that were given: only who asked before is forgotten.
                    self._entries.clear()
                    self._calls.clear()
                self._entries[key] = entry
                self._calls[key] = entry.run, entry.restore
        return entry

    def _fitting(self, arguments: tuple[Any, ...]) -> Entry | None:
        """Find an entry whose types these arguments fit; where some were given, one must."""
        for entry in dict.fromkeys(self._entries.values()):
            if not self._given and entry.is_open and _misfit(entry, arguments) is None:
                return entry
        problems = []
        for entry in self._given:
            misfit = _misfit(entry, arguments)
            if misfit is None:
                return entry
            problems.append(misfit)
        if problems:
            raise ShapeMismatchError(" ".join(problems))
        return None

    def _made(self) -> list[Entry]:
        """List what was made, each once."""
        entries = [*self._given, *self._entries.values()]
        return list({entry.executable: entry for entry in entries}.values())

    @property
    def graph(self) -> Graph:
        """The graph; of the latest signature when there are several."""
        return self._latest().graph

    def _latest(self) -> Entry:
        if entries := [*self._given, *self._entries.values()]:
            return entries[-1]
        raise GraphError(
            f"The program {self.name} has no graph yet: it has not been called. "
            "Call it, or give example arrays or Specs to fw.compile."
        )

    @property
    def plan(self) -> Plan:
        """Which region runs where; of the latest signature when there are several."""
        return self._latest().plan

    @overload
    def why(self) -> Why: ...

    @overload
    def why(self, node: int | str) -> NodeWhy: ...

    def why(self, node: int | str | None = None) -> Why | NodeWhy:
        """Tell why it runs as it does, or one node of ``plan.graph``, given by its place.

        Of the latest signature when there are several; regions that did not run yet have made no
        contact. In a body a place is that of the node around it, the body, and its own: "4.then.0".
        """
        found = self._latest().explain()
        return found if node is None else found.node(node)

    @property
    def signatures(self) -> list[str]:
        """The input types of every graph made so far."""
        return [", ".join(str(v.type) for v in entry.graph.inputs) for entry in self._made()]

    def __str__(self) -> str:
        made = self._made()
        if not made:
            return f"program {self.name}: not called yet"
        shown = (
            f"# {entry.backend}: {len(entry.graph.nodes)} nodes\n{entry.graph}" for entry in made
        )
        return f"program {self.name}\n" + "\n".join(shown)

    def close(self) -> None:
        """Let go of everything; calling the program is an error from then on."""
        with self._lock:
            self._closed = True
            made = self._made()
            self._calls.clear()
            self._entries.clear()
            self._given.clear()
            for entry in made:
                entry.executable.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def signature(arguments: tuple[Any, ...]) -> Signature:
    """Key of arguments: arrays by shape and dtype, containers by their parts, the rest as is."""
    return tuple([_key(x) for x in arguments])


def _key(argument: Any) -> Signature:
    if isinstance(argument, np.ndarray | np.generic):
        return (argument.shape, argument.dtype)
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


def _is_flat(structure: Structure) -> bool:
    """Tell whether it is a tuple of arrays and nothing else."""
    tree = structure.tree
    return type(tree) is tuple and all(item is Structure.LEAF for item in tree)


def _plain(value: Value, given: Any) -> Any:
    """Make an array in the byte order of this machine, unless it is one or may be none."""
    if not isinstance(value.type, TensorType):
        return given
    if isinstance(given, np.ndarray | np.generic) and given.dtype.isnative:
        return given
    array = np.asarray(given)
    return array.astype(array.dtype.newbyteorder("="))


def _misfit(entry: Entry, arguments: tuple[Any, ...]) -> str | None:
    """Say why arguments do not fit an entry, in a sentence; None when they do."""
    try:
        given = entry.arguments.flatten(arguments)
    except ShapeMismatchError as error:
        return str(error)
    sizes: dict[object, int] = {}
    for value, found in zip(entry.graph.inputs, given, strict=True):
        if not _fits(value, found, sizes):
            shown = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else found
            return f"The input {value.name} is {value.type}, found {shown}."
    return None


def _fits(value: Value, found: HostValue, sizes: dict[object, int]) -> bool:
    if not isinstance(value.type, TensorType):
        return True
    array = np.asarray(found)
    if dtype(array.dtype) is not value.type.dtype or array.ndim != value.type.rank:
        return False
    for dim, size in zip(value.type.shape, array.shape, strict=True):
        symbol = lone_symbol(dim)
        if symbol is not None and sizes.setdefault(symbol, size) != size:
            return False
        if isinstance(dim, int) and dim != size:
            return False
    return True
