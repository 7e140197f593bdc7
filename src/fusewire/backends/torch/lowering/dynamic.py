"""Ops whose shape is an operand: read when they run."""

from __future__ import annotations

from typing import Any

import torch

from fusewire.backends.torch.lowering.movement import padded, zero
from fusewire.backends.torch.lowering.signature import Function, Lower, operand, output, plain
from fusewire.backends.torch.storage import Tensor
from fusewire.ir.graph import Node


def _reshape(x: Tensor, shape: Tensor) -> Tensor:
    return x.reshape(shape.tolist())


def _broadcast(x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _full(value: Tensor, shape: Tensor) -> Tensor:
    return value.expand(shape.tolist())


def _tile(x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(repeats.tolist())


def _slice(node: Node) -> Function:
    axes: Any = node.attrs["axes"]
    rank = operand(node).rank
    chosen = list(range(rank)) if axes is None else [axis % rank for axis in axes]

    def function(x: Tensor, starts: Tensor, limits: Tensor, strides: Tensor | None) -> Tensor:
        steps = [1] * len(chosen) if strides is None else strides.tolist()
        for axis, *bounds in zip(chosen, starts.tolist(), limits.tolist(), steps, strict=True):
            # As Python slices: a range of the places that are kept, also backwards.
            kept = range(*slice(*bounds).indices(x.shape[axis]))
            if kept.step > 0 or not len(kept):
                part = slice(kept.start, max(kept.stop, kept.start), max(kept.step, 1))
                part = part if len(kept) else slice(0, 0)
                x = x[(slice(None),) * axis + (part,)]
            else:
                part = slice(kept[-1], kept[0] + 1, -kept.step)
                x = torch.flip(x[(slice(None),) * axis + (part,)], (axis,))
        return x

    return function


def _pad(node: Node) -> Function:
    mode, fill = str(node.attrs["mode"]), zero(output(node).dtype)

    def function(x: Tensor, padding: Tensor, value: Tensor | None) -> Tensor:
        widths = padding.tolist()
        pairs = list(zip(widths[: x.dim()], widths[x.dim() :], strict=True))
        return padded(x, fill if value is None else value, pairs, mode)

    return function


def _range(start: Tensor, stop: Tensor, step: Tensor) -> Tensor:
    first, last, by = start.item(), stop.item(), step.item()
    count = max(-int(-(last - first) // by), 0) if by else 0
    return torch.arange(count, device=start.device).to(start.dtype) * step + start


TABLE: dict[str, Lower] = {
    "dynamic_reshape": plain(_reshape),
    "dynamic_broadcast_to": plain(_broadcast),
    "dynamic_full": plain(_full),
    "dynamic_tile": plain(_tile),
    "dynamic_slice": _slice,
    "dynamic_pad": _pad,
    "range": plain(_range),
}
