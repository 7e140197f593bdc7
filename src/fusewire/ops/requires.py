"""What the elements of operands must satisfy, as ops declare it in ``requires``.

One declaration serves the interpreter, which checks it at each node, and plans, which check it
before an engine sees the values (``fusewire.planning.guards``). The arithmetic of the check itself
is in ``fusewire.ops.intervals``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fusewire.ir.dims import Dim, Symbol, evaluate, size
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.intervals import Rule, Samples, check_elements

# Both ends belong to it.
Interval: TypeAlias = tuple[Dim, Dim]
# One interval for all elements, or one for each place along the last axis.
Intervals: TypeAlias = Callable[["Operands"], tuple[Interval, ...]]


class Operands:
    """The operands of a node by name, for declarations to ask about."""

    def __init__(self, node: Node, names: Sequence[str]) -> None:
        self.attrs: Mapping[str, Any] = node.attrs
        self._values = dict(zip(names, node.inputs, strict=False))
        self.outputs = node.outputs

    def value(self, name: str) -> Value | None:
        """Return an operand; None if it is absent."""
        return self._values.get(name)

    def type(self, name: str) -> TensorType:
        """Return the type of an operand that is present."""
        value = self._values[name]
        assert value is not None, f"{name} is not optional"
        return value.tensor


@dataclass(frozen=True, eq=False)
class Requirement:
    """The elements of ``operand`` lie within ``intervals``, which sizes and attributes give.

    ``ignored`` names an attribute with one more number that is allowed, or None. With ``start``,
    only elements from that place along the last axis on are meant. Another ``rule`` than "within"
    has no intervals. Boxes are asked for by ``samples``, which is None where their size does not
    decide how many samples they take.
    """

    operand: str
    intervals: Intervals
    ignored: str = ""
    rule: Rule = "within"
    start: Callable[[Operands], Dim] | None = None
    samples: Callable[[Mapping[str, Any]], Samples | None] | None = None

    def ignored_by(self, attrs: Mapping[str, Any]) -> int | None:
        """Return the number outside the intervals that is allowed as well."""
        number = attrs[self.ignored] if self.ignored else None
        return None if number is None else int(number)


def _places(dim: Dim) -> Interval:
    """Places along an axis; negative ones count from the end."""
    return -dim, dim - 1


def index(operand: str, of: str, axis: str | int = "axis") -> Requirement:
    """Require places along an axis of another operand, which negative ones count from the end."""

    def intervals(operands: Operands) -> tuple[Interval, ...]:
        at = operands.attrs[axis] if isinstance(axis, str) else axis
        return (_places(operands.type(of).shape[at]),)

    return Requirement(operand, intervals)


def coordinates(operand: str, of: str, skipped: str = "") -> Requirement:
    """Require that the last axis lists places along the axes of another operand, in order.

    ``skipped`` names the attribute that counts the leading axes that are not listed.
    """

    def intervals(operands: Operands) -> tuple[Interval, ...]:
        depth, first = operands.type(operand).shape[-1], 0
        if skipped:
            first = operands.attrs[skipped]
        assert isinstance(depth, int), "the type rule demands it"
        return tuple(_places(dim) for dim in operands.type(of).shape[first : first + depth])

    return Requirement(operand, intervals)


def between(operand: str, *ends: Callable[[Operands], Interval], ignored: str = "") -> Requirement:
    """Require elements within an interval, or within one for each place along the last axis."""
    return Requirement(operand, lambda operands: tuple(end(operands) for end in ends), ignored)


def up_to(operand: str, of: str, axis: int | str) -> Requirement:
    """Require lengths: from 0 to the size of an axis of another operand."""

    def intervals(operands: Operands) -> Interval:
        at = operands.attrs[axis] if isinstance(axis, str) else axis
        return 0, operands.type(of).shape[at]

    return between(operand, intervals)


def ordered(operand: str) -> Requirement:
    """Require that no element is below the one before it along the last axis."""
    return Requirement(operand, lambda operands: (), rule="ordered")


def finite(operand: str) -> Requirement:
    """Require that no element is NaN or infinite."""
    return Requirement(operand, lambda operands: (), rule="finite")


def sampled(operand: str, samples: Callable[[Mapping[str, Any]], Samples | None]) -> Requirement:
    """Require that the samples of boxes fit in memory, as attributes say how many they are."""
    return Requirement(operand, lambda operands: (), rule="sampled", samples=samples)


def none_from(operand: str, start: Callable[[Operands], Dim]) -> Requirement:
    """Require that a list of bools holds nowhere from a place on."""
    return Requirement(operand, lambda operands: ((0, 0),), start=start)


def flat_places(operand: str) -> Requirement:
    """Require places in the output, flattened."""
    return between(operand, lambda operands: _places(size(operands.outputs[0].tensor.shape)))


def label_of(node: Node) -> str:
    """Name a node in a message."""
    name = node.name or node.outputs[0].name
    return f"{node.op} ({name})" if name else node.op


def check_node(
    node: Node,
    requires: Sequence[Requirement],
    names: Sequence[str],
    values: Sequence[Any],
    bound: Mapping[Symbol, int],
) -> None:
    """Check what a node requires of the values of its operands; raises CheckError."""
    operands = Operands(node, names)
    for requirement in requires:
        array = dict(zip(names, values, strict=False)).get(requirement.operand)
        if not isinstance(array, np.ndarray) or requirement.rule == "sampled":
            # The reference asks for the bytes of its samples when it makes them.
            continue
        intervals = [
            (evaluate(low, bound), evaluate(high, bound))
            for low, high in requirement.intervals(operands)
        ]
        if requirement.start is not None:
            array = array[..., evaluate(requirement.start(operands), bound) :]
        ignored, rule = requirement.ignored_by(node.attrs), requirement.rule
        check_elements(array, intervals, ignored, label_of(node), requirement.operand, rule=rule)
