"""Prove that the elements of a value lie within an interval, as far as the graph tells it.

Asked from a goal backwards, so that ends may be symbolic: ``argmax`` along an axis of n elements is
at most n - 1. What has been checked once counts as proven from then on. An element that does not
exist is in no interval's way: of a tensor that has elements, no axis is empty.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from fusewire.facts.known import Facts
from fusewire.facts.ranges import ranges, whole_range
from fusewire.ir.dims import (
    Dim,
    Sym,
    Symbol,
    dim_max,
    is_at_most,
    lone_symbol,
    substitute,
)
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import Range
from fusewire.ops.requires import Interval
from fusewire.ops.table import get_op

# Deep enough for what programs do to an index; a hostile graph must not cost more.
_DEPTH = 24
# Ops that move elements, and put others around or between them.
_PADDING = ("pad", "dynamic_pad", "max_unpool", "unfold")
# Ops whose elements follow from the type of their operand.
_OF_TYPES = ("shape_of", "size_of")
# One end of an interval, and whether it is the upper one.
_End: TypeAlias = "tuple[Dim, bool]"


class Prover:
    """Proves intervals for the values of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._assumed: dict[Value, list[Interval]] = {}
        self._filled: dict[Symbol, Dim] = {}
        self._exact: dict[Value, bool] = {}

    def proves(self, value: Value, intervals: Sequence[Interval]) -> bool:
        """Tell whether all elements lie within; several intervals are for the last axis."""
        shape = value.tensor.shape
        if any(dim == 0 for dim in shape):
            return True
        # A symbol that is a whole dim is at least 1: otherwise there are no elements.
        lone = [found for dim in shape if (found := lone_symbol(dim)) is not None]
        self._filled = {found: Sym({((found, 1),): 1}) + 1 for found in lone}
        for column, (low, high) in enumerate(intervals):
            at = column if len(intervals) > 1 else None
            if not (self._holds(value, (low, False), at) and self._holds(value, (high, True), at)):
                return False
        return True

    def assume(self, value: Value, intervals: Sequence[Interval]) -> None:
        """Take as proven what is checked before anything uses the value."""
        if len(intervals) == 1:
            self._assumed.setdefault(value, []).append(intervals[0])

    @cached_property
    def _facts(self) -> Facts:
        facts = Facts(self._graph)
        for node in self._graph.nodes:
            facts.learn(node)
        return facts

    def _range(self, value: Value) -> Range | None:
        """Return what is known of the elements without symbols."""
        known = self._ranges.get(value)
        for low, high in self._assumed.get(value, ()):
            if known is not None and isinstance(low, int) and isinstance(high, int):
                known = Range(max(known.low, low), min(known.high, high))
        return known

    @cached_property
    def _ranges(self) -> Mapping[Value, Range]:
        return ranges(self._graph)

    def _is_exact(self, value: Value, depth: int = 0) -> bool:
        """Tell whether no number on the way to a value can leave its dtype; facts ignore that."""
        if value.constant is not None:
            return True
        whole = whole_range(value)
        if whole is None or value.node is None or depth == _DEPTH:
            return False
        if value.node.op in _OF_TYPES:
            return True
        if value not in self._exact:
            known = self._ranges[value]
            is_told = known.low > whole.low or known.high < whole.high
            self._exact[value] = is_told and all(
                self._is_exact(part, depth + 1) for part in value.node.operands
            )
        return self._exact[value]

    def _reaches(self, number: Dim, end: _End) -> bool:
        """Tell whether a number is on the inner side of an end."""
        limit, is_upper = end
        number, limit = substitute(number, self._filled), substitute(limit, self._filled)
        return is_at_most(number, limit) if is_upper else is_at_most(limit, number)

    def _holds(self, value: Value, end: _End, column: int | None, depth: int = 0) -> bool:
        # Ops of a package may move other values than tensors.
        if whole_range(value) is None:
            return False
        if column is not None and value.constant is not None:
            part = value.constant.array[..., column]
            return self._reaches(int(part.max() if end[1] else part.min()), end)
        known = self._range(value)
        if known is not None and self._reaches(known.high if end[1] else known.low, end):
            return True
        if any(self._reaches(ends[end[1]], end) for ends in self._assumed.get(value, ())):
            return True
        elements = self._facts.elements(value) if column is None else None
        if elements is not None and self._is_exact(value):
            return all(self._reaches(dim, end) for dim in elements.flat)
        node = value.node
        if node is None or depth == _DEPTH:
            return False
        if column is not None:
            return self._column_holds(node, value, end, column, depth + 1)
        return self._made_holds(node, value, end, depth + 1)

    def _made_holds(self, node: Node, value: Value, end: _End, depth: int) -> bool:
        """Follow what a node makes of its operands."""
        place = _PLACES.get(node.op)
        if place is not None and end[1] and (most := place(node, value)) is not None:
            return self._reaches(most, end)
        parts = self._parts(node, value)
        if parts is not None:
            return all(self._holds(part, end, None, depth) for part in parts)
        if node.op in ("minimum", "maximum"):
            choose = any if (node.op == "minimum") == end[1] else all
            return choose(self._holds(part, end, None, depth) for part in node.operands)
        if node.op in ("add", "subtract"):
            return self._sum_holds(node, value, end, depth)
        if node.op == "range":
            return self._counted_holds(node, end, depth)
        return False

    def _parts(self, node: Node, value: Value) -> list[Value] | None:
        """List values whose elements are all that the value consists of; None if it is computed."""
        op = get_op(node.op)
        if node.op == "cast":
            (source,) = node.operands
            known, room = self._range(source), _whole(value)
            fits = known is not None and known.within(room.low, room.high)
            return [source] if fits else None
        if node.op == "where":
            return list(node.operands[1:])
        if node.op in ("scatter_elements", "scatter_nd") and node.attrs["reduction"] == "set":
            return [node.operands[0], node.operands[2]]
        if node.op in ("sort", "top_k", "dynamic_top_k") and value.index == 0:
            return [node.operands[0]]
        if not op.is_(Trait.MOVEMENT) or node.op in _PADDING:
            return None
        names = itertools.chain(op.parameters[0], itertools.repeat(""))
        hidden = (*op.index_operands, "mask", "condition")
        pairs = zip(names, node.inputs, strict=False)
        return [part for name, part in pairs if part is not None and name not in hidden]

    def _sum_holds(self, node: Node, value: Value, end: _End, depth: int) -> bool:
        """Move a number of known range to the other side, where nothing can overflow."""
        room = _whole(value)
        first, second = node.operands
        x, y = self._range(first), self._range(second)
        if x is None or y is None:
            return False
        if node.op == "subtract":
            y = Range(-y.high, -y.low)
        if not Range(x.low + y.low, x.high + y.high).within(room.low, room.high):
            return False
        limit, is_upper = end
        if self._holds(first, (limit - (y.high if is_upper else y.low), is_upper), None, depth):
            return True
        if node.op == "subtract":
            return False
        return self._holds(second, (limit - (x.high if is_upper else x.low), is_upper), None, depth)

    def _counted_holds(self, node: Node, end: _End, depth: int) -> bool:
        """Numbers from start up to stop, which is not among them."""
        start, stop, step = node.operands
        by = self._range(step)
        if by is None or by.low < 1:
            return False
        limit, is_upper = end
        if is_upper:
            return self._holds(stop, (limit + 1, True), None, depth)
        return self._holds(start, (limit, False), None, depth)

    def _column_holds(self, node: Node, value: Value, end: _End, column: int, depth: int) -> bool:
        """Prove it of one place along the last axis, or of all of them."""
        source = node.operands[0] if node.operands else value
        made = source.node
        if node.op == "transpose" and made is not None and made.op == "nonzero" and end[1]:
            return self._reaches(made.operands[0].tensor.shape[column] - 1, end)
        if node.op in ("concat", "stack") and node.attrs["axis"] in (-1, value.tensor.rank - 1):
            return self._part_holds(node, end, column, depth)
        is_whole = node.op in ("reshape", "broadcast_to", "cast")
        if is_whole and source.tensor.shape[-1:] == value.tensor.shape[-1:]:
            parts = self._parts(node, value)
            return parts is not None and self._holds(parts[0], end, column, depth)
        return self._made_holds(node, value, end, depth)

    def _part_holds(self, node: Node, end: _End, column: int, depth: int) -> bool:
        for part in node.operands:
            wide = part.tensor.shape[-1] if node.op == "concat" else 1
            if not isinstance(wide, int):
                return False
            if column < wide:
                at = column if wide > 1 else None
                return self._holds(part, end, at, depth)
            column -= wide
        return False


