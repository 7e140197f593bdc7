"""How PyTorch stores each dtype, and in which dtype a node computes.

The dtypes that few kernels of PyTorch take are carried in others: uint16 in int32 and uint32 in
int64, as numbers; uint64 in int64, floats of 8 bits or fewer in uint8 and integers under 8 bits in
int8 or uint8, as bits. The values of small floats are looked up in tables taken from ml_dtypes:
exact, and not fast.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.ir.graph import Array
from fusewire.numerics.codes import code_steps, code_values

# A tensor of torch, or what stands for one while a program is exported.
Tensor = Any

_NATIVE = {
    dtypes.bool_: torch.bool,
    dtypes.int8: torch.int8,
    dtypes.int16: torch.int16,
    dtypes.int32: torch.int32,
    dtypes.int64: torch.int64,
    dtypes.uint8: torch.uint8,
    dtypes.float16: torch.float16,
    dtypes.bfloat16: torch.bfloat16,
    dtypes.float32: torch.float32,
    dtypes.float64: torch.float64,
    dtypes.complex64: torch.complex64,
    dtypes.complex128: torch.complex128,
}
_CARRIED = {
    dtypes.uint16: torch.int32,
    dtypes.uint32: torch.int64,
    dtypes.uint64: torch.int64,
    **{of: torch.uint8 for of in dtypes.NARROW if of.kind != "int"},
    **{of: torch.int8 for of in dtypes.NARROW if of.kind == "int"},
}
CARRIERS: dict[DType, Any] = {**_NATIVE, **_CARRIED}
# Bits of the integers that are carried as numbers in wider ones.
_MASKS = {dtypes.uint16: 0xFFFF, dtypes.uint32: 0xFFFFFFFF}
HALVES = (dtypes.float16, dtypes.bfloat16)


def is_small(of: DType) -> bool:
    """Tell whether a dtype is a float of 8 bits or fewer, carried as its code."""
    return of.is_float and of.is_narrow


def computed(of: DType) -> Any:
    """Give the dtype in which a node computes unless its kernels take narrower floats."""
    return torch.float32 if of.is_float and of.bits <= 16 else CARRIERS[of]


def quiet_about_read_only() -> None:
    """Have PyTorch give its one warning about read-only arrays now: nobody writes to ours."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)


def entrance(of: DType) -> Callable[[Array], Tensor]:
    """Give what makes a tensor of an array: a view of it, but for integers PyTorch lacks."""
    if of is dtypes.bfloat16:
        return lambda x: torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    if of in _MASKS:
        return lambda x: torch.from_numpy(x).to(CARRIERS[of])
    if of is dtypes.uint64:
        return lambda x: torch.from_numpy(x.view(np.int64))
    if is_small(of):
        return lambda x: torch.from_numpy(x.view(np.uint8))
    if of.is_narrow:
        carried = np.int8 if of.kind == "int" else np.uint8
        return lambda x: torch.from_numpy(x.astype(carried))
    found: Callable[[Array], Tensor] = torch.from_numpy
    return found


def exit_of(of: DType) -> Callable[[Tensor], Array]:
    """Give what makes an array of a contiguous tensor, over the same memory."""
    if of is dtypes.bfloat16:
        return lambda x: x.view(torch.int16).numpy().view(of.numpy)
    if of is dtypes.uint16:
        return lambda x: x.to(torch.int16).numpy().view(np.uint16)
    if of is dtypes.uint32:
        return lambda x: x.to(torch.int32).numpy().view(np.uint32)
    if of is dtypes.uint64 or is_small(of):
        return lambda x: x.numpy().view(of.numpy)
    if of.is_narrow:
        return lambda x: x.numpy().astype(of.numpy)
    found: Callable[[Tensor], Array] = torch.Tensor.numpy
    return found


def beside(x: Tensor, array: Array) -> Tensor:
    """Give an array as a tensor where another one is; floats in its dtype."""
    tensor = torch.from_numpy(array)
    tensor = tensor.to(x.dtype) if tensor.is_floating_point() else tensor
    return tensor.to(x.device)


def work(of: DType) -> Callable[[Tensor], Tensor] | None:
    """Give what brings an operand to the dtype in which a node computes; None if it is."""
    if is_small(of):
        table = torch.from_numpy(code_values(of).astype(np.float32))
        return lambda x: table.to(x.device)[x.to(torch.int64)]
    if of in HALVES:
        return lambda x: x.to(torch.float32)
    return None


def store(of: DType) -> Callable[[Tensor], Tensor] | None:
    """Give what brings a result to its carrier: rounds floats, drops bits of integers."""
    if is_small(of):
        return lambda x: encode(x, of)
    if of in _MASKS:
        mask = _MASKS[of]
        return lambda x: x & mask
    if of.is_narrow:
        unused = 8 - of.bits
        # Shifting back copies the sign of an int8, and zeros into a uint8.
        return lambda x: (x << unused) >> unused
    carried = CARRIERS[of]
    return lambda x: x.to(carried)


def encode(x: Tensor, of: DType, saturate: bool = False) -> Tensor:
    """Round numbers to the codes of a small float, as ml_dtypes rounds them.

    ``saturate`` gives the nearest finite value for what is beyond it.
    """
    limits, codes, (zero, nan) = (part.to(x.device) for part in _tables(of, saturate))
    wide = x.to(torch.float64)
    known = torch.where(torch.isnan(wide), 0.0, wide)
    found = codes[torch.searchsorted(limits, known, right=True)]
    found = torch.where((wide == 0) & torch.signbit(wide), zero, found)
    return torch.where(torch.isnan(wide), nan, found)


@cache
def _tables(of: DType, saturate: bool) -> tuple[Tensor, Tensor, Tensor]:
    limits, codes, special = (torch.from_numpy(x.copy()) for x in code_steps(of, saturate))
    return limits, codes, special
