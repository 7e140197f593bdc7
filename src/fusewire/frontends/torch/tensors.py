"""Tensors as arrays and arrays as tensors, of the same memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.dtypes import DType, dtype
from fusewire.errors import DTypeError, TraceError
from fusewire.ir.graph import Array

# NumPy's own dtypes go over as they are; others of a width as integers of that width.
_CARRIERS = {8: "uint8", 16: "int16"}


def our_dtype(of: Any) -> DType:
    """Translate a torch.dtype; DTypeError if there is none like it."""
    return dtype(str(of).removeprefix("torch."))


def torch_dtype(of: DType) -> Any:
    """Translate a dtype to PyTorch's; DTypeError if it has none."""
    import torch

    found = getattr(torch, of.name, None)
    if not isinstance(found, torch.dtype):
        raise DTypeError(f"PyTorch has no dtype {of.name}. Cast the array first.")
    return found


def is_native(of: DType) -> bool:
    """Tell whether NumPy has the dtype itself; ml_dtypes has the others."""
    return of.numpy.kind in "biufc"


def array_of(tensor: Any) -> Array:
    """View a dense CPU tensor as an array; it has the tensor's strides and memory."""
    import torch

    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        where = f"{str(tensor.layout).removeprefix('torch.')} tensor on {tensor.device}"
        raise TraceError(f"A {where} has no elements in memory that we can read. Move it to cpu.")
    plain = tensor.detach().resolve_conj().resolve_neg()
    of = our_dtype(plain.dtype)
    if is_native(of):
        return plain.numpy()  # type: ignore[no-any-return] # torch is not typed here
    carried = plain.view(getattr(torch, _CARRIERS[of.itemsize * 8])).numpy()
    return carried.view(of.numpy)  # type: ignore[no-any-return] # torch is not typed here


def unwritten(tensor: Any) -> Callable[[], bool]:
    """Return what tells whether a tensor has not been written to since now.

    One that was made in inference mode does not tell.
    """
    if tensor.is_inference():
        return lambda: True
    version = tensor._version
    return lambda: bool(tensor._version == version)


def tensor_from(array: Any) -> Any:
    """View an array as a tensor; only one with negative strides is copied."""
    import torch

    array = np.asarray(array)
    of = dtype(array.dtype)
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    carried = array if is_native(of) else array.view(_CARRIERS[of.itemsize * 8])
    with warnings.catch_warnings():
        # Of arrays that are read-only: whoever is given the tensor must not write to it.
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(carried)
    return tensor if is_native(of) else tensor.view(torch_dtype(of))
