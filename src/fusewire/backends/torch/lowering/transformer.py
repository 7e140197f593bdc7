"""Attention, by PyTorch's own kernels where they mean the same."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation has it

from fusewire.backends.torch.lowering.signature import Function, Lower, Sized, operand, sized
from fusewire.backends.torch.storage import Tensor
from fusewire.dtypes import bool_
from fusewire.ir.dims import is_at_most
from fusewire.ir.graph import Node


def is_plain_attention(node: Node) -> bool:
    """Tell whether an attention has nothing that PyTorch's kernels lack."""
    attrs = node.attrs
    if attrs["softcap"] or attrs["left"] is not None or attrs["right"] is not None:
        return False
    return attrs["precision"] in (None, operand(node).dtype)


def _count(x: Tensor) -> Tensor:
    """Number the places of a sequence."""
    return torch.arange(x.shape[2], device=x.device)


def _lost(q: Tensor) -> Tensor:
    """Give NaN for each query that is not finite, and 0 for others, to be added to its answer.

    If no score of a query is above -inf, the kernels take it for one that sees no key, and if there
    are fewer keys than a vector has elements, they take NaN for -inf (2.13).
    """
    return (q * 0).sum(-1, keepdim=True)


def _attention(node: Node) -> Function | Sized:
    attrs: Any = node.attrs
    scale, causal, offset = attrs["scale"], attrs["causal"], attrs["offset"]
    mask = node.inputs[3]
    shares = operand(node, 0).shape[1] != operand(node, 1).shape[1]
    attend = F.scaled_dot_product_attention
    # Without a mask, each query sees a key, unless it stands before all of them.
    lost = _lost if mask is None and is_at_most(0, offset) else None
    if not causal or (mask is None and offset == 0):

        def plain(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
            found = attend(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=shares)
            return found if lost is None else found + lost(q)

        return plain
    is_bool = mask is not None and mask.tensor.dtype is bool_

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Any, sizes: tuple[int, ...]) -> Tensor:
        behind = _count(q)[:, None] + sizes[0] - _count(k)
        seen = behind >= 0
        if mask is not None:
            seen = mask & seen if is_bool else torch.where(seen, mask, -torch.inf)
        found = attend(q, k, v, seen, scale=scale, enable_gqa=shares)
        return found if lost is None else found + lost(q)

    return sized((offset,), function)


TABLE: dict[str, Lower] = {"attention": _attention}
