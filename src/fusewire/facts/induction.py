"""What the integers that a loop carries lie within, in all of its rounds.

A counter begins with a number and grows by another in each round: its range is followed through as
many rounds as the loop may have. That takes only the few nodes which make the next number of the
one before, and no values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusewire.facts.ranges import constant_ranges, follow, whole_range
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.ranges import Range
from fusewire.ops.table import get_op

# Loops with more rounds are not followed, nor integers that more nodes make.
_MOST_ROUNDS = 4096
_MOST_NODES = 32


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
