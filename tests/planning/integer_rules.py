"""Every rule by which something is proven of an integer, as an expression over inputs.

``RULES`` maps a name to a function of the inputs of ``graph_inputs``; ``sets`` are values for them,
at the edges of 8, 16, 31, 32 and 63 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fusewire import ops
from fusewire.dtypes import DType, bool_, float32, int8, int16, int32, int64, uint8, uint16, uint32
from fusewire.ir.dims import symbol
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import cond, loop
from fusewire.ops.subgraph import FLAG, INDEX, subgraph

Rule: TypeAlias = Callable[[Mapping[str, Value]], Value]
Body: TypeAlias = Callable[[Any], Any]
COUNT, PLACES = 8, 10
INPUTS: Mapping[str, TensorType] = {
    "a": TensorType(int64, (COUNT,)),
    "b": TensorType(int64, (COUNT,)),
    "i": TensorType(int32, (COUNT,)),
    "u": TensorType(uint32, (COUNT,)),
    "t": TensorType(uint8, (COUNT,)),
    "f": TensorType(float32, (COUNT,)),
    "m": TensorType(bool_, (COUNT,)),
    "x": TensorType(float32, (COUNT, PLACES)),
    "z": TensorType(float32, (symbol("n"), symbol("k"))),
}


def graph_inputs() -> dict[str, Value]:
    """Make the inputs of a graph."""
    return {name: Value(type_, name) for name, type_ in INPUTS.items()}


def _long(value: int) -> Any:
    return np.array(value, np.int64)


def _few(v: Mapping[str, Value], name: str = "a", low: int = 0, high: int = 5) -> Any:
    return ops.clip(v[name], _long(low), _long(high))


def _place(v: Mapping[str, Value]) -> Any:
    return ops.argmax(v["x"], axis=1)


def _size(v: Mapping[str, Value], axis: int = 0) -> Any:
    return ops.gather(ops.shape_of(v["z"]), _long(axis), axis=0)


def _listed(v: Value, *more: int) -> Any:
    """List the sizes of a tensor, and numbers."""
    return ops.concat(ops.shape_of(v), _longs(*more), axis=0)


def _longs(*values: int) -> Any:
    return np.array(values, np.int64)


def _chosen(v: Mapping[str, Value], then: Body, otherwise: Body) -> Any:
    """Choose by a flag what is computed of a matrix, whose sizes a body calls by other names."""
    of = TensorType(float32, (symbol("rows"), symbol("columns")))
    bodies = {
        "then": subgraph(lambda x: [then(x)], of),
        "otherwise": subgraph(lambda x: [otherwise(x)], of),
    }
    return cond(ops.reduce_any(v["m"]), v["z"], **bodies)[0]


def _repeated(start: Any, step: Callable[[Any, Any], Any]) -> Any:
    """Compute a number anew in each of five rounds."""
    body = subgraph(lambda i, go, x: [go, step(x, i)], INDEX, FLAG, start.type)
    return loop(_long(5), None, start, body=body, carries=1)[0]


def _casts() -> Iterator[tuple[str, Rule]]:
    """Convert each input to each dtype, and back to 64 bits."""
    dtypes: Sequence[DType] = (int8, int16, int32, int64, uint8, uint16, uint32)
    for name in "aiutfm":
        for of in dtypes:
            yield (
                f"cast {INPUTS[name].dtype} to {of}",
                lambda v, name=name, of=of: ops.cast(ops.cast(v[name], dtype=of), dtype=int64),  # type: ignore[misc] # bound here
            )


RULES: Mapping[str, Rule] = {
    # The places that an op gives.
    "argmax": _place,
    "argmax, last": lambda v: ops.argmax(v["x"], axis=1, last=True),
    "argmin": lambda v: ops.argmin(v["x"], axis=1),
    "argsort": lambda v: ops.argsort(v["x"], axis=1),
    "top_k": lambda v: ops.top_k(v["x"], k=4, axis=1)[1],
    "iota": lambda v: ops.iota.new(shape=(PLACES,), axis=0),
    "nonzero": lambda v: ops.nonzero(v["m"]),
    "searchsorted": lambda v: ops.searchsorted(np.arange(9, dtype=np.float32), v["f"]),
    # Sizes, and what is made of them.
    "shape_of": lambda v: ops.shape_of(v["z"]),
    "size_of": lambda v: ops.size_of(v["z"]),
    "product of sizes": lambda v: ops.multiply(_size(v), _size(v, 1)),
    "sum of sizes": lambda v: ops.add(_size(v), _size(v, 1)),
    "reduce_prod": lambda v: ops.reduce_prod(ops.shape_of(v["z"])),
    "part of a size": lambda v: ops.floor_divide(
        ops.add(ops.multiply(_size(v), _long(6)), _long(7)), _long(4)
    ),
    "size less a place": lambda v: ops.subtract(ops.subtract(_size(v), _long(1)), _place(v)),
    "range": lambda v: ops.range(_long(2), ops.add(_size(v), _long(3)), _long(2)),
    # Sizes beside numbers, some of which need more than 32 bits.
    "sizes and a number": lambda v: _listed(v["z"], 7),
    "sizes and a far number": lambda v: _listed(v["z"], 2**40, -(2**31) - 1),
    "sizes and numbers, multiplied": lambda v: ops.multiply(
        _listed(v["z"], 7), _longs(3, 5, 2654435761)
    ),
    "sizes and numbers, hashed": lambda v: ops.remainder(
        ops.multiply(_listed(v["z"], 7), _longs(1, 2654435761, 2**31 - 1)), _long(97)
    ),
    "sizes and a number, reduce_prod": lambda v: ops.reduce_prod(_listed(v["z"], 2**31)),
    "size less a far number": lambda v: ops.remainder(
        ops.subtract(_size(v), _long(2**33)), _long(-7)
    ),
    "size less a number, multiplied": lambda v: ops.multiply(
        ops.subtract(_size(v), _long(5)), _long(2**27)
    ),
    "size or a far number": lambda v: ops.maximum(_long(2**35), _size(v)),
    "size in int32 that wraps": lambda v: ops.multiply(
        ops.cast(_size(v), dtype=int32), np.array(2**29 + 1, np.int32)
    ),
    # Bodies.
    "cond": lambda v: _chosen(
        v,
        lambda x: ops.floor_divide(ops.shape_of(ops.concat(x, x, x, axis=0)), _long(2)),
        lambda x: ops.subtract(ops.shape_of(x), _long(9)),
    ),
    "cond, far": lambda v: _chosen(
        v,
        lambda x: ops.multiply(_listed(x, 7), _longs(2**27, 5, 2654435761)),
        lambda x: _listed(x, 2**40),
    ),
    "loop": lambda v: _repeated(_few(v), lambda x, i: ops.add(x, i)),
    "loop, far": lambda v: _repeated(
        _few(v), lambda x, i: ops.remainder(ops.multiply(x, _long(2654435761)), _long(2**33 + 9))
    ),
    "loop of sizes": lambda v: _repeated(
        ops.shape_of(v["z"]), lambda x, i: ops.add(ops.multiply(x, _long(2**9)), i)
    ),
    # Limits.
    "clip": lambda v: _few(v, low=3, high=50),
    "clip, wide": lambda v: _few(v, low=-(2**33), high=2**34),
    "minimum": lambda v: ops.maximum(ops.minimum(v["a"], _long(50)), _long(3)),
    "maximum": lambda v: ops.minimum(ops.maximum(v["a"], _long(3)), _long(50)),
    "minimum of two": lambda v: ops.minimum(_few(v), _few(v, "b", 2, 40)),
    "maximum of two": lambda v: ops.maximum(_few(v), _few(v, "b", 2, 40)),
    "remainder": lambda v: ops.remainder(v["i"], np.array(61, np.int32)),
    "remainder, long": lambda v: ops.remainder(_few(v, high=2**33), _long(61)),
    "remainder, negative": lambda v: ops.remainder(v["i"], np.array(-7, np.int32)),
    "fmod": lambda v: ops.fmod(v["i"], np.array(61, np.int32)),
    "floor_divide": lambda v: ops.floor_divide(v["i"], np.array(-3, np.int32)),
    "truncate_divide": lambda v: ops.truncate_divide(v["i"], np.array(-3, np.int32)),
    # Arithmetic on what is known.
    "sum": lambda v: ops.add(_few(v), _place(v)),
    "sum, the other first": lambda v: ops.add(_place(v), _few(v)),
    "sum of negatives": lambda v: ops.add(_few(v, low=-9, high=-2), _place(v)),
    "difference": lambda v: ops.subtract(_few(v), _place(v)),
    "difference, the other first": lambda v: ops.subtract(_place(v), _few(v, low=-3)),
    "product": lambda v: ops.multiply(_few(v, low=-7), _place(v)),
    "square": lambda v: ops.square(_few(v, low=-7)),
    "negative": lambda v: ops.negative(_few(v, low=-7)),
    "abs": lambda v: ops.abs(_few(v, low=-7)),
    "sign": lambda v: ops.sign(v["a"]),
    "int32 that wraps": lambda v: ops.add(
        ops.multiply(v["i"], np.array(3, np.int32)), np.array(5, np.int32)
    ),
    "uint32 that wraps": lambda v: ops.add(v["u"], np.array(2**31, np.uint32)),
    "int64 that wraps": lambda v: ops.add(ops.multiply(v["a"], _long(3)), _long(5)),
    # Reductions.
    "reduce_sum": lambda v: ops.reduce_sum(ops.cast(v["m"], dtype=int64)),
    "reduce_sum of places": lambda v: ops.reduce_sum(ops.subtract(_place(v), _long(3))),
    "reduce_max": lambda v: ops.reduce_max(_few(v, low=-9, high=40)),
    "reduce_min": lambda v: ops.reduce_min(_few(v, low=-9, high=40)),
    "cumsum": lambda v: ops.cumsum(ops.subtract(_place(v), _long(3)), axis=0),
    # Elements that move.
    "where": lambda v: ops.where(v["m"], _place(v), _few(v, low=-2, high=40)),
    "concat": lambda v: ops.concat(_place(v), _few(v, low=-2, high=40), axis=0),
    "pad": lambda v: ops.pad(_few(v, low=3, high=40), padding=((1, 2),)),
    "gather": lambda v: ops.gather(_few(v, low=3, high=40), _few(v, "b"), axis=0),
    "flip": lambda v: ops.flip(_few(v, low=3, high=40), axes=(0,)),
    "slice": lambda v: ops.slice(_few(v, low=3), starts=(1,), limits=(7,), strides=(2,)),
    "sort": lambda v: ops.sort(_few(v, low=3, high=40), axis=0),
    "scatter_elements": lambda v: ops.scatter_elements(
        _few(v, low=3, high=40), ops.floor_divide(_place(v), _long(2)), _few(v, "b", -3, 44), axis=0
    ),
    "scatter_elements, added": lambda v: ops.scatter_elements(
        _few(v, low=3, high=40),
        ops.floor_divide(_place(v), _long(2)),
        _few(v, "b", 0, 4),
        axis=0,
        reduction="add",
    ),
    **dict(_casts()),
}
_EDGES = [
    bound + step
    for bits in (7, 8, 15, 16, 30, 31, 32, 63)
    for bound in (-(2**bits), 2**bits)
    for step in (-1, 0, 1)
]


def _drawn(of: DType, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if of is bool_:
        return rng.random(shape) < rng.choice([0.0, 0.5, 1.0])
    if of is float32:
        # Whole numbers that float32 holds, and others.
        numbers = [-(2.0**40), -(2.0**31), -3.5, -1.0, 0.0, 0.5, 8.0, 2.0**31, 2.0**32, 2.0**63]
        return rng.choice(np.array([*numbers, 1e30, -1e30], np.float32), shape)
    low, high = (int(bound) for bound in of.range)
    near = [*range(max(low, -10), 60)]
    every = [number for number in (*_EDGES, *near) if low <= number <= high]
    return rng.choice(np.array(every, of.numpy), shape)


def sets(count: int, seed: int = 0) -> list[list[Any]]:
    """Make values for the inputs."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        row = {
            name: _drawn(type_.dtype, rng, tuple(d for d in type_.shape if isinstance(d, int)))
            for name, type_ in INPUTS.items()
            if name not in "xz"
        }
        # The largest, and the smallest, at any place.
        row["x"] = rng.permuted(np.tile(np.arange(PLACES, dtype=np.float32), (COUNT, 1)), axis=1)
        row["z"] = np.zeros(rng.integers(0, 40, 2), np.float32)
        found.append([row[name] for name in INPUTS])
    return found
