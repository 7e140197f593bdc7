"""The lowering table: each op in jax. The backend claims exactly what is in it."""

from __future__ import annotations

from fusewire.backends.xla.lowering import (
    dynamic,
    elementwise,
    image,
    linalg,
    movement,
    order,
    reduction,
    special,
    window,
)
from fusewire.backends.xla.lowering.control import CONTROL
from fusewire.backends.xla.lowering.signature import Lower

TABLE: dict[str, Lower] = {
    **elementwise.TABLE,
    **special.TABLE,
    **reduction.TABLE,
    **order.TABLE,
    **linalg.TABLE,
    **window.TABLE,
    **movement.TABLE,
    **image.TABLE,
    **dynamic.TABLE,
}

__all__ = ["CONTROL", "TABLE"]
