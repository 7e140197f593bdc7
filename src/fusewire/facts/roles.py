"""Whether an integer tensor is only ever an index or a shape, or carries data.

A value is an index if all its uses are operands that ops declare as indices, or movement and
arithmetic that lead to nothing else. Arithmetic counts only where its operands are sizes, or known
to fit int32 once what enters the graph does (within ``ENTERING``): a product that overflows is no
index any more. A role says what a value is for, and not that it fits: see
``fusewire.rewrite.narrowing``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

from fusewire.facts.ranges import ranges, whole_range
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import MOST, Range
from fusewire.ops.table import get_op

Role = Literal["index", "data"]
# Sums and differences of two such numbers fit int32.
ENTERING = Range(-(2**30), 2**30 - 1)


def roles(graph: Graph) -> Mapping[Value, Role]:
    """Tell the role of every value of a graph and of the bodies in it."""
    found: dict[Value, Role] = {}
    _assign(graph, ["data"] * len(graph.outputs), found)
    return found


def _assign(graph: Graph, outputs: Sequence[Role], found: dict[Value, Role]) -> list[Role]:
    """Go from the outputs, whose roles are given, to the inputs; give the roles of those."""
    known = ranges(graph, ENTERING, longest=MOST, sizes_fit=True)
    uses: dict[Value, Role] = {}

    def use(value: Value, role: Role) -> None:
        if role == "data" or value not in uses:
            uses[value] = role

    for value, role in zip(graph.outputs, outputs, strict=True):
        use(value, role)
    for node in reversed(graph.nodes):
        made = [_role(v, uses) for v in node.outputs]
        given = _operand_roles(node, made, known, found)
        for operand, role in zip(node.inputs, given, strict=True):
            if operand is not None:
                use(operand, role)
    values = [*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)]
    for value in values:
        role = _role(value, uses)
        # A body that two nodes share carries data if it does so for one of them.
        found[value] = "data" if found.get(value) == "data" else role
    return [_role(v, uses) for v in graph.inputs]


def _role(value: Value, uses: Mapping[Value, Role]) -> Role:
    # Of what nobody uses, no bit counts.
    return uses.get(value, "index") if whole_range(value) is not None else "data"


def _operand_roles(
    node: Node, made: Sequence[Role], known: Mapping[Value, Range], found: dict[Value, Role]
) -> list[Role]:
    """Tell as what a node uses its operands, given the roles of what it makes."""
    op = get_op(node.op)
    if op.is_(Trait.CONTROL):
        return _body_roles(node, made, found)
    names = itertools.chain(op.parameters[0], itertools.repeat(""))
    counts = op.is_(Trait.COUNTING)
    leads: Role = "index" if "data" not in made else "data"

    def role(name: str, value: Value | None) -> Role:
        # An index operand of an op that counts tells what the elements are, not where.
        if name in op.index_operands and not counts:
            return "index"
        if counts:
            found = known.get(value) if value is not None else None
            return leads if found and found.fits_int32 else "data"
        return leads if op.is_(Trait.MOVEMENT) else "data"

    return [role(name, value) for name, value in zip(names, node.inputs, strict=False)]


def _body_roles(node: Node, made: Sequence[Role], found: dict[Value, Role]) -> list[Role]:
    """Look into the bodies; what a loop carries is an index only if it stays one."""
    layout = get_op(node.op).layout
    assert layout is not None, f"{node.op} runs subgraphs"
    if "carries" not in node.attrs:
        both = [_assign(body, made, found) for _, body in node.graphs()]
        fixed: list[Role] = ["data"] * layout.fixed
        return [
            *fixed,
            *("data" if "data" in pair else "index" for pair in zip(*both, strict=True)),
        ]
    carried, lead = layout.carries(node), len(layout.leading)
    guess = list(made)
    while True:
        given = _loop_inputs(node, guess, layout.flags, found)
        kept: list[Role] = [
            "data" if "data" in (guess[i], given[lead + i]) else "index" for i in range(carried)
        ]
        if kept == guess[:carried]:
            break
        guess[:carried] = kept
    first: list[Role] = ["index", "data"] if lead else []
    return [*first, *given[lead:]]


def _loop_inputs(
    node: Node, guess: Sequence[Role], flags: int, found: dict[Value, Role]
) -> list[Role]:
    (body,) = (b for key, b in node.graphs() if key == "body")
    tested = [b for key, b in node.graphs() if key == "condition"]
    tells: list[Role] = ["data"] * flags
    given = _assign(body, [*tells, *guess], found)
    for condition in tested:
        also = _assign(condition, ["data"], found)
        pairs = zip(given, also, strict=True)
        given = ["data" if "data" in pair else "index" for pair in pairs]
    return given
