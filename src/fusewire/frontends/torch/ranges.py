"""The sizes for which a program was exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fusewire.dtypes import int64
from fusewire.errors import TraceError
from fusewire.ir.builder import bind_symbols
from fusewire.ir.dims import UNREACHED, Dim, Symbol, lone_symbol, symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.creation import iota
from fusewire.ops.slicing import slice_

# PyTorch traces sizes from this one on, and allows 0 and 1 all the same.
_LEAST_SIZE = 2
# The smallest size, 0 if any, and the largest, if there is one.
Range: TypeAlias = tuple[int, int | None]


def ranges_of(program: Any, known: Mapping[str, Dim]) -> dict[Symbol, Range]:
    """Return the ranges of symbols that have limits; ``known`` are dims by PyTorch's names."""
    found: dict[Symbol, Range] = {}
    for expression, bounds in program.range_constraints.items():
        dim = known.get(getattr(expression, "name", ""))
        alone = None if dim is None else lone_symbol(dim)
        if alone is None or alone.unbacked:
            continue
        least = int(bounds.lower) if str(bounds.lower).isdecimal() else 0
        most = int(bounds.upper) if str(bounds.upper).isdecimal() else UNREACHED
        range_ = least if least > _LEAST_SIZE else 0, most if most < UNREACHED else None
        if range_ != (0, None):
            found[alone] = range_
    return found


def bounds(ranges: Mapping[Symbol, Range]) -> list[Value]:
    """Make values that have a type only at sizes within their ranges.

    No output needs them, so that no engine runs them; whoever asks whether the graph holds at
    some sizes checks their types.
    """
    found = []
    for alone, (least, most) in ranges.items():
        dim = symbol(alone.name)
        if most is not None:
            row = iota.new(shape=(most,), axis=0, dtype=int64)
            found.append(slice_(row, starts=(0,), limits=(dim,), strides=(1,)))
        if least:
            row = iota.new(shape=(dim,), axis=0, dtype=int64)
            found.append(slice_(row, starts=(0,), limits=(least,), strides=(1,)))
    return found


def with_sizes(
    graph: Graph, types: Sequence[TensorType | None], ranges: Mapping[Symbol, Range]
) -> Graph:
    """Give open sizes of inputs the sizes, or the names, that types have in their places.

    TraceError if a size is not within the range for which the program was exported.
    """
    sizes: dict[Symbol, Dim] = {}
    for value, type_ in zip(graph.inputs, types, strict=True):
        if type_ is None or type_.rank != value.tensor.rank:
            continue
        for axis, (dim, size) in enumerate(zip(value.tensor.shape, type_.shape, strict=True)):
            if (alone := lone_symbol(dim)) is not None:
                _check(
                    size,
                    ranges.get(alone, (0, None)),
                    f"axis {axis} of {value.name} ({alone.name})",
                )
                sizes.setdefault(alone, size)
    return bind_symbols(graph, sizes)


def _check(size: Dim, range_: Range, what: str) -> None:
    least, most = range_
    if not isinstance(size, int) or least <= size <= (size if most is None else most):
        return
    limits = [f"at least {least}"] * (least > 0) + [f"at most {most}"] * (most is not None)
    raise TraceError(
        f"The program was exported for sizes of {' and '.join(limits)} on {what}, found {size}. "
        "Call it with such a size, or export it with another range of this Dim."
    )
