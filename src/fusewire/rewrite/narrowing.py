"""Which 64-bit integers an engine may hold in 32 bits, and what its calls must satisfy for that.

An engine that computes in 32 bits asks here, and decides nothing by itself. A value is narrow if
every number that it can be fits int32, in the exact arithmetic of ``fusewire.facts.ranges``: then
what is proven of it in 64 bits is what the engine computes. Where that depends on what enters the
graph, it is named, and the engine checks it at its door, before anything is narrowed: integers that
become indices lie within ``ENTERING``, and sizes fit. A call that does not comply is not the
caller's mistake, and is answered by the fallback.

The rest keeps its 64 bits, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fusewire.dtypes import int64, uint64
from fusewire.errors import DimError
from fusewire.facts.known import Facts
from fusewire.facts.ranges import ranges, whole_range
from fusewire.facts.roles import ENTERING, roles
from fusewire.ir.dims import Apply, Dim, Sym, lone_symbol, substitute, symbols
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import MOST, Range
from fusewire.ops.subgraph import Bound, bound_by, carried, dims_of, with_shape
from fusewire.ops.table import get_op

# A number of rounds, which engines count in 32 bits.
_ROUNDS = Range(0, MOST)


class Narrowing:
    """The narrow values of a graph and of the bodies in it.

    With ``guarded``, all 64-bit integers that enter the graph are taken to be checked, and not only
    those that become indices. ``entering`` are the inputs that must lie within ``ENTERING``, and
    ``sizes`` what must fit int32, as functions of the sizes of the graph's inputs.
    """

    def __init__(self, graph: Graph, guarded: bool = False) -> None:
        self._uses = roles(graph)
        self.entering = frozenset(
            value
            for value in graph.inputs
            if _is_long(value) and (guarded or self._uses[value] == "index")
        )
        inputs = [value.type for value in graph.inputs if isinstance(value.type, TensorType)]
        lone = ((lone_symbol(dim), dim) for type_ in inputs for dim in type_.shape)
        self._sizes: dict[Dim, None] = {}
        self._narrow: dict[Value, bool] = {}
        bound = {found: dim for found, dim in lone if found is not None}
        self._add(graph, dict.fromkeys(self.entering, ENTERING), bound)

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """What must fit, each size once."""
        return tuple(self._sizes)

    def is_narrow(self, value: Value) -> bool:
        """Tell whether every number that a 64-bit integer can be fits int32."""
        return self._narrow.get(value, False)

    def _check(self, dims: Iterable[Dim], bound: Bound) -> None:
        """Have sizes checked, as far as the graph's inputs determine them."""
        for dim in dims:
            for part in _parts(dim):
                found = _outside(part, bound)
                if isinstance(found, Sym) or (found is not None and not _may_fit(found)):
                    self._sizes[found] = None

    def _add(self, graph: Graph, given: Mapping[Value, Range], bound: Bound) -> None:
        self._check(_sizes_read(graph), bound)
        known = ranges(graph, longest=MOST, given=given)
        narrow = {value for value in known if _is_long(value) and known[value].fits_int32}
        if bound:
            narrow |= self._sizes_computed(graph, known, given, bound)
        made = (value for node in graph.nodes for value in node.outputs)
        for value in (*graph.inputs, *graph.constants, *made):
            # A body that two nodes share is narrow if it is so for both.
            self._narrow[value] = value in narrow and self._narrow.get(value, True)
        for node in graph.nodes:
            for _, body in node.graphs():
                self._add(body, dict(_entering_body(node, body, known)), _bound(node, body, bound))

    def _sizes_computed(
        self,
        graph: Graph,
        known: Mapping[Value, Range],
        given: Mapping[Value, Range],
        bound: Bound,
    ) -> set[Value]:
        """Find what is computed of sizes, and fits wherever the sizes that it comes to do.

        That holds only if all on the way there fits as well: elsewhere facts ignore what wraps.
        What may need more even if its sizes fit is left as it is, and no call is declined for it.
        """
        facts, narrow = Facts(graph), set()
        modest = ranges(graph, longest=MOST, given=given, sizes_fit=True)
        # What must fit, and is not checked yet, for a value to be what its elements say.
        waiting: dict[Value, Mapping[Dim, None]] = {value: {} for value in graph.constants}
        for node in graph.nodes:
            facts.learn(node)
            operands = () if get_op(node.op).is_(Trait.SHAPE) else node.operands
            if any(value not in waiting for value in operands):
                continue
            before = {dim: None for value in operands for dim in waiting[value]}
            for value in node.outputs:
                elements = facts.elements(value)
                if elements is None:
                    continue
                if _is_proven(value, known):
                    waiting[value] = before
                elif (dims := _counted(elements.flat, bound)) is None:
                    continue
                elif not _is_long(value):
                    waiting[value] = before | dims
                elif self._uses[value] == "index" or modest[value].fits_int32:
                    self._check(before | dims, bound)
                    waiting[value] = {}
                    narrow.add(value)
        return narrow


