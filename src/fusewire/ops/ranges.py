"""Ranges of integer elements, as ops declare them for their outputs.

An op's ``value_range`` is given the node, one of its outputs and the ranges of its operands, None
where one is not known; ``fusewire.facts`` follows them through a graph, counted from 0 or from a
size. The arithmetic is exact: what leaves a dtype is seen to. A size may be larger than any memory,
of a tensor with another axis that is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fusewire.ir.dims import Dim, dim_max, size
from fusewire.ir.graph import Node, Value

# The largest int32.
MOST = 2**31 - 1
# The longest axis: sums of two such sizes fit int64.
LONGEST = 2**62 - 1


@dataclass(frozen=True)
class Range:
    """Smallest and largest number; ``is_size`` for what is made of sizes, places and counts.

    No number is above ``last`` either, which is a size that only a call knows.
    """

    low: int
    high: int
    is_size: bool = False
    last: Dim | None = None

    def within(self, low: int, high: int) -> bool:
        """Tell whether every number lies between two."""
        return low <= self.low and self.high <= high

    @property
    def fits_int32(self) -> bool:
        return self.within(-MOST - 1, MOST)

    def join(self, other: Range) -> Range:
        """Cover both."""
        size = self.is_size and other.is_size
        return Range(min(self.low, other.low), max(self.high, other.high), size)

    def meet(self, other: Range) -> Range:
        """Keep what lies within both."""
        return Range(max(self.low, other.low), min(self.high, other.high))


# A size, or a place, along an axis of unknown length.
SIZE = Range(0, LONGEST, True)
Known: TypeAlias = Sequence[Range | None]
ValueRange: TypeAlias = Callable[[Node, Value, Known], Range | None]


def of_operands(function: Callable[..., Range]) -> ValueRange:
    """Declare arithmetic on ranges, for which all operands must be known."""

    def value_range(node: Node, output: Value, known: Known) -> Range | None:
        present = [r for r in known if r is not None]
        return function(*present) if len(present) == len(node.operands) else None

    return value_range


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Lift a function that is monotone in each operand."""

    def apply(x: Range, y: Range) -> Range:
        corners = [function(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
        return Range(min(corners), max(corners))

    return apply


def _sum(x: Range, y: Range) -> Range:
    return Range(x.low + y.low, x.high + y.high, x.is_size and y.is_size)


def _product(x: Range, y: Range) -> Range:
    found = _corners(lambda a, b: a * b)(x, y)
    return Range(found.low, found.high, x.is_size and y.is_size)


def _quotient(x: Range, y: Range) -> Range:
    """No quotient is further from 0 than the dividend; those of sizes are sizes."""
    if x.low >= 0 and y.low >= 0:
        return Range(0, x.high // max(y.low, 1), x.is_size)
    most = max(abs(x.low), abs(x.high))
    return Range(-most, most)


def _rest(x: Range, y: Range) -> Range:
    """No further from 0 than the dividend or the divisor; of sizes they are sizes."""
    most = min(max(abs(x.low), abs(x.high)), max(abs(y.low), abs(y.high)))
    return Range(0, most, x.is_size) if x.low >= 0 and y.low >= 0 else Range(-most, most)


def _floored_rest(x: Range, y: Range) -> Range:
    """With the divisor's sign, and nearer to 0; places on a circle of so many are sizes."""
    low, high, is_circle = min(y.low + 1, 0), max(y.high - 1, 0), 0 < y.low <= y.high <= MOST
    if x.low >= 0 and y.low >= 0:
        return Range(0, min(high, x.high), x.is_size or is_circle)
    return Range(low, high, is_circle)


def _absolute(x: Range) -> Range:
    low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Range(low, max(abs(x.low), abs(x.high)), x.is_size)


def _extreme(choose: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    def apply(x: Range, y: Range) -> Range:
        both = x.is_size and y.is_size
        return Range(choose(x.low, y.low), choose(x.high, y.high), both)

    return apply


_larger, _smaller = _extreme(max), _extreme(min)


sums = of_operands(_sum)
differences = of_operands(lambda x, y: Range(x.low - y.high, x.high - y.low))
products = of_operands(_product)
squares = of_operands(lambda x: _product(_absolute(x), _absolute(x)))
quotients = of_operands(_quotient)
rests = of_operands(_rest)
floored_rests = of_operands(_floored_rest)
opposites = of_operands(lambda x: Range(-x.high, -x.low))
magnitudes = of_operands(_absolute)
signs = of_operands(lambda x: Range(-1, 1))
larger = of_operands(_larger)
smaller = of_operands(_smaller)


def limited(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, limited by the others where they are there."""
    found, *bounds = known
    for bound, limit, value in zip(bounds, (_larger, _smaller), node.inputs[1:], strict=False):
        if found is None or (value is not None and bound is None):
            return None
        found = found if bound is None else limit(found, bound)
    return found


def padded(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, and the last operand around them, or 0."""
    filled = Range(0, 0, True)
    for value, range_ in ((node.inputs[0], known[0]), (node.inputs[-1], known[-1])):
        if value is not None:
            if range_ is None:
                return None
            filled = filled.join(range_)
    return filled


def among_zeros(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, and 0 around or between them."""
    return None if known[0] is None else known[0].join(Range(0, 0, True))


def first_operand(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, in another order or another dtype."""
    return known[0]


def converted(node: Node, output: Value, known: Known) -> Range | None:
    """The same numbers; of bools, 0 and 1."""
    (source,) = node.operands
    if source.tensor.dtype.kind == "bool":
        return Range(0, 1)
    # A last place that does not fit the dtype says nothing of what it becomes.
    return None if known[0] is None else replace(known[0], last=None)


def _largest(dims: Sequence[Dim]) -> Range:
    known = [dim for dim in dims if isinstance(dim, int)]
    return Range(0, max([0, *known]), True) if len(known) == len(dims) else SIZE


def _up_to(last: Dim) -> Range:
    return replace(_largest([last]), last=None if isinstance(last, int) else last)


def _along_axis(node: Node) -> Dim:
    """Return the size of the axis that a node is about."""
    axis = node.attrs["axis"]
    assert isinstance(axis, int), "its type rule demands it"
    return node.operands[0].tensor.shape[axis]


def place_of_one(node: Node, output: Value, known: Known) -> Range | None:
    """A place along an axis, or 0: there is the largest of no elements."""
    return _up_to(dim_max(_along_axis(node) - 1, 0))


def places_of_all(node: Node, output: Value, known: Known) -> Range | None:
    """Places along an axis."""
    return _up_to(_along_axis(node) - 1)


def places_of_axes(node: Node, output: Value, known: Known) -> Range | None:
    """Places along any axis; of a scalar, and of no elements, there are none."""
    shape = node.operands[0].tensor.shape
    none: Dim = -1
    lasts = [] if 0 in shape else [dim - 1 for dim in shape]
    return _up_to(functools.reduce(dim_max, lasts, none))


def values_and_places(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, then their places along an axis."""
    return known[0] if output.index == 0 else places_of_all(node, output, known)


def counts(node: Node, output: Value, known: Known) -> Range | None:
    """Places and counts, which are at most the number of elements there are, or of an axis."""
    if isinstance(node.attrs.get("axis"), int):
        return _largest([_along_axis(node)])
    return _largest([value.tensor.size for value in node.operands])


def values_and_counts(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand, then their places and counts."""
    return known[0] if output.index == 0 else counts(node, output, known)


def pooled_and_places(node: Node, output: Value, known: Known) -> Range | None:
    """The largest of windows, then their places.

    Of a window that has nothing but padding these are the smallest number of the dtype, and -1.
    """
    if output.index == 0:
        has_padding = node.attrs["padding"] is not None or node.attrs["ceil"]
        return None if has_padding else known[0]
    found = counts(node, output, known)
    return None if found is None else Range(-1, found.high)


def shapes(node: Node, output: Value, known: Known) -> Range | None:
    """The sizes of a tensor's axes."""
    return _largest(node.operands[0].tensor.shape)


def counted(node: Node, output: Value, known: Known) -> Range | None:
    """Numbers that an index gives, from ``start`` by ``step``."""
    shape = output.tensor.shape
    dim = shape[int(node.attrs.get("axis", 0))]  # type: ignore[arg-type] # an axis is an int
    first: Any = node.attrs.get("start", 0)
    step: Any = node.attrs.get("step", 1)
    if not isinstance(dim, int):
        return _up_to(dim - 1) if (first, step) == (0, 1) else None
    last = first + step * max(dim - 1, 0)
    return Range(min(first, last), max(first, last), min(first, last) >= 0)


def between(node: Node, output: Value, known: Known) -> Range | None:
    """Numbers from the first operand to the second, which is not among them."""
    start, stop, step = known
    if start is None or stop is None:
        return None
    if step is None or step.low < 1:
        return start.join(stop)
    both = start.is_size and stop.is_size
    return Range(start.low, max(start.low, stop.high - 1), both)


def chosen(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the second operand or the third."""
    return known[1].join(known[2]) if known[1] and known[2] else None


def written(node: Node, output: Value, known: Known) -> Range | None:
    """Elements of the first operand and the third, unless they are added or multiplied."""
    if node.attrs["reduction"] in ("add", "multiply") or known[0] is None or known[2] is None:
        return None
    return known[0].join(known[2])


def extremes(node: Node, output: Value, known: Known) -> Range | None:
    """Extremes over an axis; of nothing they are those of the dtype."""
    shape = node.operands[0].tensor.shape
    has_some = all(isinstance(dim, int) and dim > 0 for dim in shape)
    # Without the element itself, the first has nothing before it.
    return known[0] if has_some and not node.attrs.get("exclusive") else None


def totals(node: Node, output: Value, known: Known) -> Range | None:
    """Sums over axes."""
    shape, term = node.operands[0].tensor.shape, known[0]
    axes: Any = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
    terms = size(shape if axes is None else [shape[axis] for axis in axes])
    if term is None:
        return None
    if not isinstance(terms, int):
        # Flags are counted.
        return Range(0, LONGEST) if term.within(0, 1) else None
    return Range(min(term.low * terms, 0), max(term.high * terms, 0))


def sizes_multiplied(node: Node, output: Value, known: Known) -> Range | None:
    """Products over axes, of sizes alone."""
    axes: Any = node.attrs["axes"]
    shape = node.operands[0].tensor.shape
    factors = size(shape if axes is None else [shape[axis] for axis in axes])
    if known[0] is None or not known[0].is_size:
        return None
    # 64 factors leave every dtype, and so may what only a call knows. A file may ask for 2**60.
    most = min(factors, 64) if isinstance(factors, int) else 64
    # Sizes that wrapped may be negative.
    low, high = min(known[0].low, 0), max(abs(known[0].low), known[0].high, 1) ** most
    return Range(-high if low else 0, high, True)


# Operands that shift the first output as they are shifted together: if these are counted from a
# size, and others from 0, so is the output, and each end of it follows from such ends of theirs.
SHIFTED: Mapping[ValueRange, Sequence[tuple[int, ...]]] = {
    sums: ((0,), (1,)),
    differences: ((0,),),
    larger: ((0, 1),),
    smaller: ((0, 1),),
    limited: ((0, 1, 2),),
    first_operand: ((0,),),
    converted: ((0,),),
    values_and_places: ((0,),),
    between: ((0, 1),),
    chosen: ((1, 2),),
    written: ((0, 2),),
}
