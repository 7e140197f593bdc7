"""Ranges of the elements of integer tensors, as far as a graph determines them.

Known are constants, sizes, places, and what ops declare of what they make (``value_range``); an op
that moves elements keeps the range of those it moves. The rest may be any number of its dtype.
Floats are followed as long as they are whole numbers that their dtype holds exactly. What a loop
carries is followed through as many rounds as there may be: a counter begins with a number and grows
by another in each. That takes only the few nodes which make the next number of the one before.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusewire.dtypes import ALL
from fusewire.ir.graph import Constant, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import LONGEST, MOST, SHIFTED, Known, Range
from fusewire.ops.table import get_op

_OF_DTYPES = {of.name: Range(int(of.range[0]), int(of.range[1])) for of in ALL if of.is_integer}
# What makes whole numbers of whole numbers, besides ops that move them.
_WHOLE = frozenset({"cast", "add", "subtract", "multiply", "negative"})
# Loops with more rounds are not followed, nor integers that more nodes make.
_MOST_ROUNDS = 4096
_MOST_NODES = 32


def ranges(
    graph: Graph,
    entering: Range | None = None,
    *,
    longest: int = LONGEST,
    given: Mapping[Value, Range] | None = None,
    sizes_fit: bool = False,
) -> Mapping[Value, Range]:
    """Find the range of every integer tensor of a graph; of bodies, nothing.

    ``entering`` is what the graph's inputs are taken to lie within, besides their dtypes, and
    ``given`` what some are known to. No axis is longer than ``longest``, and no place or count
    larger; if ``sizes_fit``, no sum or product of sizes either.
    """
    known: dict[Value, Range] = {}
    for value in graph.inputs:
        whole = whole_range(value)
        if whole is not None:
            limited = entering is not None and not whole.within(entering.low, entering.high)
            known[value] = entering if limited and entering is not None else whole
    known |= given or {}
    known |= constant_ranges(graph)
    follow(graph.nodes, known, longest, sizes_fit=sizes_fit)
    return known


def constant_ranges(graph: Graph) -> dict[Value, Range]:
    """Find the ranges of the constants of a graph."""
    known: dict[Value, Range] = {}
    for value in graph.constants:
        if value.constant is None:
            continue
        if whole_range(value) is not None:
            known[value] = constant_range(value.constant)
        elif (most := _most_whole(value)) and value.tensor.size == 1:
            number = float(value.constant.array.reshape(()))
            if number.is_integer() and abs(number) <= most:
                known[value] = Range(int(number), int(number))
    return known


def follow(
    nodes: Sequence[Node],
    known: dict[Value, Range],
    longest: int = LONGEST,
    *,
    sizes_fit: bool = False,
) -> None:
    """Add the ranges of what nodes make."""
    for node in nodes:
        operands = [None if v is None else known.get(v) for v in node.inputs]
        for value in node.outputs:
            whole = whole_range(value)
            if whole is not None:
                told = _told(node, value, operands, longest)
                if told and told.is_size and sizes_fit:
                    told = replace(told, high=min(told.high, longest))
                known[value] = _within_dtype(told, whole)
            # Few floats are made of integers: the rest of a graph takes no time here.
            elif any(operands) and _makes_whole(node) and (most := _most_whole(value)):
                told = _told(node, value, operands, longest)
                if told and told.within(-most, most):
                    known[value] = replace(told, is_size=False)


def _within_dtype(told: Range | None, whole: Range) -> Range:
    """Return a range, or all of the dtype where that may be left.

    A place that does not fit becomes a smaller number, so that its last one stays the last.
    """
    if told is None or told.within(whole.low, whole.high):
        return told or whole
    return replace(whole, is_size=told.is_size, last=told.last)


def _most_whole(value: Value) -> int:
    """Return up to where a float tensor's dtype holds every whole number; 0 for other values."""
    of = value.type.dtype if isinstance(value.type, TensorType) else None
    return round(2 / of.eps) if of is not None and of.is_float else 0


def _makes_whole(node: Node) -> bool:
    return node.op in _WHOLE or get_op(node.op).is_(Trait.MOVEMENT)


def whole_range(value: Value) -> Range | None:
    """Give all that an integer tensor's dtype can hold; None for other values."""
    return _OF_DTYPES.get(value.type.dtype.name) if isinstance(value.type, TensorType) else None


