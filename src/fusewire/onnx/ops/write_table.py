"""How each op of ours is written, by its name. Loads every family that ONNX can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fusewire.onnx.ops import (
    activation,
    container,
    contraction,
    control,
    conversion,
    convolution,
    creation,
    elementwise,
    image,
    indexing,
    logic,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resampling,
    scatter,
    slicing,
    sorting,
    spectrum,
    strings,
    transformer,
)

if TYPE_CHECKING:
    from fusewire.onnx.write.model import Write

FAMILIES = (
    elementwise,
    logic,
    conversion,
    reduction,
    contraction,
    convolution,
    pooling,
    quantization,
    spectrum,
    movement,
    slicing,
    creation,
    indexing,
    scatter,
    sorting,
    resampling,
    image,
    activation,
    normalization,
    transformer,
    recurrent,
    control,
    container,
    strings,
)
WRITERS: Mapping[str, Write] = {
    name: write for family in FAMILIES for name, write in family.WRITERS.items()
}
