"""Shape arithmetic: compute known shapes, and turn shape operands into attributes.

``twin`` finds the static form of a node; the pass in resolve.py uses it to find out sizes, and the
rules here put it in the node's place once both have one type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fusewire.errors import DimError, FusewireError, TypeRuleError
from fusewire.facts.known import Facts
from fusewire.ir.builder import bind_symbols, constant, inline
from fusewire.ir.dims import Dim, Sym, Symbol, lone_symbol, symbol, symbols, unbacked
from fusewire.ir.graph import Attr, Graph, Node, Value
from fusewire.ir.types import TensorType, tensor_of, type_symbols
from fusewire.ops.declare import Op, Trait
from fusewire.ops.dynamic import dynamic_reshape, static_twin
from fusewire.ops.elementwise import exp, multiply
from fusewire.ops.indexing import gather
from fusewire.ops.interpret import interpret
from fusewire.ops.movement import concat
from fusewire.ops.shape import shape_of
from fusewire.ops.subgraph import bound_by
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import MOST_ELEMENTS
from fusewire.rewrite.rule import Outcome, RuleTable, on
from fusewire.rewrite.specialize import infer_again

TABLE = RuleTable("shapes")
_LONGER = (symbol("n"), 3, 1)


@TABLE.rule(
    "no-elements",
    because="There is nothing to compute.",
    example=on(exp, "float32[0, 3]"),
)
def _empty(node: Node, facts: Facts) -> Outcome:
    found: list[Value] = []
    for value in node.outputs:
        type_ = value.type
        if not isinstance(type_, TensorType) or not type_.is_static or type_.size != 0:
            return None
        found.append(constant(np.zeros(type_.shape, type_.dtype.numpy)))
    return tuple(found)


@TABLE.rule(
    "sizes-known",
    because="The elements follow from shapes that are known.",
    example=on(
        lambda x: multiply(gather(shape_of(x), np.array([1, 2]), axis=0), 2), "float32[n, 3, 4]"
    ),
)
def _known(node: Node, facts: Facts) -> Outcome:
    arrays: list[Value] = []
    for found, value in zip(facts.outputs(node), node.outputs, strict=True):
        if found is None or not all(isinstance(item, int) for item in found.flat):
            return None
        arrays.append(constant(found.astype(value.tensor.dtype.numpy)))
    return tuple(arrays)


def _tells(op: Op[Any]) -> bool:
    return op.is_(Trait.UNBACKED)


@TABLE.rule(
    "static-twin",
    because="What was an operand is known, so it can be said in attributes, or is decided.",
    example=on(
        lambda x: dynamic_reshape(x, concat(shape_of(x), np.array([1]), axis=0), dims=_LONGER),
        "float32[n, 3]",
    ),
    when=_tells,
)
def _static(node: Node, facts: Facts) -> Outcome:
    return twin(node, facts)


def twin(node: Node, facts: Facts) -> tuple[Value, ...] | None:
    """Give the static form of a node whose shape operands are known; its type may say more."""
    if node.op == "cond":
        return _branch(node, facts)
    op = get_op(node.op)
    if Trait.UNBACKED not in op.traits or Trait.CONTROL in op.traits:
        return None
    named = zip(op.parameters[0], node.inputs, strict=False)
    elements = {name: facts.elements(v) for name, v in named if name in op.index_operands}
    known = {name: tuple(e.flat) for name, e in elements.items() if e is not None}
    try:
        found = static_twin(node, known)
    except (TypeRuleError, DimError):
        # The program is wrong, or right only for some sizes: the run will say so.
        return None
    return _evaluated(node) if found is None else found


# How much comes of a few numbers, where it is more than they are themselves.
_MADE: Mapping[str, Callable[..., float]] = {
    "range": lambda start, stop, step: (stop - start) / step,
    "mel_weight_matrix": lambda bins, length, *rest: abs(bins) * abs(length),
}


def _evaluated(node: Node) -> tuple[Value, ...] | None:
    """Run a node over small constants, to see how much it gives."""
    held = [v.constant for v in node.operands if v.constant is not None]
    sizes = [constant.type.size for constant in held]
    if len(held) < len(node.operands) or sum(sizes) > MOST_ELEMENTS:  # type: ignore[operator] # constants have static types
        return None
    try:
        if node.op in _MADE and _MADE[node.op](*(c.array.item() for c in held)) > MOST_ELEMENTS:
            return None
        outputs = interpret(Graph((), node.outputs, (node,)), ())
    except (FusewireError, ValueError, ArithmeticError, LookupError):
        return None
    small = all(isinstance(x, np.ndarray) and x.size <= MOST_ELEMENTS for x in outputs)
    return tuple(map(constant, outputs)) if small else None


def _branch(node: Node, facts: Facts) -> tuple[Value, ...] | None:
    """Give what the branch that is taken makes of the operands."""
    known = facts.elements(node.inputs[0])
    if known is None:
        return None
    body = node.attrs["then" if known.item() else "otherwise"]
    assert isinstance(body, Graph)
    operands = node.operands[1:]
    named: dict[Symbol, Dim] = dict(bound_by(body, [v.type for v in operands], "the branch"))
    for value, type_ in zip(body.outputs, node.types, strict=True):
        for dim, wanted in zip(tensor_of(value.type).shape, tensor_of(type_).shape, strict=True):
            alone = lone_symbol(dim)
            if alone is not None and alone.unbacked:
                named.setdefault(alone, wanted)
    for item in _defined(body):
        # A branch may be used twice, and then these are two sizes.
        named.setdefault(item, unbacked())
    taken = [Value(v.type, f"operand{i}") for i, v in enumerate(operands)]
    try:
        # What the branch says of its inputs may be less, or other, than what the operands say.
        bound = infer_again(Graph(taken, inline(bind_symbols(body, named), taken)))
    except TypeRuleError:
        return None
    return inline(bound, operands)


def _defined(body: Graph) -> Iterator[Symbol]:
    """Yield the symbols that nodes of a graph tell: those that such a node is first to mention."""
    seen: set[Symbol] = set()
    for node in body.nodes:
        mentioned = {s for t in node.types for s in type_symbols(t)}
        mentioned |= {s for attr in node.attrs.values() for s in _symbols(attr)}
        if get_op(node.op).is_(Trait.UNBACKED):
            yield from (s for s in mentioned - seen if s.unbacked)
        seen |= mentioned


def _symbols(attr: Attr) -> Iterator[Symbol]:
    if isinstance(attr, Sym):
        yield from symbols(attr)
    elif isinstance(attr, tuple):
        for item in attr:
            yield from _symbols(item)
