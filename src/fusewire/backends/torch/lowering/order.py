"""Sorting, choosing and searching. Sorting is stable, and NaN is the largest, as ours is."""

from __future__ import annotations

from typing import Any

import torch

from fusewire.backends.torch.lowering.signature import Function, Lower, Sized, sized, with_attrs
from fusewire.backends.torch.storage import Tensor
from fusewire.ir.graph import Node


def _sort(axis: int, descending: bool) -> Function:
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True).values


def _argsort(axis: int, descending: bool) -> Function:
    return lambda x: torch.sort(x, dim=axis, descending=descending, stable=True).indices


def first(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Take the first k in order, and their places; equal elements keep their order."""
    values, at = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), at.narrow(axis, 0, k)


def _top_k(node: Node) -> Function | Sized:
    attrs: Any = node.attrs
    axis, largest = attrs["axis"], attrs["largest"]
    return sized((attrs["k"],), lambda x, sizes: first(x, sizes[0], axis, largest))


def _dynamic_top_k(node: Node) -> Function:
    attrs: Any = node.attrs
    axis, largest = attrs["axis"], attrs["largest"]

    def function(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        count = int(k)
        if not 0 <= count <= x.shape[axis]:
            raise ValueError(f"k of dynamic_top_k is 0 to {x.shape[axis]}, found {count}.")
        return first(x, count, axis, largest)

    return function


def _searchsorted(right: bool) -> Function:
    def function(row: Tensor, x: Tensor) -> Tensor:
        if row.dtype == torch.bool:
            row, x = row.to(torch.uint8), x.to(torch.uint8)
        row, x = row.contiguous(), x.contiguous()
        if not row.is_floating_point():
            return torch.searchsorted(row, x, right=right)
        # NaN is the last, and equal to itself; PyTorch's own search takes it for nothing.
        is_nan = row.isnan()
        found = torch.searchsorted(row.masked_fill(is_nan, torch.inf), x, right=right)
        numbers = row.shape[0] - is_nan.sum()
        last = row.shape[0] if right else numbers
        return torch.where(x.isnan(), last, torch.minimum(found, numbers))

    return function


def _nonzero(x: Tensor) -> Tensor:
    if x.dim() == 0:
        return x.new_zeros((0, int(bool(x))), dtype=torch.int64)
    return torch.nonzero(x).t()


TABLE: dict[str, Lower] = {
    "sort": with_attrs(_sort),
    "argsort": with_attrs(_argsort),
    "top_k": _top_k,
    "dynamic_top_k": _dynamic_top_k,
    "searchsorted": with_attrs(_searchsorted),
    "nonzero": lambda node: _nonzero,
}