def _whole(value: Value) -> Range:
    whole = whole_range(value)
    assert whole is not None, "only integers are followed"
    return whole


def _along_axis(node: Node, value: Value) -> Dim | None:
    return node.operands[0].tensor.shape[_axis(node)] - 1


def _first_along_axis(node: Node, value: Value) -> Dim | None:
    """Return the last place, or 0: that is the place of the largest of no elements."""
    return dim_max(node.operands[0].tensor.shape[_axis(node)] - 1, 0)


def _counted(node: Node, value: Value) -> Dim | None:
    return value.tensor.shape[_axis(node)] - 1


def _axis(node: Node) -> int:
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    return axis


def _nonzero(node: Node, value: Value) -> Dim | None:
    lasts = [dim - 1 for dim in node.operands[0].tensor.shape]
    # A scalar has no axes, and so no places to list.
    none: Dim = -1
    return functools.reduce(dim_max, lasts, none)


def _second_output(node: Node, value: Value) -> Dim | None:
    return _along_axis(node, value) if value.index == 1 else None


# The largest place that an op can give, by op.
_PLACES: Mapping[str, Callable[[Node, Value], Dim | None]] = {
    "argmax": _first_along_axis,
    "argmin": _first_along_axis,
    "argsort": _along_axis,
    "top_k": _second_output,
    "dynamic_top_k": _second_output,
    "iota": _counted,
    "nonzero": _nonzero,
}
