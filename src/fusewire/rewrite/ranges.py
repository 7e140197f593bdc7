"""Between which numbers the elements of integer tensors lie, as far as a graph tells.

Known are constants, sizes, places (what argmax and nonzero give), and what arithmetic makes of
them; the rest may be any number of its dtype. A size, and a product of sizes, is taken to fit
int32: a tensor of more elements is none that an engine on one machine would hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusewire.dtypes import DType
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

MOST = 2**31 - 1


@dataclass(frozen=True)
class Range:
    """Smallest and largest number; ``is_size`` where products of it are still sizes."""

    low: int
    high: int
    is_size: bool = False

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


SIZE = Range(0, MOST, True)


def ranges(graph: Graph, entering: Range | None = None) -> Mapping[Value, Range]:
    """Find the range of every integer tensor of a graph; of bodies, nothing.

    ``entering`` is what the graph's inputs are taken to lie within, besides their dtypes.
    """
    found: dict[Value, Range] = {}
    for value in graph.inputs:
        whole = whole_range(value)
        if whole is not None:
            known = entering is not None and not whole.within(entering.low, entering.high)
            found[value] = entering if known and entering is not None else whole
    for value in graph.constants:
        if whole_range(value) is not None and value.constant is not None:
            found[value] = constant_range(value.constant)
    for node in graph.nodes:
        given = [None if v is None else found.get(v) for v in node.inputs]
        for value in node.outputs:
            whole = whole_range(value)
            if whole is not None:
                told = _told(node, value, given)
                found[value] = told if told and told.within(whole.low, whole.high) else whole
    return found


def whole_range(value: Value) -> Range | None:
    """Give all that an integer tensor's dtype can hold; None for other values."""
    of = value.type.dtype if isinstance(value.type, TensorType) else None
    return None if of is None or not of.is_integer else _of_dtype(of)


def _of_dtype(of: DType) -> Range:
    low, high = of.range
    return Range(int(low), int(high))


def constant_range(constant: Constant) -> Range:
    """Look at the elements; an empty tensor has none to be out of any range."""
    array = constant.array
    if array.size == 0:
        return Range(0, 0)
    low, high = int(array.min()), int(array.max())
    return Range(low, high, low >= 0 and high <= MOST)


