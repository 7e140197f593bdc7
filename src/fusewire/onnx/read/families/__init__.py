"""Every ONNX op we read: ``TABLE`` maps ``Op`` or ``domain:Op`` to what turns it into ours."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.onnx.read.call import Read
from fusewire.onnx.read.families import (
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
    learning,
    loss,
    microsoft,
    movement,
    normalization,
    patches,
    pooling,
    quantization,
    random,
    recurrent,
    reduction,
    resampling,
    scan,
    slicing,
    spectrum,
    strings,
    training,
    transformer,
)

_MODULES = (
    elementwise, control, scan, convolution, pooling, normalization, recurrent, quantization,
    resampling, transformer, activation, conversion, movement, creation, slicing, indexing,
    reduction, contraction, image, patches, loss, spectrum, random, container, strings, learning,
    training, microsoft,
)  # fmt: skip
TABLE: Mapping[str, Read] = {
    name: convert for module in _MODULES for name, convert in module.TABLE.items()
}
