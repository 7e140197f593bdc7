"""The one writer of tensors: their elements inside a model, or where else they lie.

Who writes a model, cleans one, or moves weights out of it and back asks here how many bytes that
takes, and whether it can be done.
"""

from __future__ import annotations

from typing import Any

from fusewire.ir.graph import Constant
from fusewire.onnx.elements import can_lie_outside, element_of, stored_bytes


def inline_tensor(name: str, constant: Constant) -> Any:
    """Describe a tensor with its elements."""
    from onnx import numpy_helper

    return numpy_helper.from_array(constant.array, name)


def external_tensor(name: str, constant: Constant) -> Any:
    """Describe a tensor whose elements are elsewhere, under their digest."""
    from onnx import TensorProto

    of = constant.type.dtype
    assert can_lie_outside(of), f"{name} is {of}"
    tensor = TensorProto(name=name, data_type=element_of(of), dims=constant.type.shape)
    put_outside(tensor, constant.digest, bytes_of(constant))
    return tensor


def bytes_of(constant: Constant) -> int:
    """Count the bytes of a constant in a file."""
    count = constant.type.size
    assert isinstance(count, int)
    return stored_bytes(constant.type.dtype, count)


def is_weight(constant: Constant, least: int) -> bool:
    """Tell whether a constant is large enough to lie outside of a model, and can."""
    return can_lie_outside(constant.type.dtype) and bytes_of(constant) >= least


def put_outside(tensor: Any, location: str, length: int, offset: int | None = None) -> None:
    """Say where the elements of a tensor lie, in place of what it said before."""
    tensor.data_location = tensor.EXTERNAL
    del tensor.external_data[:]
    places = {"location": location, "offset": offset, "length": length}
    for key, value in places.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))


def put_inside(tensor: Any, elements: bytes) -> None:
    """Put the elements that a tensor has outside into it."""
    del tensor.external_data[:]
    tensor.data_location = tensor.DEFAULT
    tensor.raw_data = elements


def place_of(tensor: Any) -> dict[str, str]:
    """Read where the elements of a tensor lie that we, or an engine, put outside."""
    return {entry.key: entry.value for entry in tensor.external_data}
