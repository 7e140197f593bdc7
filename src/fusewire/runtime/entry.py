"""One graph of a program made ready to run, and which arguments fit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol, final

import numpy as np

from fusewire.contract.backend import Held
from fusewire.contract.frontend import Structure
from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError
from fusewire.ir.dims import lone_symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops.sample import HostValue
from fusewire.runtime.plan import Plan
from fusewire.runtime.why import Why

Run = Callable[[tuple[Any, ...]], list[Any]]
Restore = Callable[[list[Any]], Any]


class Runner(Protocol):
    """Runs to the end and gives what the caller gets: values on the host."""

    @property
    def call(self) -> Callable[[Sequence[Held]], list[Any]]: ...

    def close(self) -> None: ...


@final
class Undecided:
    """Stands where a runner will be once it is decided which."""

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Nobody calls it: a program decides first."""
        raise AssertionError("it was not decided")

    def close(self) -> None:
        """Nothing is held."""


class Details(Protocol):
    """What a call need not know; made when somebody asks."""

    @property
    def plan(self) -> Plan: ...

    def why(self) -> Why: ...


@dataclass(frozen=True, eq=False)
class Entry:
    """A graph made ready to run, and how arguments and results lie in it.

    ``decide`` is there while it is open how the graph will run: it makes the entry that the first
    call, and all others, go through.
    """

    inputs: tuple[Value, ...]
    runner: Runner
    arguments: Structure
    results: Structure
    backend: str
    nodes: int
    details: Details
    decide: Callable[[tuple[Any, ...]], Entry] | None = None
    # Arguments are arrays as engines know them; otherwise every call makes such arrays of them.
    is_plain: bool = True

    @property
    def graph(self) -> Graph:
        return self.details.plan.graph

    @cached_property
    def is_open(self) -> bool:
        """Whether arguments of several shapes fit."""
        return any(True for v in self.inputs for _ in type_symbols(v.type))

    @cached_property
    def run(self) -> Run:
        """Run on arguments of a signature that was found to fit, and give outputs in a row."""
        call, flatten = self.runner.call, self.arguments.flatten
        if not self.is_plain:
            inputs = self.inputs
            return lambda arguments: call(list(map(plain, inputs, flatten(arguments))))
        return call if _is_flat(self.arguments) else lambda arguments: call(flatten(arguments))

    @cached_property
    def restore(self) -> Restore:
        """Give outputs in a row the structure of the result."""
        if self.results.tree is Structure.LEAF:
            return itemgetter(0)
        return tuple if _is_flat(self.results) else self.results.restore


def _is_flat(structure: Structure) -> bool:
    """Tell whether it is a tuple of arrays and nothing else."""
    tree = structure.tree
    return type(tree) is tuple and all(item is Structure.LEAF for item in tree)


def plain(value: Value, given: Any) -> Any:
    """Make an array in the byte order of this machine, unless it is one or may be none."""
    if not isinstance(value.type, TensorType):
        return given
    if isinstance(given, np.ndarray | np.generic) and given.dtype.isnative:
        return given
    array = np.asarray(given)
    return array.astype(array.dtype.newbyteorder("="))


def misfit(entry: Entry, arguments: tuple[Any, ...]) -> str | None:
    """Say why arguments do not fit an entry, in a sentence; None when they do."""
    try:
        given = entry.arguments.flatten(arguments)
    except ShapeMismatchError as error:
        return str(error)
    sizes: dict[object, int] = {}
    for value, found in zip(entry.inputs, given, strict=True):
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
