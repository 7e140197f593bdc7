"""The table of all ATen ops that are converted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from fusewire.frontends.torch.aten.rows import AtenRow

FAMILIES = (
    "elementwise", "logic", "conversion", "creation", "reduction", "contraction", "convolution",
    "pooling", "movement", "indexing", "sorting", "activation", "normalization", "attention",
    "recurrent", "resampling", "linalg", "loss",
)  # fmt: skip


@cache
def aten_rows() -> Mapping[str, AtenRow]:
    """Map names such as ``add.Tensor`` to rows."""
    table: dict[str, AtenRow] = {}
    for family in FAMILIES:
        rows = import_module(f"fusewire.frontends.torch.aten.{family}").ROWS.by_name
        repeated = table.keys() & rows.keys()
        assert not repeated, f"in two families: {sorted(repeated)}"
        table.update(rows)
    return table