def constant_range(constant: Constant) -> Range:
    """Look at the elements; an empty tensor has none to be out of any range."""
    array = constant.array
    if array.size == 0:
        return Range(0, 0)
    low, high = int(array.min()), int(array.max())
    return Range(low, high, low >= 0 and high <= MOST)


def _told(node: Node, output: Value, operands: Known, longest: int) -> Range | None:
    told = followed(node, output, operands)
    # As long as an axis, or as many as there are elements.
    return replace(told, high=longest) if told and told.high == LONGEST else told


def followed(node: Node, output: Value, operands: Known) -> Range | None:
    """Bound an output by the ranges of the operands, in exact arithmetic."""
    op = get_op(node.op)
    if op.value_range is not None:
        return op.value_range(node, output, operands)
    return _moved(node, operands) if op.is_(Trait.MOVEMENT) else None


def shifted_together(node: Node, output: Value) -> Sequence[Sequence[int]]:
    """List the operands that shift an output as they are shifted together."""
    op = get_op(node.op)
    if op.value_range is not None:
        return SHIFTED.get(op.value_range, ()) if output.index == 0 else ()
    return (_places_moved(node),) if op.is_(Trait.MOVEMENT) else ()


def _places_moved(node: Node) -> Sequence[int]:
    """List the operands whose elements end up in the output."""
    op = get_op(node.op)
    names = (*op.parameters[0], *itertools.repeat("", len(node.inputs)))
    hidden = (*op.index_operands, "mask", "condition")
    pairs = enumerate(zip(names, node.inputs, strict=False))
    return [at for at, (name, value) in pairs if value is not None and name not in hidden]


def _moved(node: Node, operands: Known) -> Range | None:
    """Cover all operands whose elements end up in the output."""
    moved = [operands[at] for at in _places_moved(node)]
    known = [range_ for range_ in moved if range_ is not None]
    return functools.reduce(Range.join, known) if known and len(known) == len(moved) else None


def carried(node: Node, body: Graph, known: Mapping[Value, Range]) -> dict[Value, Range]:
    """Find the ranges of the inputs of a loop's body, of integers that do not depend on others.

    ``known`` is what the operands of the loop lie within.
    """
    layout = get_op(node.op).layout
    trips = node.inputs[0] if node.op == "loop" else None
    if layout is None or trips is None or not 0 < known[trips].high <= _MOST_ROUNDS:
        return {}
    rounds = known[trips].high
    found = {body.inputs[0]: Range(0, rounds - 1)}
    ends: dict[Value, Value] = {}
    for place, value in enumerate(body.inputs):
        operand = node.inputs[place + layout.skipped] if place >= len(layout.leading) else None
        if operand is None or operand not in known or whole_range(value) is None:
            continue
        number = place - len(layout.leading)
        is_carried = number < layout.carries(node)
        end = body.outputs[layout.flags + number] if is_carried else value
        # What grows in each round is no size.
        found[value] = Range(known[operand].low, known[operand].high)
        if end is not value:
            ends[value] = end
    return _after_rounds(body, found, ends, rounds)


def _after_rounds(
    body: Graph, found: dict[Value, Range], ends: Mapping[Value, Value], rounds: int
) -> dict[Value, Range]:
    """Follow integers through rounds; leave out those that it would take too many nodes for."""
    steps = {value: _leading_to(end) for value, end in ends.items()}
    few = {value for value, nodes in steps.items() if len(nodes) <= _MOST_NODES}
    found = {value: range_ for value, range_ in found.items() if value not in ends or value in few}
    needed = {node for value in few for node in steps[value]}
    nodes = [node for node in body.nodes if node in needed]
    constants = constant_ranges(body)
    for _ in range(rounds):
        known = {**constants, **found}
        follow(nodes, known)
        after = {value: found[value].join(_end_range(ends[value], known)) for value in few}
        if all(after[value] == found[value] for value in few):
            break
        found |= after
    return found


def _end_range(end: Value, known: Mapping[Value, Range]) -> Range:
    whole = whole_range(end)
    assert whole is not None, "it has the type of an integer that is carried"
    return known.get(end, whole)


def _leading_to(end: Value) -> Sequence[Node]:
    """List the nodes that a value is made by, as long as they are few."""
    found: list[Node] = []
    waiting = [end]
    while waiting and len(found) <= _MOST_NODES:
        maker = waiting.pop().node
        if maker is not None and maker not in found:
            found.append(maker)
            waiting += maker.operands
    return found