def _told(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    if node.op in ARITHMETIC:
        known = [r for r in given if r is not None]
        return ARITHMETIC[node.op](*known) if len(known) == len(node.operands) else None
    if node.op in SPECIAL:
        return SPECIAL[node.op](node, output, given)
    if get_op(node.op).is_(Trait.MOVEMENT):
        return _moved(node, given)
    return None


def _moved(node: Node, given: Sequence[Range | None]) -> Range | None:
    """Cover all operands whose elements end up in the output."""
    op = get_op(node.op)
    names = (*op.parameters[0], *itertools.repeat("", len(node.inputs)))
    found = Range(0, 0, True) if node.op in ("pad", "dynamic_pad") else None
    for name, value, known in zip(names, node.inputs, given, strict=False):
        if value is None or name in op.index_operands or name in ("mask", "condition"):
            continue
        if known is None:
            return None
        found = known if found is None else found.join(known)
    return found


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Lift a function that is monotone in each operand."""

    def apply(x: Range, y: Range) -> Range:
        found = [function(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
        return Range(min(found), max(found))

    return apply


def _product(x: Range, y: Range) -> Range:
    if x.is_size and y.is_size:
        return Range(0, min(x.high * y.high, MOST), True)
    return _corners(lambda a, b: a * b)(x, y)


def _sum(x: Range, y: Range) -> Range:
    if x.is_size and y.is_size:
        return Range(x.low + y.low, min(x.high + y.high, MOST), True)
    return Range(x.low + y.low, x.high + y.high)


def _quotient(x: Range, y: Range) -> Range:
    """No quotient is further from 0 than the dividend; those of sizes are sizes."""
    if x.low >= 0 and y.low >= 0:
        return Range(0, x.high, x.is_size)
    most = max(abs(x.low), abs(x.high))
    return Range(-most, most)


def _rest(x: Range, y: Range) -> Range:
    most = min(max(abs(y.low), abs(y.high)), max(abs(x.low), abs(x.high), abs(y.high)))
    if x.low >= 0 and y.low >= 0:
        return Range(0, min(most, x.high), x.is_size)
    return Range(-most, most)


def _absolute(x: Range) -> Range:
    low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Range(low, max(abs(x.low), abs(x.high)), x.is_size)


def _extreme(choose: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    def apply(x: Range, y: Range) -> Range:
        both = x.is_size and y.is_size
        return Range(choose(x.low, y.low), choose(x.high, y.high), both)

    return apply


# By op; None of the operands is absent.
ARITHMETIC: Mapping[str, Callable[..., Range]] = {
    "add": _sum,
    "subtract": lambda x, y: Range(x.low - y.high, x.high - y.low),
    "multiply": _product,
    "negative": lambda x: Range(-x.high, -x.low),
    "abs": _absolute,
    "square": lambda x: _product(_absolute(x), _absolute(x)),
    "sign": lambda x: Range(-1, 1),
    "floor_divide": _quotient,
    "truncate_divide": _quotient,
    "remainder": _rest,
    "fmod": _rest,
    "maximum": _extreme(max),
    "minimum": _extreme(min),
    "clip": lambda x, low=None, high=None: _extreme(min)(
        _extreme(max)(x, low or x), high or low or x
    ),
}
# The same arithmetic over an axis.
_EXTREMES = ("reduce_max", "reduce_min", "cummax", "cummin")


def _converted(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    (source,) = node.operands
    return Range(0, 1) if source.tensor.dtype.kind == "bool" else given[0]


def _place(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    """Places and counts are at most the number of elements there are."""
    if output.index == 0 and node.op in _WITH_VALUES:
        return given[0]
    found = _largest([value.tensor.size for value in node.operands])
    # Where a window has nothing but padding there is no place.
    return Range(-1, found.high) if node.op == "max_pool_with_indices" else found


def _largest(dims: Sequence[Dim]) -> Range:
    known = [dim for dim in dims if isinstance(dim, int)]
    return Range(0, max([0, *known]), True) if len(known) == len(dims) else SIZE


def _shape(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    return _largest(node.operands[0].tensor.shape)


def _counted(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    shape = output.tensor.shape
    dim = shape[int(node.attrs.get("axis", 0))]  # type: ignore[arg-type] # an axis is an int
    first: Any = node.attrs.get("start", 0)
    step: Any = node.attrs.get("step", 1)
    if not isinstance(dim, int):
        return SIZE if (first, step) == (0, 1) else None
    last = first + step * max(dim - 1, 0)
    return Range(min(first, last), max(first, last), min(first, last) >= 0)


def _ranged(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    start, stop, _ = given
    return None if start is None or stop is None else start.join(stop)


def _chosen(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    return given[1].join(given[2]) if given[1] and given[2] else None


def _reduced(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    """Extremes of something; of nothing they are those of the dtype."""
    shape = node.operands[0].tensor.shape
    return given[0] if given[0] and all(isinstance(d, int) and d > 0 for d in shape) else None


def _summed(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    terms, known = node.operands[0].tensor.size, given[0]
    if known is None or not isinstance(terms, int):
        return None
    return Range(min(known.low * terms, 0), max(known.high * terms, 0))


def _multiplied(node: Node, output: Value, given: Sequence[Range | None]) -> Range | None:
    return SIZE if given[0] and given[0].is_size else None


_WITH_VALUES = ("max_pool_with_indices", "top_k", "dynamic_top_k", "unique")
SPECIAL: Mapping[str, Callable[[Node, Value, Sequence[Range | None]], Range | None]] = {
    "cast": _converted,
    "where": _chosen,
    "range": _ranged,
    "shape_of": _shape,
    "size_of": _place,
    **dict.fromkeys(("iota", "arange"), _counted),
    **dict.fromkeys(("argmax", "argmin", "argsort", "nonzero", "searchsorted"), _place),
    **dict.fromkeys((*_WITH_VALUES, "non_max_suppression"), _place),
    **dict.fromkeys(_EXTREMES, _reduced),
    **dict.fromkeys(("reduce_sum", "cumsum"), _summed),
    "reduce_prod": _multiplied,
    "sort": lambda node, output, given: given[0],
}
