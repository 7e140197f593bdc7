"""Tensors as arrays and arrays as tensors, in the same memory, as quickly as a call needs it."""

from __future__ import annotations

from typing import Any

import torch
from numpy import ndarray

from fusewire.contract.frontend import Spec
from fusewire.errors import FusewireError
from fusewire.frontends.torch import tensors


def call_array(tensor: Any) -> Any:
    """Return an array in the memory of a tensor; ValueError if it has none to share.

    A Spec stays as it is.
    """
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError, AttributeError):
        return tensor if isinstance(tensor, Spec) else _odd_array(tensor)


def _odd_array(tensor: torch.Tensor) -> Any:
    """Return the array of a tensor that needs a gradient, or whose dtype NumPy lacks."""
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("A tensor is the conjugate or the negative of its memory.")
    try:
        return tensors.array_of(tensor)
    except (FusewireError, TypeError, RuntimeError) as error:
        raise ValueError(str(error)) from None


def result_tensor(array: Any) -> torch.Tensor:
    """Return a tensor in the memory of an array; one that is read-only is copied."""
    if type(array) is ndarray and not array.flags.writeable:
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        found: torch.Tensor = tensors.tensor_from(array)
        return found
