"""Which 64-bit integers an engine may hold in 32 bits, and what its calls must satisfy for that.

An engine that computes in 32 bits asks here, and decides nothing by itself. A value is narrow if
every number that it can be fits int32, in the exact arithmetic of ``fusewire.rewrite.ranges``: then
what is proven of it in 64 bits is what the engine computes. Where that depends on what enters the
graph, it is named, and the engine checks it at its door, before anything is narrowed: integers that
become indices lie within ``ENTERING``, and sizes fit. A call that does not comply is not the
caller's mistake, and is answered by the fallback.

The rest keeps its 64 bits, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fusewire.dtypes import int64, uint64
from fusewire.ir.dims import Apply, Dim, Sym, lone_symbol, symbols
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.ranges import MOST, Range
from fusewire.ops.table import get_op
from fusewire.rewrite.facts import Facts
from fusewire.rewrite.ranges import ranges, whole_range
from fusewire.rewrite.roles import ENTERING, roles

# A number of rounds, which engines count in 32 bits.
_ROUNDS = Range(0, MOST)


class Narrowing:
    """The narrow values of a graph and of the bodies in it.

    With ``guarded``, all 64-bit integers that enter the graph are taken to be checked, and not only
    those that become indices. ``entering`` are the inputs that must lie within ``ENTERING``, and
    ``sizes`` what must fit int32, as functions of the sizes of the graph's inputs.
    """

    def __init__(self, graph: Graph, guarded: bool = False) -> None:
        uses = roles(graph)
        self.entering = frozenset(
            value
            for value in graph.inputs
            if _is_long(value) and (guarded or uses[value] == "index")
        )
        inputs = [value.type for value in graph.inputs if isinstance(value.type, TensorType)]
        lone = (lone_symbol(dim) for type_ in inputs for dim in type_.shape)
        self._symbols = frozenset(found for found in lone if found is not None)
        self._sizes: dict[Dim, None] = {}
        self._narrow: set[Value] = set()
        self._wide: set[Value] = set()
        self._check(_sizes_read(graph))
        self._add(graph, dict.fromkeys(self.entering, ENTERING))

    @property
    def sizes(self) -> tuple[Dim, ...]:
        """What must fit, each size once."""
        return tuple(self._sizes)

    def is_narrow(self, value: Value) -> bool:
        """Tell whether every number that a 64-bit integer can be fits int32."""
        # A body that two nodes share is narrow if it is so for both.
        return value in self._narrow and value not in self._wide

    def _check(self, dims: Iterable[Dim]) -> None:
        self._sizes |= dict.fromkeys(
            part for dim in dims for part in _parts(dim) if self._symbols.issuperset(symbols(part))
        )

    def _add(self, graph: Graph, given: Mapping[Value, Range], is_body: bool = False) -> None:
        known = dict(ranges(graph, longest=MOST, given=given))
        narrow = {value for value in known if _is_long(value) and known[value].fits_int32}
        if self._symbols and not is_body:
            narrow |= self._sizes_computed(graph, known)
        every = {*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)}
        self._narrow |= narrow
        self._wide |= every - narrow
        for node in graph.nodes:
            for _, body in node.graphs():
                self._add(body, dict(_entering_body(node, body, known)), is_body=True)

    def _sizes_computed(self, graph: Graph, known: Mapping[Value, Range]) -> set[Value]:
        """Find what is computed of sizes, and fits wherever the sizes that it comes to do.

        That holds only if all on the way there fits as well: elsewhere facts ignore what wraps.
        """
        facts, exact, narrow = Facts(graph), set(graph.constants), set()
        for node in graph.nodes:
            facts.learn(node)
            is_shape = get_op(node.op).is_(Trait.SHAPE)
            if not is_shape and any(value not in exact for value in node.operands):
                continue
            for value in node.outputs:
                elements = facts.elements(value)
                if elements is None:
                    continue
                if not _is_proven(value, known):
                    dims = [dim for dim in elements.flat if isinstance(dim, Sym)]
                    if not self._symbols.issuperset(s for dim in dims for s in symbols(dim)):
                        continue
                    self._check(dims)
                    narrow.add(value)
                exact.add(value)
        return {value for value in narrow if _is_long(value)}


def _is_long(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in (int64, uint64)


def _is_proven(value: Value, known: Mapping[Value, Range]) -> bool:
    """Tell whether a value that is computed neither wraps nor needs more than 32 bits."""
    found, whole = known.get(value), whole_range(value)
    return found is None or (found.fits_int32 and found != whole)


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
