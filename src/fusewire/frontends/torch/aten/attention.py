"""Attention."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import bool_
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Value
from fusewire.ops import (
    activation,
    contraction,
    elementwise,
    logic,
    normalization,
    slicing,
    statistics,
    transformer,
)
from fusewire.ops.conversion import cast
from fusewire.ops.movement import broadcast_to, expand_dims, reshape, transpose

ROWS = Rows()
# The mask_type of a mask of keys, [batch, positions]; others broadcast.
_PADDING = 1


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


@ROWS.add("_native_multi_head_attention", ops="linear, attention")
def _multi_head_attention(
    call: AtenCall,
    query: Value,
    key: Value,
    value: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    weight: Value,
    bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Value, Value | None]:
    """What nn.MultiheadAttention calls where no gradient is needed."""
    projected = _projected(query, key, value, qkv_weight, qkv_bias)
    q, k, v = (_by_head(x, heads) for x in projected)
    seen = None if mask is None else _seen(mask, mask_type)
    mixed = transpose(transformer.attention(q, k, v, seen), perm=(0, 2, 1, 3))
    y = contraction.linear(reshape(mixed, shape=query.tensor.shape), weight, bias)
    if not (need_weights and call.uses(1)):
        return y, None
    weights = _attention_weights(q, k, seen, width // heads)
    return y, statistics.reduce_mean(weights, axes=(1,)) if average else weights


def _projected(query: Value, key: Value, value: Value, weight: Value, bias: Value) -> list[Value]:
    """Project with the three parts of one weight; in one product if they have one factor."""
    if query is key and key is value:
        return _thirds(contraction.linear(query, weight, bias), axis=2)
    weights, biases = _thirds(weight, axis=0), _thirds(bias, axis=0)
    return [
        contraction.linear(*parts)
        for parts in zip((query, key, value), weights, biases, strict=True)
    ]


def _thirds(x: Value, axis: int) -> list[Value]:
    return list(slicing.split(x, axis=axis, sizes=(x.tensor.shape[axis] // 3,) * 3))


def _by_head(x: Value, heads: int) -> Value:
    """Make [batch, heads, positions, head size] of [batch, positions, width]."""
    batch, positions, width = x.tensor.shape
    parted = reshape(x, shape=(batch, positions, heads, width // heads))
    return transpose(parted, perm=(0, 2, 1, 3))


def _seen(mask: Value, mask_type: int | None) -> Value:
    """Make a mask of what is seen from one of what is hidden, whatever its form."""
    hidden = mask if mask.tensor.dtype is bool_ else cast(mask, dtype=bool_)
    if mask_type == _PADDING:
        hidden = expand_dims(hidden, axes=(1, 2))
    return logic.logical_not(hidden)


def _attention_weights(q: Value, k: Value, seen: Value | None, size_of_head: int) -> Value:
    scores = contraction.matmul(
        elementwise.multiply(q, size_of_head**-0.5), transpose(k, perm=(0, 1, 3, 2))
    )
    if seen is not None:
        scores = logic.where(seen, scores, float("-inf"))
    return normalization.softmax(scores, axis=3)


@ROWS.add("_transformer_encoder_layer_fwd", ops="linear, attention, layer_norm, relu, gelu, add")
def _encoder_layer(
    call: AtenCall,
    x: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    weight: Value,
    bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *parameters: Any,
) -> Value:
    """What nn.TransformerEncoderLayer calls where no gradient is needed."""
    scale_1, bias_1, scale_2, bias_2, up, up_bias, down, down_bias, *masks = parameters
    projections = (width, heads, qkv_weight, qkv_bias, weight, bias)

    def norm(x: Value, scale: Value, offset: Value) -> Value:
        return normalization.layer_norm(x, scale, offset, axis=2, epsilon=float(eps))

    def attend(x: Value) -> Value:
        mask, mask_type = (*masks, None, None)[:2]
        return _multi_head_attention(call, x, x, x, *projections, mask, False, False, mask_type)[0]

    def feed(x: Value) -> Value:
        act = activation.gelu if use_gelu else activation.relu
        return contraction.linear(act(contraction.linear(x, up, up_bias)), down, down_bias)

    if norm_first:
        x = elementwise.add(x, attend(norm(x, scale_1, bias_1)))
        return elementwise.add(x, feed(norm(x, scale_2, bias_2)))
    x = norm(elementwise.add(x, attend(x)), scale_1, bias_1)
    return norm(elementwise.add(x, feed(x)), scale_2, bias_2)
