"""Prove that the elements of a value lie within an interval, as far as the graph tells it.

Ends may be symbolic: ``argmax`` along an axis of n elements is at most n - 1. So numbers are
counted from such an end, and followed by what ops declare of ranges: what is at most 0 from there
is at most the end. What has been checked once counts as proven from then on. An element that does
not exist is in no interval's way: of a tensor that has elements, no axis is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from fusewire.facts.known import Facts
from fusewire.facts.ranges import followed, ranges, shifted_together, whole_range
from fusewire.ir.dims import Dim, Sym, Symbol, least_distance, lone_symbol, substitute
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.ranges import Range
from fusewire.ops.requires import Interval

# Deep enough for what programs do to an index; a hostile graph must not cost more.
_DEPTH = 24
# Ops whose elements follow from the type of their operand.
_OF_TYPES = ("shape_of", "size_of")
# Ends that are not known: no steps on so deep a way lead back from there.
_FAR = Range(-(2**128), 2**128)
# Of elements that do not exist.
_NONE = Range(_FAR.high, _FAR.low)
# One end of an interval, and whether it is the upper one.
_End: TypeAlias = tuple[Dim, bool]
# What values lie within, counted from one size, and how deep each was met.
_Seen: TypeAlias = dict[Value, tuple[int, Range]]


class Prover:
    """Proves intervals for the values of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._assumed: dict[Value, list[Interval]] = {}
        self._filled: dict[Symbol, Dim] = {}
        self._exact: dict[Value, bool] = {}

    def proves(self, value: Value, intervals: Sequence[Interval]) -> bool:
        """Tell whether all elements lie within; several intervals are for the last axis."""
        # A symbol that is a whole dim is at least 1: otherwise there are no elements.
        lone = [found for dim in value.tensor.shape if (found := lone_symbol(dim)) is not None]
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
        known = self._ranges.get(value, whole_range(value))
        for low, high in self._assumed.get(value, ()):
            if known is not None and isinstance(low, int) and isinstance(high, int):
                known = replace(known, low=max(known.low, low), high=min(known.high, high))
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

    def _holds(self, value: Value, end: _End, column: int | None) -> bool:
        base, is_upper = end
        # Ops of a package may move other values than tensors.
        if whole_range(value) is None:
            return False
        # Mostly this is enough.
        found = self._told(base, value)
        if found.high > 0 if is_upper else found.low < 0:
            seen: _Seen = {}
            if column is None:
                found = self._from(base, value, seen)
            else:
                found = self._column_from(base, value, column, seen)
        return found.high <= 0 if is_upper else found.low >= 0

    def _from(self, base: Dim, value: Value, seen: _Seen, depth: int = 0) -> Range:
        """Return what the elements of a value lie within, counted from a size."""
        if value not in seen or seen[value][0] > depth:
            found = self._told(base, value)
            elements = self._facts.elements(value)
            if elements is not None and elements.size and self._is_exact(value):
                each = [self._counted(base, dim, dim) for dim in elements.flat]
                found = found.meet(functools.reduce(Range.join, each))
            if depth < _DEPTH and value.node is not None:
                found = found.meet(self._made(base, value.node, value, seen, depth + 1))
            seen[value] = depth, found
        return seen[value][1]

    def _told(self, base: Dim, value: Value) -> Range:
        """Return what ranges and checks tell of a value."""
        known = self._range(value)
        assert known is not None, "integers are followed, and floats that are known to be whole"
        if 0 in value.tensor.shape:
            return _NONE
        found = self._counted(base, known.low, known.high)
        if known.last is not None:
            found = found.meet(self._counted(base, known.low, known.last))
        for low, high in self._assumed.get(value, ()):
            found = found.meet(self._counted(base, low, high))
        return found

    def _counted(self, base: Dim, low: Dim, high: Dim) -> Range:
        """Count an interval from a size."""
        if self._filled:
            base, low, high = (substitute(dim, self._filled) for dim in (base, low, high))
        above, below = least_distance(base, low), least_distance(high, base)
        return Range(_FAR.low if above is None else above, _FAR.high if below is None else -below)

    def _made(self, base: Dim, node: Node, value: Value, seen: _Seen, depth: int) -> Range:
        """Follow what a node makes of its operands, where nothing can leave the dtype."""
        found, whole = _FAR, whole_range(value)
        if whole is None:
            return found
        numbers = [None if part is None else self._range(part) for part in node.inputs]
        told = followed(node, value, numbers)
        if told is None or not told.within(whole.low, whole.high):
            return found
        for shifted in shifted_together(node, value):
            parts = {at: v for at, v in enumerate(node.inputs) if at in shifted and v is not None}
            # Bools are not counted from anything.
            if any(numbers[at] is None for at in parts):
                continue
            operands = [*numbers]
            for at, part in parts.items():
                operands[at] = self._from(base, part, seen, depth)
            told = followed(node, value, operands)
            assert told is not None, "the same operands are known"
            found = found.meet(told)
        return found

    def _column_from(
        self, base: Dim, value: Value, column: int, seen: _Seen, depth: int = 0
    ) -> Range:
        """Return what one place along the last axis holds, counted from a size."""
        if value.constant is not None:
            part = value.constant.array[..., column]
            return self._counted(base, int(part.min()), int(part.max()))
        found, node = self._from(base, value, seen), value.node
        if node is None or depth == _DEPTH:
            return found
        listed = node.operands[0].node if node.op == "transpose" else None
        if listed is not None and listed.op == "nonzero" and node.attrs["perm"] == (1, 0):
            last = listed.operands[0].tensor.shape[column] - 1
            return found.meet(self._counted(base, 0, last))
        source, at = self._part(node, value, column)
        if source is None:
            return found
        if at is None:
            return found.meet(self._from(base, source, seen))
        return found.meet(self._column_from(base, source, at, seen, depth + 1))

    def _part(self, node: Node, value: Value, column: int) -> tuple[Value | None, int | None]:
        """Find the operand with the elements of a column, and their column there if it has some."""
        if node.op in ("concat", "stack") and node.attrs["axis"] in (-1, value.tensor.rank - 1):
            return _beside(node, column)
        if node.op in ("reshape", "broadcast_to", "cast"):
            source, whole = node.operands[0], whole_range(value)
            known = self._range(source)
            fits = known is not None and whole is not None and known.within(whole.low, whole.high)
            if fits and source.tensor.shape[-1:] == value.tensor.shape[-1:]:
                return source, column
        return None, None


def _beside(node: Node, column: int) -> tuple[Value | None, int | None]:
    """Find a column among operands that stand beside each other."""
    for part in node.operands:
        wide = part.tensor.shape[-1] if node.op == "concat" else 1
        if not isinstance(wide, int):
            break
        if column < wide:
            return part, column if wide > 1 else None
        column -= wide
    return None, None
