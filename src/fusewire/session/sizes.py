"""Learn which sizes vary: from the calls of a function, and from names in a file that do not hold.

A function called with a second shape is traced once more, with a symbol for each size that differs.
The result counts only if it says, at both sizes, what the traces at these sizes say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fusewire.contract.frontend import Example, Reading, Spec, Structure, plain_key
from fusewire.errors import DimError, FusewireError, SizesNeededError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import Symbol, bind_alone, lone_symbol
from fusewire.ir.graph import Graph
from fusewire.ir.hash import exact_hash
from fusewire.ir.types import TensorType, Type
from fusewire.ops.table import verify
from fusewire.process.guard import guarded
from fusewire.program.entry import LEAST_SIZE

Shapes = tuple[tuple[int, ...], ...]


class Source(Protocol):
    """A source that can be read for several examples."""

    def read(self, example: Example = (), *, is_open: bool = False) -> Reading:
        """Read the graph for such arguments."""

    def inputs(self) -> Mapping[str, Type]:
        """Return the declared arguments: their names and types."""


@dataclass(frozen=True)
class Opening:
    """Arguments with Specs in place of arrays: with open sizes, and as they were at first.

    ``first_sizes`` and ``sizes`` are those of the symbols at first and now.
    """

    specs: tuple[Any, ...]
    first: tuple[Any, ...]
    first_sizes: Mapping[Symbol, int]
    sizes: Mapping[Symbol, int]


class SeenSizes:
    """The sizes that the calls of a function had, by the rest of their signatures."""

    def __init__(self) -> None:
        self._first: dict[Any, Shapes] = {}
        self._refused: set[Any] = set()

    def note(self, arguments: tuple[Any, ...]) -> None:
        """Note the sizes of a call that is traced with them."""
        self._first.setdefault(_pattern(arguments), _shapes(arguments))

    def opening(self, arguments: tuple[Any, ...]) -> Opening | None:
        """Return what to trace with open sizes; None at first, and where that was in vain."""
        pattern = _pattern(arguments)
        first = self._first.get(pattern)
        if first is None or pattern in self._refused:
            return None
        return _opening(arguments, first, _shapes(arguments))

    def refuse(self, arguments: tuple[Any, ...]) -> None:
        """Note that such arguments cannot have open sizes."""
        self._refused.add(_pattern(arguments))


def _opening(arguments: tuple[Any, ...], first: Shapes, now: Shapes) -> Opening | None:
    names: dict[tuple[int, int], str] = {}
    opened = []
    for pair in zip(first, now, strict=True):
        dims: list[int | str] = []
        for before, size in zip(*pair, strict=True):
            if before != size and min(before, size) < LEAST_SIZE:
                # Sizes 0 and 1 have a meaning of their own: they are broadcast, and dropped.
                return None
            name = "n" if not names else f"n{len(names)}"
            dims.append(size if before == size else names.setdefault((before, size), name))
        opened.append(tuple(dims))
    if not names:
        return None
    found = {Symbol(name): pair for pair, name in names.items()}
    return Opening(
        _with_specs(arguments, opened),
        _with_specs(arguments, first),
        {symbol: pair[0] for symbol, pair in found.items()},
        {symbol: pair[1] for symbol, pair in found.items()},
    )


def _is_array(argument: Any) -> bool:
    return isinstance(argument, np.ndarray | np.generic)


def _shapes(arguments: tuple[Any, ...]) -> Shapes:
    return tuple(array.shape for array in Structure.of(arguments, _is_array)[1])


def _pattern(argument: Any) -> Any:
    """Return the signature of arguments without the sizes of arrays."""
    if _is_array(argument):
        return argument.ndim, argument.dtype
    if isinstance(argument, dict):
        return (type(argument), *((key, _pattern(item)) for key, item in argument.items()))
    if isinstance(argument, list | tuple):
        return (type(argument), *map(_pattern, argument))
    return plain_key(argument)


def _with_specs(
    arguments: tuple[Any, ...], shapes: Sequence[Sequence[int | str]]
) -> tuple[Any, ...]:
    """Put a Spec of each shape in the place of each array."""
    structure, arrays = Structure.of(arguments, _is_array)
    specs = [Spec(shape, array.dtype) for shape, array in zip(shapes, arrays, strict=True)]
    return tuple(structure.restore(specs))


@dataclass(frozen=True, eq=False)
class OpenTrace:
    """A trace with open sizes, rewritten, and the one at the first sizes with inputs like its."""

    reading: Reading
    graph: Graph
    first_graph: Graph
    first_inputs: list[Any]

    def allows(self, sizes: Mapping[Symbol, int]) -> bool:
        """Tell whether its types hold at these sizes: it assumes, say, that slices lie inside."""
        try:
            verify(bind_symbols(self.reading.graph, dict(sizes)))
        except FusewireError:
            return False
        return True


def read_opened(
    source: Source,
    opening: Opening,
    arguments: tuple[Any, ...],
    rewrite: Callable[[Graph], Graph],
    run: Callable[[Graph, Sequence[Any]], Sequence[Any]],
) -> OpenTrace | None:
    """Trace with open sizes; None if that cannot be, or says something else at either size."""
    try:
        # The function of a user does anything with a size that it cannot know.
        reading = guarded("trace", "compile", "open sizes", source.read, opening.specs)
        leaves = [np.asarray(leaf) for leaf in reading.arguments.flatten(arguments)]
        first = guarded("trace", "compile", "the first sizes", source.read, opening.first).graph
        now = guarded("trace", "compile", "these sizes", source.read, arguments).graph
        inputs = [
            np.resize(leaf, _shape_of(value.type))
            for leaf, value in zip(leaves, first.inputs, strict=True)
        ]
        graph, first, now = rewrite(reading.graph), rewrite(first), rewrite(now)
        for sizes, traced, given in (
            (opening.sizes, now, leaves),
            (opening.first_sizes, first, inputs),
        ):
            bound = rewrite(bind_symbols(reading.graph, dict(sizes)))
            if exact_hash(bound) != exact_hash(traced) and not _is_same(
                run(bound, given), run(traced, given)
            ):
                return None
    except FusewireError:
        return None
    return OpenTrace(reading, graph, first, inputs)


def _shape_of(type_: Type) -> tuple[int, ...]:
    assert isinstance(type_, TensorType), "arguments of functions are arrays"
    return tuple(dim for dim in type_.shape if isinstance(dim, int))


def _is_same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Tell whether outputs have the same types and bits."""
    return len(left) == len(right) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
        for x, y in zip(left, right, strict=True)
    )


