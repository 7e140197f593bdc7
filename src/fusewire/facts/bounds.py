"""Which nodes ask for a size, or for rounds, that only values decide, without a bound.

The host runs such nodes under the limits of the call, and engines run the rest: an engine in this
process would allocate any size and run any number of rounds. What engines make of sizes that the
host found is bounded by ``peaks``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fusewire.facts.ranges import carried, ranges
from fusewire.ir.dims import Dim, Sym, Symbol
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.live import live_at_peak
from fusewire.ir.types import TensorType, type_symbols
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import Range
from fusewire.ops.table import get_op

# An engine drives loops of up to so many rounds, those inside counted as well.
_MOST_ROUNDS = 2**20
# The host drives control flow whose bodies make a value of so many bytes: a body that was not run
# at first contact may be the one that asks for them, and driving it costs little beside them.
_LARGE_BYTES = 2**28
# Values within such a range ask for no more than this.
_PROVEN_BYTES = 2**26
# Sizes for which the peak of a region is looked for.
_PROBES = (1, 2**10, 2**20)


def unbounded(graph: Graph, given: Mapping[Value, Range] | None = None) -> set[Node]:
    """Find the nodes of a graph that only the host may run; bodies are looked into.

    ``given`` is what some inputs are known to lie within.
    """
    found: set[Node] = set()
    known: Mapping[Value, Range] | None = None
    for node in graph.nodes:
        op = get_op(node.op)
        if op.output_shapes is None and not op.is_(Trait.CONTROL):
            continue
        known = ranges(graph, given=given) if known is None else known
        if op.is_(Trait.CONTROL):
            if _is_heavy(node, known):
                found.add(node)
        elif not _is_proven(node, known):
            found.add(node)
    return found | _multiplied(graph)


def _is_proven(node: Node, known: Mapping[Value, Range]) -> bool:
    """Tell whether the operands that decide a size are sizes, or small."""
    op = get_op(node.op)
    deciding = op.index_operands or op.parameters[0]
    for name, value in zip(op.parameters[0], node.inputs, strict=False):
        if value is None or name not in deciding:
            continue
        range_ = known.get(value)
        if range_ is None:
            return False
        count = value.tensor.size
        most = max(abs(range_.low), abs(range_.high), 1)
        is_small = isinstance(count, int) and most**count * 8 <= _PROVEN_BYTES
        if not (range_.is_size or is_small):
            return False
    return True


def _is_heavy(node: Node, known: Mapping[Value, Range]) -> bool:
    """Tell whether control flow may run for too many rounds, or make too much inside."""
    rounds = _rounds(node, known)
    if rounds > _MOST_ROUNDS:
        return True
    for _, body in node.graphs():
        if unbounded(body) and unbounded(body, carried(node, body, known)):
            return True
        if _body_rounds(body) * rounds > _MOST_ROUNDS:
            return True
        layout = get_op(node.op).layout
        assert layout is not None, "it has bodies"
        added = body.outputs[layout.flags + layout.carries(node) :]
        if rounds * sum(map(_static_bytes, added)) >= _LARGE_BYTES:
            return True
        made = (value for inner in body.nodes for value in inner.outputs)
        if any(_static_bytes(value) >= _LARGE_BYTES for value in made):
            return True
    return False


def _rounds(node: Node, known: Mapping[Value, Range]) -> float:
    """Bound the rounds of a node; those that a shape decides count as one."""
    if node.op == "while":
        return math.inf
    if node.op == "scan":
        length = node.attrs["length"]
        return length if isinstance(length, int) else 1
    if node.op != "loop":
        return 1
    trips = node.inputs[0]
    if trips is None:
        return math.inf
    range_ = known[trips]
    is_shape = range_.is_size and trips.constant is None
    return 1 if is_shape else max(range_.high, 0)


def _body_rounds(body: Graph) -> float:
    """Bound the rounds of the loops inside a body, one inside another multiplied."""
    inner = [node for node in body.nodes if get_op(node.op).is_(Trait.CONTROL)]
    if not inner:
        return 1
    known = ranges(body)
    return max(
        _rounds(node, known) * max((_body_rounds(b) for _, b in node.graphs()), default=1)
        for node in inner
    )


def _static_bytes(value: Value) -> int:
    type_ = value.type
    if not isinstance(type_, TensorType) or not isinstance(type_.size, int):
        return 0
    return type_.size * type_.dtype.itemsize


def _multiplied(graph: Graph) -> set[Node]:
    """Find the nodes that count elements, if a later value has a product of such counts."""
    makers: dict[Symbol, Node] = {}
    for node in graph.nodes:
        op = get_op(node.op)
        if op.is_(Trait.UNBACKED) and not op.is_(Trait.CONTROL) and op.family != "dynamic":
            makers |= {s: node for t in node.types for s in type_symbols(t) if s.unbacked}
    if not makers:
        return set()
    found: set[Node] = set()
    for node in graph.nodes:
        for type_ in node.types:
            if isinstance(type_, TensorType) and _degree(type_.size, makers) > 1:
                found |= {makers[s] for s in type_symbols(type_) if s in makers}
    return found


def _degree(dim: Dim, makers: Mapping[Symbol, Node]) -> int:
    """Tell how many counts a size is a product of; the larger of two counts is one."""
    if not isinstance(dim, Sym):
        return 0
    degrees = []
    for monomial, _ in dim.terms:
        degree = 0
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                degree += power * (atom in makers)
            else:
                degree += power * max(_degree(atom.left, makers), _degree(atom.right, makers))
        degrees.append(degree)
    return max(degrees)


def peaks(region: Graph) -> tuple[Dim, ...]:
    """Give what a region holds at once, in bytes, as a function of the sizes of its inputs.

    One expression for each of a few sizes, the largest there; none if no size comes from a value:
    a caller who gives large arrays asks for what they lead to.
    """
    given = {s for v in region.inputs for s in type_symbols(v.type)}
    if not any(s.unbacked for s in given):
        return ()
    found: dict[Dim, None] = {}
    for size in _PROBES:
        sizes = dict.fromkeys(given, size)
        live = live_at_peak(region, sizes)
        total: Dim = 0
        for value in live:
            total = total + value.tensor.size * value.tensor.dtype.itemsize
        if isinstance(total, Sym):
            found[total] = None
    return tuple(found)
