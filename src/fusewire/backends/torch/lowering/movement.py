"""Movement of elements: shape, order, parts, padding. Elements come in their carrier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fusewire.backends.torch.lowering.signature import (
    Function,
    Lower,
    Sized,
    output,
    places,
    plain,
    sized,
    with_attrs,
)
from fusewire.backends.torch.storage import CARRIERS, Tensor, beside, entrance
from fusewire.dtypes import DType
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of
from fusewire.ops.slicing import kept_part, pad_positions


def _reshape(node: Node) -> Function | Sized:
    shape: Any = node.attrs["shape"]
    open_ = [place for place, dim in enumerate(shape) if not isinstance(dim, int)]
    if len(open_) == 1 and 0 not in shape:
        # PyTorch finds one size by itself.
        shape = tuple(-1 if place in open_ else dim for place, dim in enumerate(shape))
        return lambda x: x.reshape(shape) if x.numel() else x.reshape(_empty(x, shape))
    return sized(shape, lambda x, sizes: x.reshape(sizes))


def _empty(x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Put 0 where a size is not known: of no elements PyTorch could not tell."""
    return tuple(0 if dim == -1 else dim for dim in shape)


def zero(of: DType) -> Any:
    """Give what pads: 0 as it is carried. (float8_e8m0fnu has no 0, and gives NaN.)"""
    return entrance(of)(np.zeros((), np.int8).astype(of.numpy)).item()


