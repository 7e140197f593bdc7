"""Tables of rules, one module per area; ``TABLES`` is the order in which they are tried."""

from __future__ import annotations

from fusewire.rewrite.rule import RuleTable
from fusewire.rewrite.rules import (
    algebra,
    casts,
    choice,
    movement,
    raise_activation,
    raise_attention,
    raise_normalization,
    raise_quantized,
    reductions,
    shapes,
    signs,
    slicing,
)

TABLES: tuple[RuleTable, ...] = (
    shapes.TABLE, algebra.TABLE, signs.TABLE, choice.TABLE, casts.TABLE, reductions.TABLE,
    movement.TABLE, slicing.TABLE, raise_activation.TABLE, raise_normalization.TABLE,
    raise_attention.TABLE, raise_quantized.TABLE,
)  # fmt: skip
