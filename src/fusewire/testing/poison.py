"""Poison: NaN, both infinities and -0 at the ends and in the middle of every axis of an operand.

A round is the inputs of a case with one such element in one of its float operands. Rounds have the
shapes of the case, so that one compiled program runs all of them. What comes out is compared with
the reference: a NaN or an infinity must not become a number, what is no float must be the same, and
zeros keep their signs in the ops that promise it. An element that does not depend on the poisoned
one, as the term of a sum that is multiplied by zero, may come out either way.

`fusewire conform` runs all rounds of the cases. With ``few``, a case has one for each of the four:
tests of engines that run slowly leave the other places and operands to that command.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fusewire.dtypes import DType, float16, float32, float64
from fusewire.errors import FusewireError
from fusewire.ir.graph import Array, Graph, HostValue
from fusewire.numerics.bound import leaves
from fusewire.numerics.judge import judge_op
from fusewire.numerics.spread import classes
from fusewire.ops.declare import Trait
from fusewire.ops.interpret import Interpreter, interpret
from fusewire.ops.table import get_op

_NAN, _HIGH, _LOW, _ZERO = float("nan"), float("inf"), -float("inf"), -0.0
POISON = (_NAN, _HIGH, _LOW, _ZERO)
# What is poisoned: the dtypes that engines have kernels of their own for.
POISONED = (float32, float64, float16)
# Ops that promise the sign of a zero, beside those that move elements bit for bit.
_SIGNED = ("abs", "copysign", "negative")
# What an op promises nothing for: codes have no NaN and no endless range, the sums inside a fast
# transform may take an infinity from another, and a zero may leave a matrix without an inverse.
_UNPROMISED = {
    "dynamic_quantize": (_NAN, _HIGH, _LOW),
    "quantize": (_NAN,),
    "stft": (_HIGH, _LOW),
    "triangular_solve": (_ZERO,),
}
# Operands for which an op promises an answer, where their types do not say it.
_PROMISED: Mapping[str, Callable[..., bool]] = {
    "searchsorted": lambda row, x: np.array_equal(row, np.sort(row), equal_nan=True)
}
# What depends on an element changes by more than rounding if that is each of these; not 0, with
# which a matrix may have no inverse.
_NUMBERS, _MOVED = (0.5, 1e4, -1e4), 1e-9
# An operand, the index of an element in it, and the poison.
_Place: TypeAlias = tuple[int, tuple[int, ...], float]


@dataclass(frozen=True)
class Round:
    """Inputs with one poisoned element, what the reference makes of them, and where it is."""

    inputs: list[HostValue]
    wanted: list[HostValue]
    place: int
    index: tuple[int, ...]
    poison: float

    @property
    def label(self) -> str:
        return f"{self.poison} at {list(self.index)} of operand {self.place}"

    def with_number(self, number: float) -> list[HostValue]:
        """Give the inputs with a number in place of the poison."""
        return _replaced(self.inputs, self.place, self.index, number)


def rounds_of(
    graph: Graph, inputs: Sequence[HostValue], of: DType, *, few: bool = False
) -> list[Round]:
    """List the rounds of a case that the reference answers; none in other dtypes."""
    (node,) = graph.nodes
    if of not in POISONED or get_op(node.op).is_(Trait.RANDOM):
        return []
    places = list(_places(inputs, of))
    made = []
    for place, index, poison in _few(node.op, places) if few else places:
        if any(poison is number for number in _UNPROMISED.get(node.op, ())):
            continue
        given = _replaced(inputs, place, index, poison)
        if node.op in _PROMISED and not _PROMISED[node.op](*given):
            continue
        try:
            wanted = interpret(graph, given)
        except (FusewireError, ValueError):
            # The op does not take it: a box of NaN, for one.
            continue
        made.append(Round(given, wanted, place, index, poison))
    return made


def _few(op: str, places: Sequence[_Place]) -> Iterator[_Place]:
    """Choose one place for each poison by hash, the same everywhere."""
    for poison in POISON:
        found = [place for place in places if place[2] is poison]
        yield from sorted(found, key=lambda place: zlib.crc32(f"{op} {place}".encode()))[:1]


def _places(inputs: Sequence[HostValue], of: DType) -> Iterator[_Place]:
    for place, x in enumerate(inputs):
        if not isinstance(x, np.ndarray) or x.dtype != of.numpy or not x.size:
            continue
        first = tuple(0 for _ in x.shape)
        middle, last = tuple(n // 2 for n in x.shape), tuple(n - 1 for n in x.shape)
        for index in dict.fromkeys((first, middle, last)):
            for poison in POISON:
                yield place, index, poison


def _replaced(
    inputs: Sequence[HostValue], place: int, index: tuple[int, ...], number: float
) -> list[HostValue]:
    given = list(inputs)
    changed = np.array(given[place])
    changed[index] = number
    given[place] = changed
    return given


def poison_problems(graph: Graph, ready: Round, got: Sequence[HostValue]) -> list[str]:
    """Say what an engine lost of a round."""
    (node,) = graph.nodes
    is_signed = node.op in _SIGNED or get_op(node.op).is_(Trait.MOVEMENT)
    wanted, found = leaves(graph, ready.wanted), leaves(graph, got)
    lost = [_lost(x, y, is_signed) for (_, _, x), (_, _, y) in zip(wanted, found, strict=True)]
    if not any(mask.any() for mask in lost):
        return []
    depends = _depends(graph, ready)
    problems = []
    for (name, _, x), (_, _, y), mask, moved in zip(wanted, found, lost, depends, strict=True):
        places = np.argwhere(mask & moved if mask.shape == moved.shape else mask)
        if len(places):
            at = tuple(places[0])
            shown = f"{y[at]}" if y.shape == x.shape else f"of shape {list(y.shape)}"
            problems.append(
                f"with {ready.label}: {name}{list(map(int, at))} is {shown}, not {x[at]}"
            )
    # Rounding may bring an answer over the edge to infinity, or a place to another that ties.
    is_right = problems and not is_signed and judge_op(graph, ready.inputs, got).status != "wrong"
    return [] if is_right else problems


def _lost(wanted: Array, got: Array, is_signed: bool) -> Array:
    """Tell where a NaN or an infinity became a number, and what else is not the same."""
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return np.ones(wanted.shape, np.bool_)
    if wanted.dtype.kind not in "fc":
        return np.asarray(wanted != got)
    kinds, found = classes(wanted), classes(got)
    lost = (kinds != 0) & (found == 0) | (kinds * found == -1)
    if is_signed and wanted.dtype.kind == "f":
        zeros = (wanted == 0) & (got == 0)
        lost |= zeros & (np.signbit(wanted) != np.signbit(got))
    return np.asarray(lost)


def _depends(graph: Graph, ready: Round) -> list[Array]:
    """Tell which elements of the outputs change with the one that is poisoned."""
    wide, runs = Interpreter(graph, wide=True), []
    for number in _NUMBERS:
        try:
            # Wide, so that rounding of a large term moves nothing.
            runs.append(leaves(graph, wide(ready.with_number(number))))
        except (FusewireError, ValueError):
            continue
    depends = []
    for (_, _, wanted), *others in zip(leaves(graph, ready.wanted), *runs, strict=True):
        arrays = [x for _, _, x in others]
        is_same = len({x.shape for x in arrays}) == 1 and len(arrays) > 1
        moved = np.ones(wanted.shape, np.bool_)
        if is_same and arrays[0].shape == wanted.shape:
            moved = np.logical_or.reduce([_moved(x, arrays[0]) for x in arrays[1:]])
        depends.append(np.asarray(moved))
    return depends


def _moved(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "fc":
        return np.asarray(x != y)
    with np.errstate(all="ignore"):
        # Opposite infinities and NaN compare as moved.
        return np.asarray((x != y) & ~(np.abs(x - y) <= _MOVED))
