"""Make TensorProtos of constants, as the writer and the reader need them."""

from __future__ import annotations

from typing import Any

from fusewire.ir.graph import Constant
from fusewire.onnx.elements import element_of


def external_tensor(name: str, constant: Constant) -> Any:
    """Describe a tensor whose elements are elsewhere, under their digest."""
    from onnx import TensorProto

    of = constant.type.dtype
    tensor = TensorProto(name=name, data_type=element_of(of), dims=constant.type.shape)
    tensor.data_location = TensorProto.EXTERNAL
    size = constant.type.size
    assert isinstance(size, int)
    for key, value in (("location", constant.digest), ("length", size * of.bits // 8)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def inline_tensor(name: str, constant: Constant) -> Any:
    """Describe a tensor with its elements."""
    from onnx import numpy_helper

    return numpy_helper.from_array(constant.array, name)
