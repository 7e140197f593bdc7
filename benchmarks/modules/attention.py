"""Attention and the transformer layers of torch.nn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.modules.case import Arguments, ModuleCase, positional


class ScaledDotProduct(nn.Module):
    """Call the function with its options: causal, masked, grouped heads, another scale."""

    def forward(self, query: Any, key: Any, mask: Any) -> tuple[Any, ...]:
        attend = functional.scaled_dot_product_attention
        grouped = key[:, :2]
        return (
            attend(query, key, key),
            attend(query, key, key, is_causal=True),
            attend(query, key, key, attn_mask=mask, scale=0.3),
            attend(query, grouped, grouped, enable_gqa=True),
        )


def _masked(size: int) -> Arguments:
    shape = (size, 4, 6, 8)
    mask = torch.rand(size, 1, 6, 6) < 0.8
    mask[..., 0] = True
    return (torch.randn(shape), torch.randn(shape), mask), {}


def _padded(size: int) -> Arguments:
    padding = torch.arange(10) >= torch.randint(4, 11, (size, 1))
    x = torch.randn(size, 10, 32)
    return (x, x, x), {"key_padding_mask": padding}


def _crossed(size: int) -> Arguments:
    query, key, value = torch.randn(size, 7, 24), torch.randn(size, 9, 16), torch.randn(size, 9, 12)
    return (query, key, value), {"need_weights": False}


def _source(size: int) -> Arguments:
    padding = torch.arange(12) >= torch.randint(6, 13, (size, 1))
    return (torch.randn(size, 12, 32),), {"src_key_padding_mask": padding}


def _causal(size: int) -> Arguments:
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    target, memory = torch.randn(size, 8, 32), torch.randn(size, 12, 32)
    return (target, memory), {"tgt_mask": mask, "tgt_is_causal": True}


def _encoder() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)


MODULES = (
    ModuleCase("sdpa", ScaledDotProduct, _masked, sizes=(2, 3), is_small=True),
    ModuleCase(
        "multihead_attention",
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        _padded,
        sizes=(3, 2, 5),
        is_small=True,
    ),
    ModuleCase(
        "multihead_cross",
        lambda: nn.MultiheadAttention(
            24, 3, kdim=16, vdim=12, batch_first=True, bias=False, add_zero_attn=True
        ),
        _crossed,
        sizes=(3, 2),
    ),
    ModuleCase(
        "transformer_layer",
        lambda: nn.TransformerEncoderLayer(32, 4, 48, norm_first=True, batch_first=True),
        positional((None, 10, 32)),
        sizes=(3, 2, 5),
        is_small=True,
    ),
    ModuleCase("transformer_encoder", _encoder, _source, sizes=(3, 2)),
    ModuleCase(
        "transformer_decoder",
        lambda: nn.TransformerDecoderLayer(32, 4, 64, batch_first=True),
        _causal,
        sizes=(3, 2),
    ),
    ModuleCase(
        "transformer",
        lambda: nn.Transformer(32, 4, 2, 2, 64, batch_first=True),
        positional((None, 12, 32), (None, 8, 32)),
        sizes=(2, 3),
    ),
)
