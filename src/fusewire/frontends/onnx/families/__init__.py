"""Every ONNX op we read: ``TABLE`` maps ``Op`` or ``domain:Op`` to what turns it into ours."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire.frontends.onnx.call import Convert
from fusewire.frontends.onnx.families import (
    activation,
    control,
    conversion,
    convolution,
    creation,
    elementwise,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    resampling,
    slicing,
)

_MODULES = (
    elementwise, control, convolution, pooling, normalization, recurrent, quantization,
    resampling, activation, conversion, movement, creation, slicing,
)  # fmt: skip
TABLE: Mapping[str, Convert] = {
    name: convert for module in _MODULES for name, convert in module.TABLE.items()
}
