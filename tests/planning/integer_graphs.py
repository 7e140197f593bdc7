"""Random integer expressions that drive every op with an index or length, several to a graph.

What they begin from: integers of all dtypes at the edges of 8, 16, 31, 32 and 63 bits, floats that
float32 holds exactly, the place of the largest of some numbers, and sizes. Each ends as the index
of a family of ``index_models``, in range or not. Arrays lie between pages that nobody may touch.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import DType, dtype, float32, int64
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.conversion import cast
from fusewire.ops.interpret import type_of
from fusewire.ops.logic import where
from fusewire.ops.movement import broadcast_to, reshape
from fusewire.ops.shape import dim_of
from fusewire.ops.slicing import slice_
from tests.planning.index_models import FAMILIES, Family

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# Numbers next to which something is cut off, and small ones.
EDGES = [
    0,
    *(sign * 2**bits for bits in (7, 8, 15, 16, 20, 31, 32, 40, 62, 63) for sign in (1, -1)),
]
# How many elements a source has: no index of a family has more.
WIDE = 8
FLOATS, LONG, MOST = 64, "n", 3000
NAMES = tuple(FAMILIES)
# Of two updates of one place, no op says which stays; and the starts of rows are in order.
DISTINCT = ("scatter_elements set", "scatter_nd set", "max_unpool")
ORDERED = ("csr_matmul starts", "csr_to_dense starts", "csr_to_coo starts")


# PROT_NONE, which the module mmap does not name.
NO_ACCESS = 0


@dataclass(frozen=True, eq=False)
class IntegerGraph:
    """A graph of expressions: the families that they drive, and inputs for several calls."""

    graph: Graph
    families: tuple[str, ...]
    calls: tuple[tuple[Any, ...], ...]


def integer_graph(seed: int, count: int = 12, calls: int = 16) -> IntegerGraph:
    """Make the graph of a seed."""
    rng = np.random.default_rng(seed)
    sources = [Value(TensorType(dtype(name), (WIDE,)), name) for name in INTEGERS]
    floats = Value(TensorType(float32, (WIDE,)), "exact")
    numbers = Value(TensorType(float32, (FLOATS,)), "numbers")
    sized = Value(TensorType(int64, (symbol(LONG),)), "sized")
    outputs, families, tables, arrays = [], [], [], []
    may_refuse = rng.random() < 0.25
    for number in range(count):
        name = NAMES[rng.integers(len(NAMES))]
        family = FAMILIES[name]
        inputs = [np.asarray(table) for table in family.inputs]
        values = [Value(type_of(x), f"table{number}_{i}") for i, x in enumerate(inputs)]
        is_loose = may_refuse and rng.random() < 0.1
        maker = _Maker(rng, [*sources, floats], numbers, sized, np.shape(family.good))
        used = maker.index(name, family, is_loose)
        found = family.apply(*values, used)
        outputs.append(found if isinstance(found, Value) else found[0])
        families.append(name)
        tables += values
        arrays += inputs
    graph = Graph([*sources, floats, numbers, sized, *tables], outputs)
    drawn = tuple((*_drawn(rng), *arrays) for _ in range(calls))
    return IntegerGraph(graph, tuple(families), drawn)


@dataclass(frozen=True, eq=False)
class _Maker:
    """Makes expressions of one shape."""

    rng: np.random.Generator
    sources: Sequence[Value]
    numbers: Value
    sized: Value
    shape: tuple[int, ...]

    def index(self, name: str, family: Family, is_loose: bool) -> Value:
        """Make an index: brought into its range in one of several ways, or as it comes."""
        wide, dim = self.expression(int(self.rng.integers(4))), family.dim
        count = int(np.prod(self.shape, dtype=int))
        if name in DISTINCT:
            dim = dim - count + 2
        of = family.dtypes[self.rng.integers(len(family.dtypes))]
        how = "loose" if is_loose else self.pick("remainder", "limits", "both", "other", "below")
        if how == "remainder":
            wide = ops.remainder(wide, np.int64(max(dim - 1, 1)))
        elif how == "limits":
            wide = ops.minimum(ops.maximum(wide, np.int64(0)), np.int64(max(dim - 2, 0)))
        elif how == "both":
            wide = ops.remainder(ops.maximum(wide, np.int64(0)), np.int64(max(dim - 1, 1)))
        elif how == "other":
            limited = ops.maximum(ops.minimum(wide, np.int64(max(dim - 2, 0))), np.int64(0))
            wide = where(ops.less(wide, np.int64(2**31)), limited, np.int64(0))
        elif how == "below":
            wide = ops.minimum(ops.remainder(wide, np.int64(2**32)), np.int64(max(dim - 2, 0)))
        if name in ORDERED:
            wide = ops.sort(wide, axis=0)
        if name in DISTINCT:
            first = slice_(reshape(wide, shape=(count,)), starts=(0,), limits=(1,), strides=(1,))
            places = ops.add(first, ops.iota.new(shape=(count,), axis=0))
            wide = reshape(places, shape=self.shape)
        return cast(wide, dtype=of)

    def expression(self, depth: int) -> Value:
        """Make an int64 expression."""
        if depth == 0 or self.rng.random() < 0.15:
            return self.leaf()
        name = self.pick("add", "subtract", "multiply", "minimum", "maximum", "remainder")
        name = name if self.rng.random() < 0.7 else self.pick("cast", "where", "scale")
        x, y = self.expression(depth - 1), None  # type: Value, Any
        if name == "cast":
            return cast(cast(x, dtype=self.integer()), dtype=int64)
        if name == "scale":
            name, y = "multiply", np.int64(self.pick(2**20, 2**31, 2**32 + 1, 1048577, -3))
        elif name == "remainder":
            y = np.int64(self.pick(3, 63, 2**16, 2**31, 2**32 + 1, 2**62))
        else:
            y = self.expression(depth - 1)
        made: Value = where(ops.less(x, y), x, y) if name == "where" else getattr(ops, name)(x, y)
        return made

    def leaf(self) -> Value:
        """Make an int64 value of what a graph is given."""
        kind = self.rng.random()
        if kind < 0.15:
            place: Value = ops.argmax(self.numbers, axis=0)
            return broadcast_to(place, shape=self.shape)
        if kind < 0.3:
            return broadcast_to(dim_of(self.sized, 0), shape=self.shape)
        source = self.sources[int(self.rng.integers(len(self.sources)))]
        count = int(np.prod(self.shape, dtype=int))
        start = int(self.rng.integers(WIDE - count + 1))
        part = slice_(source, starts=(start,), limits=(start + count,), strides=(1,))
        return cast(reshape(part, shape=self.shape), dtype=int64)

    def integer(self) -> DType:
        return dtype(self.pick(*INTEGERS))

    def pick(self, *items: Any) -> Any:
        return items[self.rng.integers(len(items))]


def _drawn(rng: np.random.Generator) -> list[Any]:
    """Draw what a call is given."""
    drawn: list[Any] = []
    for name in INTEGERS:
        low, high = dtype(name).range
        near = [int(rng.choice(EDGES)) + int(rng.integers(-2, 3)) for _ in range(WIDE)]
        small = [int(x) for x in rng.integers(0, 16, WIDE)]
        mixed = [x if low <= x <= high else y for x, y in zip(near, small, strict=True)]
        drawn.append(np.array(mixed if rng.random() < 0.8 else small, name))
    # Exact in float32; casts of what int64 does not hold have no meaning of ours.
    exact = [int(rng.choice(EDGES[:-2])) + 2.0 ** int(rng.integers(0, 3)) for _ in range(WIDE)]
    drawn.append(np.array(exact, np.float32))
    drawn.append(rng.permutation(FLOATS).astype(np.float32))
    drawn.append(np.zeros(int(rng.choice([1, 2, 7, 64, MOST])), np.int64))
    return drawn


class FencedArray:
    """An array whose memory ends where a page begins that nobody may touch, or starts after one."""

    def __init__(self, array: Any, at_end: bool) -> None:
        page = mmap.PAGESIZE
        room = -(-max(array.nbytes, 1) // page) * page
        self._map = mmap.mmap(-1, room + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for fence in (start, start + page + room):
            done = libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), NO_ACCESS)
            assert done == 0, "mprotect"
        offset = page + (room - array.nbytes if at_end else 0)
        self.array = np.ndarray(array.shape, array.dtype, self._map, offset)
        self.array[...] = array


def fenced(arrays: Sequence[Any], seed: int) -> list[Any]:
    """Copy arrays to memory of their own between fences."""
    return [FencedArray(x, at_end=(seed + i) % 2 == 0).array for i, x in enumerate(arrays)]
