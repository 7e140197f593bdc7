"""Poison: inputs with a NaN and both infinities, to see whether a candidate loses them.

Only where they come out counts: a NaN or an infinity of the reference must not be a number. That
takes one run of the reference in the model's own dtypes. Others follow only where something seems
to be lost, and decide for the candidate where the reference itself leaves it open: elements that do
not depend on what was poisoned, and a NaN that an infinity made, which depends on the formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias, final

import numpy as np

from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.ir.types import TensorType
from fusewire.ops.interpret import Interpreter

_NAN, _HIGH, _LOW = float("nan"), float("inf"), -float("inf")
# What depends on an element changes by more than rounding if that is such a number.
_LARGE, _MOVED = 1e3, 1e-6
# Numbers in the places of the poison, as many as there are.
Numbers: TypeAlias = tuple[float, float | None, float | None]


@final
class Poison:
    """A poisoned set of inputs, and what the reference makes of it."""

    def __init__(self, graph: Graph, base: Sequence[HostValue]) -> None:
        self._graph, self._base = graph, base
        self.inputs = self._with((_NAN, _HIGH, _LOW))

    @property
    def is_any(self) -> bool:
        """Whether an input has floats at all."""
        return any(x is not y for x, y in zip(self.inputs, self._base, strict=True))

    @cached_property
    def wanted(self) -> list[HostValue]:
        """What the reference makes of it; raises as the graph does."""
        return self._run(self.inputs)

    def lost(self, answer: Sequence[HostValue]) -> str:
        """Say what an answer to these inputs has lost; empty if nothing, or nobody can say."""
        pairs = list(zip(self.wanted, answer, strict=True))
        seeming = [_seeming(x, y) for x, y in pairs]
        if not any(map(np.any, seeming)):
            return ""
        plain, moved = self._run(self._base), self._run(self._with((_LARGE, _LARGE, -_LARGE)))
        only_nan = self._run(self._with((_NAN, None, None)))
        for name, lost, (right, got), *others in zip(
            self._graph.output_names, seeming, pairs, plain, moved, only_nan, strict=True
        ):
            arrays = [np.asarray(x) for x in (right, *others)]
            if any(x.shape != arrays[0].shape for x in arrays) or not lost.any():
                continue
            wanted, before, after, nan = arrays
            is_made = np.isinf(wanted) | np.isnan(nan)
            certain = lost & np.isfinite(before) & is_made & _differs(before, after)
            if certain.any():
                place = tuple(map(int, np.argwhere(certain)[0]))
                return (
                    f"It loses a NaN or an infinity of an input: {name}{list(place)} is "
                    f"{np.asarray(got)[place]}, and should be {wanted[place]}."
                )
        return ""

    def _run(self, values: Sequence[HostValue]) -> list[HostValue]:
        return Interpreter(self._graph)(values)

    def _with(self, numbers: Numbers) -> list[HostValue]:
        """Put numbers into each array of floats; None leaves what is there."""
        pairs = zip(self._graph.inputs, self._base, strict=True)
        return [
            _poisoned(np.asarray(x), numbers)
            if isinstance(value.type, TensorType) and value.type.dtype.is_float
            else x
            for value, x in pairs
        ]


def _poisoned(array: Array, numbers: Numbers) -> Array:
    """Put the first number in the middle of each axis, and the others at both ends."""
    if not array.size:
        return array
    made = array.copy()
    last = [size - 1 for size in array.shape]
    places = [tuple(x // 2 for x in last), tuple(0 for _ in last), tuple(last)]
    # The NaN comes last: of a few elements, it may have the place of another.
    for number, place in reversed(list(zip(numbers, places, strict=True))):
        if number is not None:
            made[place] = number
    return made


def _seeming(wanted: HostValue, got: HostValue) -> Array:
    """Mark the elements that are numbers and should not be, of floats of the same shape."""
    right, answer = np.asarray(wanted), np.asarray(got)
    is_float = right.dtype.kind in "fc" and answer.dtype.kind in "fc"
    if not is_float or right.shape != answer.shape:
        return np.zeros(right.shape, bool)
    return np.asarray(~np.isfinite(right) & np.isfinite(answer))


def _differs(one: Array, other: Array) -> Array:
    """Mark the elements that differ by more than rounding."""
    if one.dtype.kind not in "fc":
        return np.zeros(one.shape, bool)
    with np.errstate(all="ignore"):
        far = np.abs(one - other) > _MOVED * np.maximum(np.abs(one), 1e-30)
    return np.asarray(far | ~np.isfinite(other))
