"""Reductions over axes, positions of extremes, running reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusewire.backends.torch.lowering.signature import Function, Lower, operand, output
from fusewire.backends.torch.storage import Tensor
from fusewire.dtypes import DType
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of


def limit(of: DType, largest: bool) -> Any:
    """Give the largest or the smallest value of a dtype."""
    if of.is_float:
        return float("inf" if largest else "-inf")
    return bool(largest) if of.kind == "bool" else int(of.range[largest])


def _axes(node: Node) -> tuple[int, ...]:
    axes: Any = node.attrs["axes"]
    rank = operand(node).rank
    return tuple(range(rank)) if axes is None else tuple(axis_of(axis, rank) for axis in axes)


def _reduced(reduce: Callable[[Tensor, tuple[int, ...], bool], Tensor]) -> Lower:
    """Lower by a function of x, axes, and whether to keep them."""

    def lower(node: Node) -> Function:
        axes, keepdims = _axes(node), bool(node.attrs["keepdims"])
        if not axes:
            # PyTorch takes no axes to mean all of them.
            return lambda x: reduce(x.unsqueeze(0), (0,), False)
        return lambda x: reduce(x, axes, keepdims)

    return lower


def _sum(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.sum(x, axes, keepdims, dtype=x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdims, dtype=x.dtype)
    return x


def _extreme(reduce: Function, largest: bool) -> Lower:
    def lower(node: Node) -> Function:
        axes, keepdims = _axes(node), bool(node.attrs["keepdims"])
        # The smallest there is, if nothing is there.
        start = limit(operand(node).dtype, not largest)

        def function(x: Tensor) -> Tensor:
            if not axes:
                return x
            if x.numel():
                return reduce(x, axes, keepdims)
            kept = [1 if i in axes else dim for i, dim in enumerate(x.shape)]
            whole = x.new_full(kept, start)
            return whole if keepdims else whole.squeeze(axes)

        return function

    return lower


def _position(find: Function) -> Lower:
    def lower(node: Node) -> Function:
        attrs: Any = node.attrs
        axis, keepdims, last = attrs["axis"], attrs["keepdims"], attrs["last"]

        def function(x: Tensor) -> Tensor:
            if not x.numel():
                shape = list(x.shape)
                shape[axis] = 1
                found = x.new_zeros(shape, dtype=torch.int64)
                return found if keepdims else found.squeeze(axis)
            if x.dtype == torch.bool:
                x = x.to(torch.uint8)
            if not last:
                return find(x, axis, keepdims)
            return x.shape[axis] - 1 - find(torch.flip(x, (axis,)), axis, keepdims)

        return function

    return lower


def _running(accumulate: Callable[[Tensor, int], Tensor], start: Callable[[DType], Any]) -> Lower:
    def lower(node: Node) -> Function:
        attrs: Any = node.attrs
        exclusive, reverse = attrs["exclusive"], attrs["reverse"]
        axis = axis_of(attrs["axis"], output(node).rank)
        neutral = start(output(node).dtype)

        def function(x: Tensor) -> Tensor:
            if not x.numel():
                return x.clone()
            x = torch.flip(x, (axis,)) if reverse else x
            if exclusive:
                # Drop what comes last and begin with the neutral element.
                first = torch.full_like(x.narrow(axis, 0, 1), neutral)
                x = torch.cat((first, x.narrow(axis, 0, x.shape[axis] - 1)), axis)
            found = accumulate(x, axis)
            return torch.flip(found, (axis,)) if reverse else found

        return function

    return lower


def _mean(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return torch.mean(x, axes, keepdims)


def _variance(take: Function) -> Lower:
    def lower(node: Node) -> Function:
        axes, keepdims = _axes(node), bool(node.attrs["keepdims"])
        correction: Any = node.attrs["correction"]
        if not axes:
            return lambda x: take(x.unsqueeze(0), (0,), correction=correction)
        return lambda x: take(x, axes, correction=correction, keepdim=keepdims)

    return lower


TABLE: dict[str, Lower] = {
    "reduce_sum": _reduced(_sum),
    "reduce_prod": _reduced(_prod),
    "reduce_mean": _reduced(_mean),
    "reduce_max": _extreme(torch.amax, largest=True),
    "reduce_min": _extreme(torch.amin, largest=False),
    "reduce_any": _reduced(torch.any),
    "reduce_all": _reduced(torch.all),
    "logsumexp": _reduced(torch.logsumexp),
    "argmax": _position(torch.argmax),
    "argmin": _position(torch.argmin),
    "cumsum": _running(lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype), lambda of: 0),
    "cumprod": _running(lambda x, axis: torch.cumprod(x, axis, dtype=x.dtype), lambda of: 1),
    "cummax": _running(
        lambda x, axis: torch.cummax(x, axis).values, lambda of: limit(of, largest=False)
    ),
    "cummin": _running(
        lambda x, axis: torch.cummin(x, axis).values, lambda of: limit(of, largest=True)
    ),
    "cumlogsumexp": _running(torch.logcumsumexp, lambda of: float("-inf")),
}
