"""SmolLM2 with its weights as the GGUF file has them: codes of 4 bits, for `decoder.py`.

Q4_1 has a scale and a least value for each block of 32 codes from 0 to 15, and Q8_0 a scale for
signed codes of 8 bits. Every linear layer becomes one that multiplies with the codes, as PyTorch's
own flows of quantization write it, and adds what the least values contribute. In exact arithmetic
these are the products of the unpacked weights.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
# The names of the layers in the file, by those in the module.
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def pack(model: Any, path: Path) -> None:
    """Replace the linear layers of a model by those with the codes of its file."""
    import gguf
    import torch

    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, torch.nn.Linear):
            continue
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        short = "token_embd" if found is None else NAMES[found[2]]
        tensor = stored[f"{short if found is None else f'blk.{found[1]}.{short}'}.weight"]
        parts = _parts(np.array(tensor.data), tensor.tensor_type.name)
        parts = [_in_order(part, heads.get(short)) for part in parts]
        packed = _linear(*map(torch.from_numpy, parts))
        unpacked = packed.unpacked()
        assert torch.allclose(unpacked, layer.weight, atol=1e-5), f"{name} differs from the file"
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, packed)


def _parts(rows: Any, kind: str) -> list[Any]:
    """Take the bytes of rows apart: signed codes, scales, and what each block adds to its codes."""
    width = {"Q4_1": 20, "Q8_0": 34}[kind]
    blocks = rows.reshape(rows.shape[0], -1, width)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if kind == "Q8_0":
        return [np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(len(rows), -1), scales]
    least = blocks[..., 2:4].copy().view(np.float16)[..., 0].astype(np.float32)
    halves = blocks[..., 4:]
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1).astype(np.int8) - 8
    return [codes.reshape(len(rows), -1), scales, least + 8 * scales]


def _in_order(rows: Any, heads: int | None) -> Any:
    """Undo the order that rows of rotated heads have in the file."""
    if heads is None:
        return rows
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(rows.shape))


def _linear(*parts: Any) -> Any:
    """Make a layer of codes, scales and perhaps what each block adds."""
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the op

    class PackedLinear(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self, codes: Any, scales: Any, added: Any = None) -> None:
            super().__init__()
            self.register_buffer("codes", codes)
            self.register_buffer("scales", scales)
            self.register_buffer("added", added)
            self.low, self.high = (-128, 127) if added is None else (-8, 7)

        def weights(self) -> Any:
            return torch.ops.quantized_decomposed.dequantize_per_channel_group(
                self.codes, self.scales, None, self.low, self.high, torch.int8, BLOCK, torch.float32
            )

        def unpacked(self) -> Any:
            weights = self.weights()
            if self.added is None:
                return weights
            return weights + self.added.repeat_interleave(BLOCK, dim=1)

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.linear(x, self.weights())
            if self.added is None:
                return y
            sums = x.unflatten(-1, (-1, BLOCK)).sum(-1)
            return y + torch.nn.functional.linear(sums, self.added)

    return PackedLinear(*parts)
