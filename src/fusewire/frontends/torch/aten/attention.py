"""Attention."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import bool_
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Value
from fusewire.ops import transformer
from fusewire.ops.movement import broadcast_to, expand_dims, reshape

ROWS = Rows()


@ROWS.add("scaled_dot_product_attention", ops="attention")
def _attention(
    call: AtenCall,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Value:
    if dropout:
        raise call.training_refusal("it draws random numbers in training.")
    four = [_with_four_axes(call, x) for x in (q, k, v)]
    if mask is not None:
        mask = mask if mask.tensor.dtype is bool_ else call.value(mask)
        mask = _mask(call, mask, four[0], four[1])
    factor = None if scale is None else float(scale)
    y = transformer.attention(*four, mask, scale=factor, causal=causal)
    return reshape(y, shape=call.shape)


def _with_four_axes(call: AtenCall, x: Value) -> Value:
    """Make [batch, heads, positions, head size] of what has more or fewer batch axes."""
    shape = x.tensor.shape
    if len(shape) == 4:
        return x
    if len(shape) < 4:
        return expand_dims(x, axes=tuple(range(4 - len(shape))))
    return reshape(x, shape=(size(shape[:-3]), *shape[-3:]))


def _mask(call: AtenCall, mask: Value, q: Value, k: Value) -> Value:
    shape = mask.tensor.shape
    if len(shape) <= 4:
        return mask
    # Batch axes were joined: so must those of the mask be.
    batch: tuple[Dim, ...] = call.shape[: len(shape) - 3]
    whole = broadcast_to(mask, shape=(*batch, *shape[-3:]))
    return reshape(whole, shape=(size(batch), *shape[-3:]))


@ROWS.add("_scaled_dot_product_flash_attention_for_cpu", ops="attention")
def _flash_attention(
    call: AtenCall,
    q: Value,
    k: Value,
    v: Value,
    dropout: float = 0.0,
    causal: bool = False,
    attn_mask: Any = None,
    scale: float | None = None,
) -> tuple[Value, None]:
    if call.uses(1):
        raise call.refusal("its second result is for training. Use scaled_dot_product_attention.")
    return _attention(call, q, k, v, attn_mask, dropout, causal, scale), None
