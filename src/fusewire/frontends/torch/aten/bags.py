"""Bags of embeddings: rows of a table, reduced bag by bag."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import int64
from fusewire.frontends.torch.aten.indexing import cast_index
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ops import (
    creation,
    elementwise,
    indexing,
    logic,
    movement,
    reduction,
    scatter,
    statistics,
)

ROWS = Rows()

_SUM, _MEAN, _MAX = range(3)


@ROWS.add("embedding_bag", "embedding_bag.padding_idx", "_embedding_bag",
          "_embedding_bag_forward_only",
          ops="gather, reduce_sum, reduce_mean, reduce_max, scatter_nd")  # fmt: skip
def _embedding_bag(
    call: AtenCall,
    table: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Value, None, None, None]:
    if any(call.uses(place) for place in (1, 2, 3)):
        raise call.refusal("more than the bags is used. Use the result alone.")
    if padding_idx is not None and padding_idx >= 0:
        raise call.refusal("it leaves a padding_idx out. Give that row zeros, and use mode='sum'.")
    rows = indexing.gather(table, cast_index(indices), axis=0)
    if weights is not None:
        rows = elementwise.multiply(rows, movement.expand_dims(weights, axes=(1,)))
    length = None if include_last_offset else _even_length(call)
    if length is not None:
        bags = movement.reshape(rows, shape=(call.shape[0], length, rows.tensor.shape[1]))
        reduce = (reduction.reduce_sum, statistics.reduce_mean, reduction.reduce_max)[mode]
        return reduce(bags, axes=(1,)), None, None, None
    return _of_offsets(call, rows, offsets, mode), None, None, None


def _even_length(call: AtenCall) -> Dim | None:
    """Give the length of all bags, if the offsets are a range: as indices of two axes make it."""
    start = call.node.args[2]
    if str(getattr(start, "target", "")) != "aten.arange.start_step" or len(start.args) < 3:
        return None
    first, step = start.args[0], start.args[2]
    return step if first == 0 and isinstance(step, int) and step > 0 else None


def _of_offsets(call: AtenCall, rows: Value, offsets: Value, mode: int) -> Value:
    """Reduce bags that begin at given places, some of which may be empty."""
    count, width = call.shape
    places = creation.iota(shape=(rows.tensor.shape[0], 1), axis=0, dtype=int64)
    is_begun = logic.less_equal(movement.expand_dims(cast_index(offsets), axes=(0,)), places)
    before = reduction.reduce_sum(call.value(is_begun, int64), axes=(1,))
    bag = elementwise.subtract(before, call.value(1, int64))
    bag = movement.expand_dims(bag, axes=(1,))
    zeros = creation.full(call.value(0), shape=(count, width))
    ones = creation.full(call.value(1), shape=(rows.tensor.shape[0],))
    empty = creation.full(call.value(0), shape=(count,))
    sizes = scatter.scatter_nd(empty, bag, ones, reduction="add")
    sizes = movement.expand_dims(sizes, axes=(1,))
    if mode == _MAX:
        least = creation.full(call.value(-np.inf), shape=(count, width))
        largest = scatter.scatter_nd(least, bag, rows, reduction="max")
        return logic.where(logic.greater(sizes, call.value(0)), largest, zeros)
    total = scatter.scatter_nd(zeros, bag, rows, reduction="add")
    return (
        total
        if mode == _SUM
        else elementwise.divide(total, elementwise.maximum(sizes, call.value(1)))
    )
