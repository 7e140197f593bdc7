"""Sets of inputs to judge on: those given, others like them, and values that are rare in data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from fusewire.dtypes import DType
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType, Type
from fusewire.ops.sample import HostValue
from fusewire.rewrite.roles import Role, roles

Kind = Literal["given", "random", "edges", "zeros", "ones", "random-2", "random-3"]
# Where engines take short cuts.
SPECIAL: tuple[Kind, ...] = ("edges", "zeros", "ones")
# Drawn anew, for graphs whose answers are cheap to know: what one draw hides another shows.
FURTHER: tuple[Kind, ...] = ("random-2", "random-3")
# Integers as few as these may be the size of something, which no other number is.
_SIZES = 8


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs to judge on, and where they come from."""

    kind: Kind
    values: tuple[HostValue, ...]


def input_sets(graph: Graph, given: Sequence[HostValue], seed: int = 0) -> list[InputSet]:
    """Make sets of inputs of the same sizes, those given first.

    Whether the graph takes the others only a run shows.
    """
    role_of = roles(graph)
    rng = np.random.default_rng([seed, 5])
    pairs = [(v.type, role_of[v], x) for v, x in zip(graph.inputs, given, strict=True)]
    sets = [InputSet("given", tuple(given))]
    for kind in ("random", *SPECIAL, *FURTHER):

        def change(of: DType, array: Array, role: Role, kind: Kind = kind) -> Array:
            is_special = kind in SPECIAL
            return _special(of, array, kind, rng) if is_special else _drawn(of, array, role, rng)

        made = [_mapped(t, x, partial(change, role=role)) for t, role, x in pairs]
        if any(x is not y for x, y in zip(made, given, strict=True)):
            sets.append(InputSet(kind, tuple(made)))
    return sets


def _mapped(type_: Type, value: HostValue, change: Callable[[DType, Array], Array]) -> HostValue:
    """Change the tensors in a value; the same object where nothing changes."""
    if isinstance(type_, TensorType):
        array = np.asarray(value)
        # Arithmetic on arrays without axes gives scalars.
        made = np.asarray(change(type_.dtype, array)) if array.size else array
        return value if made is array else made
    if isinstance(value, list):
        parts = [_mapped(type_.element, item, change) for item in value]
        is_same = all(x is y for x, y in zip(parts, value, strict=True))
        return value if is_same else parts
    return value if value is None else _mapped(type_.element, value, change)


def _drawn(of: DType, array: Array, role: Role, rng: np.random.Generator) -> Array:
    """Draw an array in the range of another; what is an index keeps its values, elsewhere."""
    shape = array.shape
    if of.kind == "string" or (of.is_integer and role == "index"):
        return array if array.size <= _SIZES else np.roll(array, 1 + array.size // 3)
    if of.kind == "bool":
        return np.asarray(rng.random(shape) < array.mean())
    if of.is_complex:
        parts = [_uniform(part.astype(np.float64), rng) for part in (array.real, array.imag)]
        return (parts[0] + 1j * parts[1]).astype(of.numpy)
    if of.is_integer:
        low, high = int(array.min()), int(array.max())
        return array if low == high else _integers(of, low, high, shape, rng)
    return _uniform(array.astype(np.float64), rng).astype(of.numpy)


def _integers(
    of: DType, low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator
) -> Array:
    wide = np.uint64 if of.kind == "uint" else np.int64
    return rng.integers(low, high, shape, wide, endpoint=True).astype(of.numpy)


def _uniform(array: Array, rng: np.random.Generator) -> Array:
    finite = array[np.isfinite(array)]
    if not finite.size:
        return array
    low, high = float(finite.min()), float(finite.max())
    if low == high == 0.0 and array.size > 1:
        # A state before the first step: later it is something.
        low, high = -1.0, 1.0
    return np.asarray(low + (high - low) * rng.random(array.shape))


def _special(of: DType, array: Array, kind: Kind, rng: np.random.Generator) -> Array:
    """Make an array of floats special; others stay."""
    if not of.is_float or of.is_narrow:
        return array
    if kind != "edges":
        return np.full(array.shape, float(kind == "ones"), of.numpy)
    finite = np.abs(array.astype(np.float64))
    largest = float(finite[np.isfinite(finite)].max(initial=0.0))
    tiny = 4.0 * float(np.finfo(np.float16 if of.bits == 16 else of.numpy).smallest_normal)
    large = min(4.0 * largest, of.range[1] / 16)
    made = array.astype(of.numpy, copy=True).reshape(-1)
    places = rng.permutation(made.size)[: max(1, min(made.size // 8, 16))]
    edges = np.resize(np.array([-0.0, large, tiny, -large, -tiny, largest]), len(places))
    made[places] = edges.astype(of.numpy)
    return made.reshape(array.shape)
