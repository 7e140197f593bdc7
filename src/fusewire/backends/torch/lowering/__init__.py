"""The lowering table: each op by functions of torch. The backend claims exactly what is in it."""

from __future__ import annotations

from fusewire.backends.torch.lowering import (
    activation,
    contraction,
    dynamic,
    elementwise,
    image,
    linalg,
    movement,
    order,
    recurrent,
    reduction,
    transformer,
    window,
)
from fusewire.backends.torch.lowering.control import CONTROL
from fusewire.backends.torch.lowering.signature import Lower

TABLE: dict[str, Lower] = {
    **elementwise.TABLE,
    **activation.TABLE,
    **reduction.TABLE,
    **order.TABLE,
    **linalg.TABLE,
    **contraction.TABLE,
    **window.TABLE,
    **movement.TABLE,
    **image.TABLE,
    **dynamic.TABLE,
    **transformer.TABLE,
    **recurrent.TABLE,
}

__all__ = ["CONTROL", "TABLE"]
