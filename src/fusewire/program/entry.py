"""An entry of a program: one graph made ready to run, and the arguments that fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, final

import numpy as np

from fusewire.contract.backend import Held
from fusewire.contract.buffer import Buffer
from fusewire.contract.devices import kind_of
from fusewire.contract.frontend import Structure
from fusewire.dtypes import dtype
from fusewire.errors import ShapeMismatchError
from fusewire.ir.dims import Symbol, bind_alone, lone_symbol
from fusewire.ir.graph import Graph, HostValue, Value
from fusewire.ir.types import TensorType, type_symbols
from fusewire.plan.plan import Plan, is_truth
from fusewire.plan.runner import Runner
from fusewire.program.arguments import plain

if TYPE_CHECKING:
    from fusewire.show.why import Why

Run = Callable[[tuple[Any, ...]], list[Any]]
Restore = Callable[[list[Any]], Any]


@final
class Undecided:
    """Takes the place of a runner until a candidate is chosen."""

    def call(self, inputs: Sequence[Held]) -> list[Any]:
        """Must not be called: a program decides first."""
        raise AssertionError("it was not decided")

    def close(self) -> None:
        """Nothing to close."""


class Details(Protocol):
    """What a call does not need; made when the user asks."""

    @property
    def plan(self) -> Plan: ...

    def why(self) -> Why: ...


# The first plan answers; the engines are compared behind it; nothing will change any more.
State = Literal["serving-first", "comparing", "settled"]


class Serving(Protocol):
    """Has a first plan serve, and replaces its entry once the plan to keep is found."""

    @property
    def state(self) -> State: ...

    @property
    def is_attached(self) -> bool: ...

    def attach(self, swap: Callable[[Any, Entry], None]) -> None:
        """Say which method of a program takes this object and the entry to keep."""

    def around(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Count a call of what serves first, whoever makes it."""

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is settled; returns whether it is."""

    def cancel(self) -> None:
        """Stay with the first plan."""


# The least size that fits a symbol learned from calls: 0 and 1 have a meaning of their own.
LEAST_SIZE = 2
# A plan is chosen again for sizes that differ from those it was chosen at by more than this factor.
_NEAR = 4


@dataclass(frozen=True, eq=False)
class LearnedSizes:
    """What an entry has that serves near some sizes only: they were learned, or recalled.

    ``allows`` tells whether its graph holds at some sizes, of which none is below ``least``. Its
    plan was chosen at ``sizes``; ``decide`` makes the entry for sizes far from them. ``interim``
    takes any sizes, and answers while an engine compiles for those of a call.
    """

    allows: Callable[[Mapping[Symbol, int]], bool]
    sizes: Mapping[Symbol, int]
    decide: Callable[[tuple[Any, ...]], Entry]
    interim: Runner | None = None
    least: int = LEAST_SIZE

    @staticmethod
    def recalled(
        sizes: Mapping[Symbol, int], decide: Callable[[tuple[Any, ...]], Entry]
    ) -> LearnedSizes:
        """Have a recalled plan serve near the sizes at which it was chosen."""
        return LearnedSizes(lambda sizes: True, sizes, decide, least=0)

    def is_near(self, sizes: Mapping[Symbol, int]) -> bool:
        """Tell whether a plan chosen at its sizes may serve at these."""
        pairs = ((sizes[symbol], size) for symbol, size in self.sizes.items())
        return all(max(pair) <= _NEAR * min(pair) for pair in pairs)


@dataclass(frozen=True, eq=False)
class Entry:
    """A graph made ready to run, and the structure of its arguments and results.

    ``decide`` is set until a candidate is chosen: at the first call it makes the entry that this
    call and all others use. ``serving`` is set until the engines are compared. ``updates`` are
    pairs of an output and the input that a call replaces by it. If ``holds``, some arguments are
    buffers, and so are the results.
    """

    inputs: tuple[Value, ...]
    runner: Runner
    arguments: Structure
    results: Structure
    backend: str
    nodes: int
    details: Details
    decide: Callable[[tuple[Any, ...]], Entry] | None = None
    # Arguments are arrays that engines can take; otherwise every call converts them.
    is_plain: bool = True
    serving: Serving | None = None
    learned: LearnedSizes | None = None
    updates: tuple[tuple[int, int], ...] = ()
    holds: bool = False

    @property
    def graph(self) -> Graph:
        return self.details.plan.graph

    @cached_property
    def is_open(self) -> bool:
        """Whether arguments of several shapes fit."""
        return any(True for v in self.inputs for _ in type_symbols(v.type))

    @cached_property
    def needs_sizes(self) -> bool:
        """Whether an engine compiles for the sizes of each signature."""
        return self.is_open and any(x.shapes != "dynamic" for x in self.details.plan.regions())

    @cached_property
    def device(self) -> str:
        """The device that its submitted calls wait for: the first that is not the processor."""
        devices = [region.device.id for region in self.details.plan.regions()]
        return next((device for device in devices if kind_of(device) != "cpu"), "cpu")

    def sizes(self, arguments: tuple[Any, ...]) -> dict[Symbol, int]:
        """Return the sizes of the symbols in arguments that fit."""
        found: dict[Symbol, int] = {}
        for value, leaf in zip(self.inputs, self.arguments.flatten(arguments), strict=True):
            if isinstance(value.type, TensorType):
                # NumPy would read a buffer to know its shape.
                shape = leaf.shape if isinstance(leaf, Buffer) else np.shape(leaf)
                bind_alone(value.type.shape, shape, found)
        return found

    @cached_property
    def run(self) -> Run:
        """Run on arguments of a signature that fits; returns a flat list of outputs."""
        if self.holds:
            from fusewire.program.buffer_calls import buffer_run

            return buffer_run(self)
        call, flatten = self._call, self.arguments.flatten
        if not self.is_plain or any(map(is_truth, self.inputs)):
            inputs = self.inputs
            return lambda arguments: call(list(map(plain, inputs, flatten(arguments))))
        return call if _is_flat(self.arguments) else lambda arguments: call(flatten(arguments))

    @cached_property
    def in_place(self) -> list[tuple[int, int]]:
        """The updates that an engine may do in place."""
        from fusewire.program.updates import in_place

        return in_place(self.graph, self.updates)

    @property
    def _call(self) -> Callable[[Sequence[Held]], list[Any]]:
        if not self.updates:
            return self.runner.call
        from fusewire.program.updates import updating_call

        return updating_call(self.runner, self.graph, self.updates)

    @cached_property
    def restore(self) -> Restore:
        """Turn a flat list of outputs into the structure of the result."""
        if self.results.tree is Structure.LEAF:
            return itemgetter(0)
        return tuple if _is_flat(self.results) else self.results.restore


def _is_flat(structure: Structure) -> bool:
    """Tell whether it is a tuple of arrays and nothing else."""
    tree = structure.tree
    return type(tree) is tuple and all(item is Structure.LEAF for item in tree)


def misfit(entry: Entry, arguments: tuple[Any, ...], casts: bool = False) -> str | None:
    """Say why arguments do not fit an entry, in a sentence; None if they do.

    With ``casts``, an array of another dtype of the same kind fits.
    """
    wanted = entry.arguments.tree
    if type(wanted) is tuple and len(wanted) != len(arguments):
        names = ", ".join(str(value.name) for value in entry.inputs)
        return f"It takes {len(wanted)} arguments ({names}), found {len(arguments)}."
    try:
        leaves = entry.arguments.flatten(arguments)
    except ShapeMismatchError as error:
        return str(error)
    sizes: dict[object, int] = {}
    for value, leaf in zip(entry.inputs, leaves, strict=True):
        if not _fits(value, leaf, sizes, casts):
            return _problem(value, leaf, sizes)
    if entry.learned is None:
        return None
    known, learned = entry.sizes(arguments), entry.learned
    is_plain = min(known.values(), default=learned.least) >= learned.least
    return None if is_plain and learned.allows(known) else f"It does not take {known}."


def _shown(leaf: Any) -> str:
    """Describe what is no array: all of a long list would hide the rest of the message."""
    if leaf is None or isinstance(leaf, bool | int | float | complex | str):
        return repr(leaf)
    array = np.asarray(leaf)
    kind = type(leaf).__name__
    return kind if array.dtype == object else f"a {kind} of {array.dtype}{list(array.shape)}"


def _problem(value: Value, leaf: HostValue, sizes: Mapping[Any, int]) -> str:
    """Say what an input is and what was found, and write the cast if that is all it lacks."""
    shown = f"{leaf.dtype}{list(leaf.shape)}" if isinstance(leaf, np.ndarray) else _shown(leaf)
    said = f"The input {value.name} is {value.type}, found {shown}."
    if not isinstance(value.type, TensorType):
        return said
    wanted, array = value.type.dtype, np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and array.dtype == wanted.numpy:
        return " ".join([said, *_disagreements(value.type, array.shape, sizes)])
    if not np.can_cast(array.dtype, wanted.numpy, "same_kind"):
        return said
    if not _fits(value, array.astype(wanted.numpy), {}, False):
        return said
    if not isinstance(leaf, np.ndarray):
        return f'{said} Give np.asarray({value.name}, "{wanted.name}").'
    return f'{said} Give {value.name}.astype("{wanted.name}"), or compile with cast="same_kind".'


def _disagreements(
    type_: TensorType, shape: tuple[int, ...], sizes: Mapping[Any, int]
) -> Iterator[str]:
    """Say which sizes differ from those that earlier inputs gave the same names."""
    for dim, size in zip(type_.shape, shape, strict=False):
        symbol = lone_symbol(dim)
        if symbol is not None and sizes.get(symbol, size) != size:
            yield f"{symbol.name} is {sizes[symbol]} in an earlier input, and {size} here."


def _fits(value: Value, leaf: HostValue, sizes: dict[object, int], casts: bool) -> bool:
    if not isinstance(value.type, TensorType):
        return True
    array, wanted = np.asarray(leaf), value.type.dtype
    if array.ndim != value.type.rank:
        return False
    may_cast = casts and np.can_cast(array.dtype, wanted.numpy, "same_kind")
    if dtype(array.dtype) is not wanted and not may_cast:
        return False
    for dim, size in zip(value.type.shape, array.shape, strict=True):
        symbol = lone_symbol(dim)
        if symbol is not None and sizes.setdefault(symbol, size) != size:
            return False
        if isinstance(dim, int) and dim != size:
            return False
    return True
