"""Graphs that one index or length drives, for every op that has such an operand.

Each is made with the index as an input and computed in the graph, in int32 and int64. ``VALUES``
are what the index is set to; the rest of the inputs stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire import ops
from fusewire.dtypes import DType, int32, int64
from fusewire.errors import FusewireError
from fusewire.ir.graph import Graph, Value
from fusewire.ops.interpret import type_of

# By name; ``dim`` is the size of the axis that the index is about.
VALUES: dict[str, Callable[[int], int]] = {
    "-2^63": lambda dim: -(2**63),
    "-2^31": lambda dim: -(2**31),
    "-1000": lambda dim: -1000,
    "-dim-1": lambda dim: -dim - 1,
    "-dim": lambda dim: -dim,
    "-1": lambda dim: -1,
    "dim-1": lambda dim: dim - 1,
    "dim": lambda dim: dim,
    "2^31-1": lambda dim: 2**31 - 1,
    "2^32+1": lambda dim: 2**32 + 1,
    "2^62": lambda dim: 2**62,
}
_rng = np.random.default_rng(0)


def _floats(*shape: int) -> Any:
    return _rng.normal(size=shape).astype(np.float32)


X, LONG, CUBE = _floats(4, 3), _floats(16, 4), _floats(2, 4, 3)
SEQUENCE = _floats(5, 2, 3)
BOXES = np.array([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 3.0, 1.0]], np.float32)


def _layer(name: str, gates: int) -> Callable[..., Any]:
    w, r = _floats(1, 2 * gates, 3), _floats(1, 2 * gates, 2)
    return lambda x, lengths: getattr(ops, name)(x, w, r, None, lengths)[0]


@dataclass(frozen=True)
class Family:
    """An op: how to apply it to inputs and an index, good indices, and the size of the axis."""

    apply: Callable[..., Any]
    inputs: Sequence[Any]
    good: Any
    dim: int
    dtypes: tuple[DType, ...] = (int32, int64)


def _scatter(reduction: str) -> Callable[..., Any]:
    updates = _floats(2, 4)
    return lambda x, i: ops.scatter_elements(x, i, updates, axis=0, reduction=reduction)


def _scatter_nd(reduction: str) -> Callable[..., Any]:
    updates = _floats(2, 4)
    return lambda x, i: ops.scatter_nd(x, i, updates, reduction=reduction)


_PLACES = [[0, 1, 2, 3], [3, 2, 1, 0]]
FAMILIES: dict[str, Family] = {
    "gather": Family(lambda x, i: ops.gather(x, i, axis=0), [X], [1, 2], 4),
    "gather last": Family(lambda x, i: ops.gather(x, i, axis=-1), [X], [1, 2], 3),
    "gather scalar": Family(lambda x, i: ops.gather(x, i, axis=1), [CUBE], 1, 4),
    "embedding": Family(lambda x, i: ops.embedding(x, i), [X], [[1, 2]], 4),
    "gather_elements": Family(
        lambda x, i: ops.gather_elements(x, i, axis=0), [X], [[1, 2, 0], [0, 1, 3]], 4
    ),
    "gather_nd": Family(lambda x, i: ops.gather_nd(x, i), [X], [[1], [2]], 4),
    "gather_nd places": Family(lambda x, i: ops.gather_nd(x, i), [X], [[1, 0], [2, 2]], 4),
    "gather_nd batch": Family(
        lambda x, i: ops.gather_nd(x, i, batch_dims=1), [CUBE], [[1, 0], [2, 2]], 4
    ),
    "scatter_elements set": Family(_scatter("set"), [LONG], _PLACES, 16),
    "scatter_elements add": Family(_scatter("add"), [LONG], _PLACES, 16),
    "scatter_elements max": Family(_scatter("max"), [LONG], _PLACES, 16),
    "scatter_nd set": Family(_scatter_nd("set"), [LONG], [[1], [2]], 16),
    "scatter_nd add": Family(_scatter_nd("add"), [LONG], [[1], [2]], 16),
    "tensor_scatter": Family(
        lambda x, i: ops.tensor_scatter(x, _floats(2, 2, 3), i), [CUBE], [1, 2], 4
    ),
    "tensor_scatter circular": Family(
        lambda x, i: ops.tensor_scatter(x, _floats(2, 2, 3), i, circular=True), [CUBE], [1, 2], 4
    ),
    "reverse_sequence": Family(
        lambda x, n: ops.reverse_sequence(x, n, batch_axis=1, time_axis=0), [SEQUENCE], [1, 3], 5
    ),
    "rnn": Family(_layer("rnn", 1), [SEQUENCE], [1, 3], 5, (int32,)),
    "lstm": Family(_layer("lstm", 4), [SEQUENCE], [1, 3], 5, (int32,)),
    "gru": Family(_layer("gru", 3), [SEQUENCE], [1, 3], 5, (int32,)),
    "nll_loss": Family(lambda x, i: ops.nll_loss(x, i), [X], [0, 1, 2, 0], 3),
    "nll_loss ignoring": Family(
        lambda x, i: ops.nll_loss(x, i, ignore_index=-1), [X], [0, 1, -1, 0], 3
    ),
    "cross_entropy": Family(lambda x, i: ops.cross_entropy(x, i), [X], [0, 1, 2, 0], 3),
    "max_unpool": Family(
        lambda x, i: ops.max_unpool(x, i, shape=(1, 1, 8)),
        [_floats(1, 1, 2)],
        [[[1, 2]]],
        8,
        (int64,),
    ),
    "roi_align": Family(
        lambda x, i: ops.roi_align(x, BOXES, i, sizes=(2, 2)),
        [_floats(3, 2, 4, 4)],
        [0, 1],
        3,
        (int64,),
    ),
    "coo_matmul": Family(
        lambda b, i: ops.coo_matmul(i, _floats(2), b, rows=4), [X], [[0, 1], [2, 2]], 4, (int64,)
    ),
    "coo_to_dense": Family(
        lambda v, i: ops.coo_to_dense(i, v, rows=4, columns=4),
        [_floats(2)],
        [[0, 1], [2, 2]],
        4,
        (int64,),
    ),
    "csr_matmul": Family(
        lambda b, i: ops.csr_matmul(np.array([0, 1, 2]), i, _floats(2), b), [X], [1, 2], 4, (int64,)
    ),
    "csr_to_dense": Family(
        lambda v, i: ops.csr_to_dense(np.array([0, 1, 2]), i, v, columns=4),
        [_floats(2)],
        [1, 2],
        4,
        (int64,),
    ),
    "csr_matmul starts": Family(
        lambda b, i: ops.csr_matmul(i, np.array([1, 2]), _floats(2), b), [X], [0, 1, 2], 2, (int64,)
    ),
    "csr_to_dense starts": Family(
        lambda v, i: ops.csr_to_dense(i, np.array([1, 2]), v, columns=4),
        [_floats(2)],
        [0, 1, 2],
        2,
        (int64,),
    ),
    "csr_to_coo starts": Family(
        lambda c, i: ops.csr_to_coo(i, c), [np.array([1, 2])], [0, 1, 2], 2, (int64,)
    ),
    "coo_to_csr": Family(
        lambda v, i: ops.coo_to_csr(i, v, rows=4)[0], [_floats(2)], [[0, 1], [2, 2]], 4, (int64,)
    ),
    "dynamic_top_k": Family(lambda x, k: ops.dynamic_top_k(x, k)[0], [X], 1, 3),
    "one_hot": Family(
        lambda v, i: ops.one_hot(i, v, depth=3), [np.array([0, 1], np.float32)], [1, 2], 3
    ),
    "dynamic_update_slice": Family(
        lambda x, i: ops.dynamic_update_slice(x, _floats(2, 2), i), [X], [1, 0], 4
    ),
}


@dataclass(frozen=True, eq=False)
class IndexModel:
    """A graph whose last input but one is an index, and the last 0, which is added to it."""

    name: str
    graph: Graph
    inputs: tuple[Any, ...]
    at: int
    dim: int

    def with_index(self, number: int) -> list[Any] | None:
        """Set the first element of the index; None if its dtype does not hold the number."""
        index = np.array(self.inputs[self.at])
        bounds = np.iinfo(index.dtype)
        if not bounds.min <= number <= bounds.max:
            return None
        index.reshape(-1)[0] = number
        return [*self.inputs[: self.at], index, *self.inputs[self.at + 1 :]]


def models(names: Sequence[str] = ()) -> Iterator[IndexModel]:
    """Make the models of some families, or of all."""
    for name in names or FAMILIES:
        for of in FAMILIES[name].dtypes:
            for is_computed in (False, True):
                yield _model(name, of, is_computed)


def _model(name: str, of: DType, is_computed: bool) -> IndexModel:
    family = FAMILIES[name]
    index, zero = np.array(family.good, of.numpy), np.zeros((), of.numpy)
    arrays = [*family.inputs, index, *([zero] if is_computed else [])]
    values = [Value(type_of(array), f"input{i}") for i, array in enumerate(arrays)]
    at = len(family.inputs)
    used = ops.add(values[at], values[-1]) if is_computed else values[at]
    output = family.apply(*values[:at], used)
    how = "computed" if is_computed else "input"
    return IndexModel(
        f"{name}, {of.name}, {how}", Graph(values, [output]), tuple(arrays), at, family.dim
    )


def outcome(call: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """Run, and return the answer as a list, or what was raised as text."""
    try:
        answer = call(*inputs)
    except FusewireError as error:
        return f"{type(error).__name__}: {error}"
    return np.asarray(answer).tolist()


def differs(found: Any, expected: Any) -> str:
    """Say how an outcome differs from the reference's; nothing if it does not."""
    if isinstance(found, str) or isinstance(expected, str):
        return "" if found == expected else f"found {found!s:.200}, expected {expected!s:.200}"
    is_same = np.shape(found) == np.shape(expected) and np.allclose(
        found, expected, rtol=1e-3, atol=1e-5, equal_nan=True
    )
    return "" if is_same else f"another answer: {found!s:.100}, expected {expected!s:.100}"
