"""Match values in rules: constants that are one number, and patterns of nodes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fusewire.dtypes import string
from fusewire.facts.known import Facts
from fusewire.ir.graph import Attr, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.declare import Trait
from fusewire.ops.movement import broadcast_to
from fusewire.ops.table import get_op

# Constants with more elements are weights: not read to see if they are all one number.
MOST_ELEMENTS = 4096
# Patterns with more nodes are not looked for, so that looking takes a bounded time.
MOST_NODES = 32
# Ops that repeat or move elements, under which one number stays one number.
_KEEPING = ("broadcast_to", "reshape", "transpose", "tile", "expand_dims", "squeeze")

_NUMBERS: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "uint": int,
    "float": float,
    "complex": complex,
}


def splat(value: Value | None) -> Any:
    """Return the number that every element of a constant is, bit for bit, or None."""
    while value is not None and value.node is not None and value.node.op in _KEEPING:
        value = value.node.inputs[0]
    if value is None or value.constant is None:
        return None
    type_ = value.constant.type
    if type_.dtype is string or type_.size not in range(1, MOST_ELEMENTS + 1):
        return None
    flat = value.constant.array.reshape(-1)
    if flat.size > 1 and flat.tobytes() != flat[:1].tobytes() * flat.size:
        return None
    return _NUMBERS[type_.dtype.kind](flat[0])


def is_number(value: Value | None, number: float) -> bool:
    """Tell whether a value is this real number everywhere; 0.0 and -0.0 are two floats."""
    element = splat(value)
    if element is None or isinstance(element, complex) or element != number:
        return False
    return not isinstance(element, float) or math.copysign(1, element) == math.copysign(1, number)


def maker(value: Value | None, *ops: str) -> Node | None:
    """Return the node whose output a value is, if it is a node of one of these ops."""
    if value is None or value.node is None or value.node.op not in ops:
        return None
    return value.node


def shaped(value: Value, like: TensorType) -> Value | None:
    """Broadcast a value to the shape of a type; None if only a run can show that it fits."""
    if value.type == like:
        return value
    type_ = value.tensor
    if type_.dtype is not like.dtype or type_.rank > like.rank:
        return None
    pairs = zip(type_.shape[::-1], like.shape[::-1], strict=False)
    if any(dim != 1 and dim != wanted for dim, wanted in pairs):
        return None
    return broadcast_to(value, shape=like.shape)


def is_private(root: Node, leaves: Container[Value], facts: Facts) -> bool:
    """Tell whether only ``root`` needs what is computed between it and the leaves."""
    inner: dict[Node, None] = {root: None}
    used: Counter[Value] = Counter()
    stack = [root]
    while stack and len(inner) <= MOST_NODES:
        for value in stack.pop().operands:
            if value.node is None or value in leaves:
                continue
            used[value] += 1
            if value.node not in inner:
                inner[value.node] = None
                stack.append(value.node)
    results = [v for node in inner if node is not root for v in node.outputs]
    return not stack and all(facts.uses(v) == used[v] for v in results)


@dataclass(frozen=True)
class Anything:
    """Any value; the same name must be the same value everywhere in a pattern."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant that is one number: ``value`` within a tolerance, or any if that is None."""

    name: str = ""
    value: float | None = None
    tolerance: float = 1e-6


@dataclass(frozen=True)
class CallPattern:
    """A node of an op over patterns; a commutative op matches in both orders."""

    op: str
    operands: tuple[Pattern, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)


Pattern: TypeAlias = Anything | Number | CallPattern
# Values and numbers, by their names in a pattern.
Bindings: TypeAlias = dict[str, Any]


def call(op: str, *operands: Pattern | float, **attrs: Attr) -> CallPattern:
    """Write a pattern as it reads: ``call("multiply", x, call("sigmoid", x))``."""
    parts = (Number(value=o) if isinstance(o, int | float) else o for o in operands)
    return CallPattern(op, tuple(parts), attrs)


def match(pattern: Pattern, value: Value | None) -> Bindings | None:
    """Bind the names of a pattern to values and numbers; None if it does not match."""
    return next(_matches(pattern, value, {}), None)


def _matches(pattern: Pattern, value: Value | None, bound: Bindings) -> Iterator[Bindings]:
    if value is None:
        return
    if isinstance(pattern, Anything):
        if bound.get(pattern.name, value) is value:
            yield {**bound, pattern.name: value}
    elif isinstance(pattern, Number):
        number = splat(value)
        if isinstance(number, int | float) and _is_meant(pattern, number):
            yield {**bound, pattern.name: number} if pattern.name else bound
    elif node := maker(value, pattern.op):
        if any(node.attrs.get(key) != attr for key, attr in pattern.attrs.items()):
            return
        swaps = get_op(node.op).is_(Trait.COMMUTATIVE) and len(pattern.operands) == 2
        for parts in itertools.islice(itertools.permutations(pattern.operands), 1 + swaps):
            yield from _match_all(list(zip(parts, node.inputs, strict=False)), bound)


def _match_all(pairs: list[tuple[Pattern, Value | None]], bound: Bindings) -> Iterator[Bindings]:
    if not pairs:
        yield bound
        return
    for first in _matches(*pairs[0], bound):
        yield from _match_all(pairs[1:], first)


def _is_meant(pattern: Number, number: float) -> bool:
    if pattern.value is None:
        return True
    return abs(number - pattern.value) <= pattern.tolerance * abs(pattern.value)
