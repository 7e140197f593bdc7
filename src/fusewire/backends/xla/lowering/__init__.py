"""The table: how each op is said in jax. What is in it is what this backend claims."""

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