def _slice(node: Node) -> Function | Sized:
    attrs: Any = node.attrs
    strides: tuple[int, ...] = attrs["strides"]
    rank = len(strides)
    turned = [axis for axis, stride in enumerate(strides) if stride < 0]

    def function(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
        for axis, stride in enumerate(strides):
            start, limit = sizes[axis], sizes[rank + axis]
            if stride == 1 and start == 0 and limit == x.shape[axis]:
                continue
            # As many as fit, the last one cut short.
            count = -((start - limit) // stride)
            ends = (start, start + (count - 1) * stride)
            first, last = (min(ends), max(ends) + 1) if count else (0, 0)
            x = x[(slice(None),) * axis + (slice(first, last, abs(stride)),)]
        return torch.flip(x, turned) if turned else x

    return sized((*attrs["starts"], *attrs["limits"]), function)


def _pad(node: Node) -> Function | Sized:
    padding: tuple[tuple[Dim, Dim], ...] = node.attrs["padding"]  # type: ignore[assignment] # by its rule
    mode, fill = str(node.attrs["mode"]), zero(output(node).dtype)

    def function(x: Tensor, value: Tensor | None, sizes: tuple[int, ...]) -> Tensor:
        pairs = tuple(zip(sizes[::2], sizes[1::2], strict=True))
        return padded(x, fill if value is None else value, pairs, mode)

    return sized(tuple(itertools.chain.from_iterable(padding)), function)


def padded(x: Tensor, fill: Any, pairs: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """Pad by (low, high) of each axis; negative ones crop. What fills is a number, or a tensor."""
    grown = []
    for axis, (low, high) in enumerate(pairs):
        part, before, after = kept_part(x.shape[axis], low, high)
        if (part.start, part.stop) != (0, x.shape[axis]):
            x = x.narrow(axis, part.start, part.stop - part.start)
        grown.append((before, after))
    if not any(map(any, grown)):
        return x
    if mode == "constant" and not torch.is_tensor(fill):
        ends = itertools.chain.from_iterable(reversed(grown))
        return torch.constant_pad_nd(x, list(ends), fill)
    if mode == "constant":
        shape = [dim + low + high for dim, (low, high) in zip(x.shape, grown, strict=True)]
        # Not of what fills: a constant made while PyTorch exports could not be written to.
        whole = x.new_empty(shape).fill_(fill.reshape(()))
        inside = [slice(low, low + dim) for dim, (low, _) in zip(x.shape, grown, strict=True)]
        whole[tuple(inside)] = x
        return whole
    for axis, (low, high) in enumerate(grown):
        if low or high:
            at = pad_positions(x.shape[axis], low, high, mode).astype(np.int64)
            x = torch.index_select(x, axis, beside(x, at))
    return x


def _iota(node: Node) -> Function | Sized:
    axis = axis_of(node.attrs["axis"], output(node).rank)  # type: ignore[arg-type] # it is an int
    of = CARRIERS[output(node).dtype]

    def function(sizes: tuple[int, ...]) -> Tensor:
        column = (-1,) + (1,) * (len(sizes) - 1 - axis)
        return torch.arange(sizes[axis]).to(of).reshape(column).expand(sizes)

    return sized(output(node).shape, function)


def _squeeze(axes: tuple[int, ...]) -> Function:
    return lambda x: x.squeeze(axes)


def _expand_dims(node: Node) -> Function:
    axes: Any = node.attrs["axes"]
    rank = output(node).rank
    ordered = sorted(axis % rank for axis in axes)

    def function(x: Tensor) -> Tensor:
        for axis in ordered:
            x = x.unsqueeze(axis)
        return x

    return function


def _split(node: Node) -> Function | Sized:
    axis: Any = node.attrs["axis"]
    return sized(node.attrs["sizes"], lambda x, sizes: torch.split(x, list(sizes), axis))  # type: ignore[arg-type] # dims


def _flip(node: Node) -> Function:
    axes: Any = node.attrs["axes"]
    turned = tuple(range(output(node).rank)) if axes is None else axes
    return lambda x: torch.flip(x, turned)


def _repeat(node: Node) -> Function | Sized:
    axis: Any = node.attrs["axis"]
    count: Any = node.attrs["count"]
    return sized((count,), lambda x, sizes: torch.repeat_interleave(x, sizes[0], axis))


def _tile(node: Node) -> Function | Sized:
    return sized(node.attrs["repeats"], lambda x, sizes: x.repeat(sizes))  # type: ignore[arg-type] # dims


def _gather(node: Node) -> Function:
    axis: Any = node.attrs["axis"]
    return lambda x, indices: gathered(x, indices, axis)


def gathered(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Take slices of an axis; the axes of the indices replace it."""
    at = places(indices, x.shape[axis])
    if at.dim() == 1:
        return torch.index_select(x, axis, at)
    axis %= x.dim()
    found = torch.index_select(x, axis, at.reshape(-1))
    return found.reshape((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))


def _gather_elements(node: Node) -> Function:
    axis: Any = node.attrs["axis"]
    return lambda x, indices: torch.gather(x, axis, places(indices, x.shape[axis]))


def _gather_nd(node: Node) -> Function:
    batch: Any = node.attrs["batch_dims"]

    def function(x: Tensor, indices: Tensor) -> Tensor:
        outer, depth = indices.shape[:-1], indices.shape[-1]
        at = [
            torch.arange(outer[i], device=x.device).reshape((-1,) + (1,) * (len(outer) - 1 - i))
            for i in range(batch)
        ]
        at += list(indices.to(torch.int64).unbind(-1)) if depth else []
        return x[tuple(at)] if at else x.expand((*outer, *x.shape))

    return function


def _boolean_mask(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


_REDUCE = {"multiply": "prod", "max": "amax", "min": "amin", "add": "sum"}


def _scatter_elements(node: Node) -> Function:
    axis: Any = node.attrs["axis"]
    reduction = str(node.attrs["reduction"])

    def function(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        at = places(indices, x.shape[axis])
        if reduction == "set":
            return torch.scatter(x, axis, at, updates)
        if reduction == "add":
            return torch.scatter_add(x, axis, at, updates)
        return torch.scatter_reduce(x, axis, at, updates, _REDUCE[reduction])

    return function


def _scatter_nd(node: Node) -> Function:
    reduction = str(node.attrs["reduction"])

    def function(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        at = tuple(indices.to(torch.int64).unbind(-1))
        if reduction in ("set", "add"):
            return torch.index_put(x, at, updates, accumulate=reduction == "add")
        depth = len(at)
        flat = torch.zeros_like(at[0])
        for i, part in enumerate(at):
            dim = x.shape[i]
            if bool(((part < -dim) | (part >= dim)).any()):
                raise IndexError(f"An index of scatter_nd is outside axis {i} of size {dim}.")
            flat = flat * dim + places(part, dim)
        rows = x.reshape((math.prod(x.shape[:depth]), *x.shape[depth:]))
        new = updates.reshape((flat.numel(), *x.shape[depth:]))
        column = flat.reshape(-1, *[1] * (new.dim() - 1)).expand(new.shape)
        found = torch.scatter_reduce(rows, 0, column, new, _REDUCE[reduction])
        return found.reshape(x.shape)

    return function


def _dynamic_update_slice(x: Tensor, update: Tensor, starts: Tensor) -> Tensor:
    whole = x.clone()
    at = []
    for start, part, dim in zip(starts.tolist(), update.shape, x.shape, strict=True):
        start = min(max(start, 0), dim - part)
        at.append(slice(start, start + part))
    whole[tuple(at)] = update
    return whole


TABLE: dict[str, Lower] = {
    "reshape": _reshape,
    "transpose": with_attrs(lambda perm: lambda x: x.permute(perm)),
    "broadcast_to": lambda node: sized(output(node).shape, lambda x, sizes: x.expand(sizes)),
    "concat": with_attrs(lambda axis: lambda *xs: torch.cat(xs, axis)),
    "stack": with_attrs(lambda axis: lambda *xs: torch.stack(xs, axis)),
    "slice": _slice,
    "split": _split,
    "flip": _flip,
    "roll": with_attrs(lambda shifts, axes: lambda x: torch.roll(x, shifts, axes) if axes else x),
    "tile": _tile,
    "repeat": _repeat,
    "squeeze": with_attrs(_squeeze),
    "expand_dims": _expand_dims,
    "pad": _pad,
    "iota": _iota,
    "gather": _gather,
    "embedding": plain(lambda weight, indices: gathered(weight, indices, 0)),
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "boolean_mask": plain(_boolean_mask),
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "dynamic_update_slice": plain(_dynamic_update_slice),
    "shape_of": plain(lambda x: torch.tensor(x.shape, dtype=torch.int64, device=x.device)),
}
