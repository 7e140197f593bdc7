"""Open ONNX models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusewire.frontend import Limits
from fusewire.ir.graph import Constant


@dataclass(frozen=True)
class Opened:
    """A parsed model; placeholder of the lead, to be replaced by the safe loader."""

    proto: Any
    source: str

    def constant(self, tensor: Any) -> Constant:
        from onnx import numpy_helper

        return Constant.of(numpy_helper.to_array(tensor))

    def sparse(self, tensor: Any) -> Constant:
        from onnx import numpy_helper

        values, places = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        dense[tuple(places.T)] = values
        return Constant.of(dense)


def open_model(source: Any, limits: Limits) -> Opened:
    import onnx

    name = source if isinstance(source, str) else "model"
    return Opened(onnx.load(source) if isinstance(source, str) else source, name)
