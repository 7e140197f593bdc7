"""The table of all ATen ops that are converted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from fusewire.frontends.torch.aten.rows import AtenRow

FAMILIES = (
    "elementwise", "logic", "conversion", "creation", "reduction", "contraction", "convolution",
    "pooling", "movement", "indexing", "sorting", "activation", "normalization", "attention",
    "recurrent", "resampling", "linalg", "loss", "bags", "quantization",
)  # fmt: skip


_TRAINING = "it is for training"
_RANDOM = "it draws random numbers, and ours are not PyTorch's"
_SIZE = "it makes a size, which is part of the types"
_WRITES = "it writes to its arguments; exporting makes it functional"
# Core ops that have no row, and why.
NOT_CONVERTED: Mapping[str, str] = {
    "_adaptive_avg_pool2d_backward.default": _TRAINING,
    "_native_batch_norm_legit.default": _TRAINING,
    "atan2.out": _WRITES,
    "avg_pool2d_backward.default": _TRAINING,
    "convolution_backward.default": _TRAINING,
    "embedding_dense_backward.default": _TRAINING,
    "max_pool2d_with_indices_backward.default": _TRAINING,
    "native_group_norm_backward.default": _TRAINING,
    "native_layer_norm_backward.default": _TRAINING,
    "rand.default": _RANDOM,
    "randn.default": _RANDOM,
    "randperm.default": _RANDOM,
    "resize_.default": _WRITES,
    "sym_is_contiguous.default": _SIZE,
    "sym_numel.default": _SIZE,
    "sym_size.int": _SIZE,
    "sym_storage_offset.default": _SIZE,
    "sym_stride.int": _SIZE,
}


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
