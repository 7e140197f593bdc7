"""Losses and distances."""

from __future__ import annotations

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import loss

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


@ROWS.add("cross_entropy_loss", ops="cross_entropy")
def _cross_entropy(
    call: AtenCall,
    x: Value,
    labels: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:
    if label_smoothing or not labels.tensor.dtype.is_integer or x.tensor.rank < 2:
        raise call.refusal("labels must be numbers of classes, without smoothing, in a batch.")
    return loss.cross_entropy(
        x, labels, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction]
    )
