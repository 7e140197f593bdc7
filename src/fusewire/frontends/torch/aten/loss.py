"""Losses and distances."""

from __future__ import annotations

import numpy as np

from fusewire.frontends.torch.aten.reduction import vector_norm
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.builder import constant
from fusewire.ir.graph import Value
from fusewire.ops import elementwise, loss, movement
from fusewire.ops.indexing import gather

ROWS = Rows()

_REDUCTIONS = ("none", "mean", "sum")


@ROWS.add("mse_loss", ops="mse_loss")
def _mse_loss(call: AtenCall, x: Value, y: Value, reduction: int = 1) -> Value:
    return loss.mse_loss(*call.values(x, y), reduction=_REDUCTIONS[reduction])


@ROWS.add("l1_loss", ops="l1_loss")
def _l1_loss(call: AtenCall, x: Value, y: Value, reduction: int = 1) -> Value:
    return loss.l1_loss(*call.values(x, y), reduction=_REDUCTIONS[reduction])


@ROWS.add("huber_loss", ops="huber_loss")
def _huber_loss(
    call: AtenCall, x: Value, y: Value, reduction: int = 1, delta: float = 1.0
) -> Value:
    return loss.huber_loss(*call.values(x, y), reduction=_REDUCTIONS[reduction], delta=float(delta))


@ROWS.add("_cdist_forward", ops="norm_l2, norm_l1")
def _cdist(call: AtenCall, x: Value, y: Value, p: float, mode: int | None) -> Value:
    """Take the distance of each row of x from each row of y."""
    rank = x.tensor.rank
    left = movement.expand_dims(x, axes=(rank - 1,))
    right = movement.expand_dims(y, axes=(y.tensor.rank - 2,))
    difference = elementwise.subtract(left, right)
    return vector_norm(call, difference, p, (-1,), False)


@ROWS.add("_pdist_forward", ops="norm_l2, norm_l1")
def _pdist(call: AtenCall, x: Value, p: float = 2.0) -> Value:
    """Take the distances of all pairs of rows."""
    count = call.number(x.tensor.shape[0], "the number of rows")
    left, right = (constant(i) for i in np.triu_indices(count, 1))
    rows = [gather(x, places, axis=0) for places in (left, right)]
    return vector_norm(call, elementwise.subtract(*rows), p, (-1,), False)
