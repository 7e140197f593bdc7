"""How each op of ours is written, by the families in which ops are declared."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.onnx.write.families import (
    activation,
    arithmetic,
    bits,
    container,
    contraction,
    control,
    conversion,
    convolution,
    creation,
    functions,
    image,
    indexing,
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
    transformer,
)
from fusewire.onnx.write.model import Write

TABLE: Mapping[str, Write] = {
    name: write
    for family in (
        arithmetic,
        functions,
        bits,
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
    )
    for name, write in family.WRITERS.items()
}