def _is_long(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in (int64, uint64)


def _is_proven(value: Value, known: Mapping[Value, Range]) -> bool:
    """Tell whether a value that is computed neither wraps nor needs more than 32 bits."""
    found, whole = known.get(value), whole_range(value)
    if found is None or whole is None:
        return True
    return found.fits_int32 and not whole.within(found.low, found.high)


def _counted(elements: Iterable[Dim], bound: Bound) -> dict[Dim, None] | None:
    """List the sizes among elements; None where one is not known, or a number does not fit."""
    found: dict[Dim, None] = {}
    for item in elements:
        dim = _outside(item, bound)
        if dim is None or not _may_fit(dim):
            return None
        if isinstance(item, Sym):
            found[item] = None
    return found


def _may_fit(dim: Dim) -> bool:
    """Tell whether all numbers in a size fit, and so a number itself."""
    numbers = [factor for _, factor in dim.terms] if isinstance(dim, Sym) else [dim]
    return all(-MOST - 1 <= number <= MOST for number in numbers)


def _outside(dim: Dim, bound: Bound) -> Dim | None:
    """Express a size by those of the graph's inputs; None where they do not tell."""
    if any(symbol not in bound for symbol in symbols(dim)):
        return None
    try:
        return substitute(dim, bound)
    except DimError:
        # Of a branch that is not taken, sizes may contradict each other.
        return None


def _sizes_read(graph: Graph) -> Iterator[Dim]:
    """List the sizes that an engine counts with: those of axes, and what places go up to."""
    for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs)):
        if isinstance(value.type, TensorType):
            yield from value.type.shape
    for node in graph.nodes:
        for attr in node.attrs.values():
            yield from _dims_in(attr)
        if any(_is_long(value) for value in node.outputs):
            types = (value.type for value in node.operands)
            yield from (type_.size for type_ in types if isinstance(type_, TensorType))


def _parts(dim: Dim) -> Iterator[Sym]:
    """List a size and what is divided or compared on the way to it: sums and products may wrap."""
    if isinstance(dim, Sym):
        yield dim
        atoms = (atom for monomial, _ in dim.terms for atom, _ in monomial)
        for atom in atoms:
            if isinstance(atom, Apply):
                yield from _parts(atom.left)
                yield from _parts(atom.right)


def _dims_in(attr: Attr) -> Iterator[Dim]:
    if isinstance(attr, Sym):
        yield attr
    elif isinstance(attr, tuple):
        for item in attr:
            yield from _dims_in(item)


def _bound(node: Node, body: Graph, around: Bound) -> Bound:
    """Say what the symbols of a body are, but for those that a round changes."""
    layout = get_op(node.op).layout
    if layout is None:
        return {}
    lead, carries = len(layout.leading), layout.carries(node)
    operands = [v.type for v in node.inputs[layout.fixed :] if v is not None]
    for place in range(carries, carries + _scans(node)):
        operands[place] = with_shape(operands[place], dims_of(operands[place])[1:])
    taken = [*layout.leading, *operands]
    inside = dict(bound_by(body, taken, node.op))
    # A name of its own hides the same name around it.
    shapes = [dims_of(value.type) for value in body.inputs]
    own = {lone_symbol(dim) for shape in shapes for dim in shape}
    if carries:
        (turned,) = (graph for key, graph in node.graphs() if key == "body")
        after = [v.type for v in turned.outputs[layout.flags :][:carries]]
        types, *_ = carried(turned, taken, lead, after)
        for shape, (_, axes) in zip(shapes[lead:], types, strict=False):
            moving = {lone_symbol(shape[axis]) for axis in axes}
            inside = {symbol: dim for symbol, dim in inside.items() if symbol not in moving}
    outside = ((symbol, _outside(dim, around)) for symbol, dim in inside.items())
    known = {symbol: dim for symbol, dim in outside if dim is not None}
    return {symbol: dim for symbol, dim in around.items() if symbol not in own} | known


def _scans(node: Node) -> int:
    count = node.attrs.get("scans", 0)
    return count if isinstance(count, int) else 0


def _entering_body(
    node: Node, body: Graph, known: Mapping[Value, Range]
) -> Iterator[tuple[Value, Range]]:
    """Give the ranges of what a body takes and no round changes, and of the number of the round."""
    layout = get_op(node.op).layout
    if layout is None:
        # A composite that was made of nodes is told of nothing, and expanded.
        return
    if "carries" not in node.attrs:
        pairs = zip(body.inputs, node.inputs[layout.fixed :], strict=True)
    else:
        lead, carries = len(layout.leading), layout.carries(node)
        if lead and body.inputs and _is_long(body.inputs[0]):
            yield body.inputs[0], _ROUNDS
        places = range(lead + carries, len(body.inputs))
        pairs = zip(
            [body.inputs[place] for place in places],
            [node.inputs[place + layout.skipped] for place in places],
            strict=True,
        )
    for value, operand in pairs:
        if operand is not None and operand in known and whole_range(value) is not None:
            yield value, known[operand]
