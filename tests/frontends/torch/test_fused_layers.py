"""The ops that PyTorch's own layers call where no gradient is needed."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.frontends.torch.modules import Lambda, check, draw

PADDED = torch.tensor([[False, False, False, True], [False, True, False, False]])
LATER = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)


def _masks(attention: Any, x: Any) -> list[tuple[Any, Any]]:
    """What nn.MultiheadAttention makes of masks: none, of keys, of pairs, of both."""
    return [
        attention.merge_masks(pairs, keys, x)
        for pairs, keys in ((None, None), (None, PADDED), (LATER, None), (LATER, PADDED))
    ]


@pytest.mark.parametrize("form", range(4), ids=["none", "keys", "pairs", "both"])
@pytest.mark.parametrize("average", [True, False])
def test_attention_of_a_layer(form: int, average: bool) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = draw(2, 4, 8)
    mask, mask_type = _masks(layer, torch.from_numpy(x))[form]

    def attend(q: Any, k: Any, v: Any) -> Any:
        weights: tuple[Any, ...] = (layer.in_proj_weight, layer.in_proj_bias)
        weights += (layer.out_proj.weight, layer.out_proj.bias)
        return torch._native_multi_head_attention(
            q, k, v, 8, 2, *weights, mask, True, average, mask_type
        )

    with torch.no_grad():
        check(Lambda(lambda x: attend(x, x, x)), x)
        check(Lambda(attend), x, x, x)


@pytest.mark.parametrize("form", range(4), ids=["none", "keys", "pairs", "both"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}])
def test_layer_of_an_encoder(form: int, options: dict[str, Any]) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options).eval()
    x = draw(2, 4, 8)
    mask, mask_type = _masks(layer.self_attn, torch.from_numpy(x))[form]
    attention, use_gelu = layer.self_attn, layer.activation_relu_or_gelu == 2

    def encode(x: Any) -> Any:
        weights: tuple[Any, ...] = (attention.in_proj_weight, attention.in_proj_bias)
        weights += (attention.out_proj.weight, attention.out_proj.bias)
        norms = (layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias)
        wide = (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)
        return torch._transformer_encoder_layer_fwd(
            x, 8, 2, *weights, use_gelu, layer.norm_first, 1e-5, *norms, *wide, mask, mask_type
        )

    with torch.no_grad():
        check(Lambda(encode), x)