# Names of dims in files.


def differing_names(inputs: Sequence[tuple[str, Type]], leaves: Sequence[Any]) -> list[str]:
    """Return the names that stand for several sizes; empty if something else does not fit."""
    if len(inputs) != len(leaves):
        return []
    sizes: dict[str, set[int]] = {}
    for (_, type_), leaf in zip(inputs, leaves, strict=True):
        shape = np.shape(leaf)
        if not isinstance(type_, TensorType) or len(shape) != type_.rank:
            return []
        for dim, size in zip(type_.shape, shape, strict=True):
            symbol = lone_symbol(dim)
            if isinstance(dim, int) and dim != size:
                return []
            if symbol is not None:
                sizes.setdefault(symbol.name, set()).add(size)
    return [name for name, found in sizes.items() if len(found) > 1]


def read_apart(source: Source, arguments: tuple[Any, ...]) -> Reading | None:
    """Read a file whose names of sizes do not hold, with a symbol of its own for each open dim.

    Sizes that the file needs to know are those of the arguments. None if the sizes of the arguments
    do not go together.
    """
    reading = _read_apart(source, arguments)
    sizes: dict[Symbol, int] = {}
    for value, argument in zip(reading.graph.inputs, arguments, strict=True):
        if isinstance(value.type, TensorType):
            bind_alone(value.type.shape, np.shape(argument), sizes)
    try:
        bind_symbols(reading.graph, dict(sizes))
    except DimError:
        return None
    return reading


def _read_apart(source: Source, arguments: tuple[Any, ...]) -> Reading:
    declared, bound = source.inputs(), set[str]()
    while True:
        specs = tuple(
            _apart(name, type_, argument, bound)
            for (name, type_), argument in zip(declared.items(), arguments, strict=True)
        )
        try:
            return source.read(specs)
        except SizesNeededError as error:
            if error.names <= bound:
                return source.read(arguments)
            bound |= error.names


def _apart(name: str, type_: Type, argument: Any, bound: set[str]) -> Any:
    if not isinstance(type_, TensorType):
        return argument
    dims: list[int | str] = []
    for place, (dim, size) in enumerate(zip(type_.shape, np.shape(argument), strict=True)):
        own = f"{_plain(name)}_{place}"
        dims.append(size if isinstance(dim, int) or own in bound else own)
    return Spec(dims, type_.dtype)


def _plain(name: str) -> str:
    """Make a name that can be part of a symbol's."""
    kept = "".join(x if x.isalnum() and x.isascii() else "_" for x in name)
    return kept if kept[:1].isalpha() else f"input_{kept}"
