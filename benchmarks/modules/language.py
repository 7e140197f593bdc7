"""Networks that read and write text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.modules.case import Arguments, ModuleCase


def _tokens(length: int, words: int = 1000) -> Any:
    return lambda size: ((torch.randint(1, words, (size, length)),), {})


def _heads(x: Any, heads: int) -> Any:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _joined(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


class BertLayer(nn.Module):
    """Attention with a mask that is added, then two linear layers, each normalized after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Any, mask: Any) -> Any:
        query, key, value = (
            _heads(part(x), self.heads) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
        x = self.norm(x + self.out(_joined(scores.softmax(-1) @ value)))
        return self.norm2(x + self.narrow(functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """An encoder of text with a pooled answer."""

    def __init__(self, width: int = 256, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(1000, width, 0), nn.Embedding(128, width)
        self.kind, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList([BertLayer(width, heads) for _ in range(depth)])
        self.pool = nn.Linear(width, width)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> dict[str, Any]:
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        places = torch.arange(input_ids.shape[1])
        x = self.word(input_ids) + self.position(places) + self.kind(torch.zeros_like(input_ids))
        x = self.norm(x)
        dtype = x.dtype
        mask = (1 - attention_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return {"last_hidden_state": x, "pooler_output": torch.tanh(self.pool(x[:, 0]))}


def _padded(size: int) -> Arguments:
    ids = torch.randint(1, 1000, (size, 64))
    mask = (torch.arange(64) < torch.randint(30, 65, (size, 1))).long()
    return (), {"input_ids": ids, "attention_mask": mask}


class GptBlock(nn.Module):
    """Causal attention by the function of torch, then two linear layers, normalized before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(self.norm1(x)).split(x.shape[-1], dim=2)
        query, key, value = (_heads(part, self.heads) for part in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(_joined(mixed))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A decoder whose last layer shares the weights of its embedding."""

    def __init__(self, width: int = 256, depth: int = 4, heads: int = 8) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(1000, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids: Any) -> Any:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class RotaryBlock(nn.Module):
    """A block as in Llama: rotary positions, grouped heads, a gated linear unit."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * size, bias=False)
        self.value = nn.Linear(width, groups * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.wide = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.narrow = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
        y = self.norm1(x)
        query = _rotated(_heads(self.query(y), self.heads), cosine, sine)
        key = _rotated(_heads(self.key(y), self.groups), cosine, sine)
        value = _heads(self.value(y), self.groups)
        times = self.heads // self.groups
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(_joined(mixed))
        y = self.norm2(x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y))


class Rotary(nn.Module):
    """A decoder as in Llama."""

    def __init__(self, width: int = 256, depth: int = 4, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.word = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList([RotaryBlock(width, heads, groups) for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 1000, bias=False)
        size = width // heads
        frequencies = 10000.0 ** (-torch.arange(0, size, 2).float() / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, ids: Any) -> Any:
        angles = torch.outer(torch.arange(ids.shape[1]).float(), self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        x = self.word(ids)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(self.norm(x))


class RelativeAttention(nn.Module):
    """Attention as in T5: no scale, and a bias by distance in buckets."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.bias = nn.Embedding(32, heads)

    def _buckets(self, queries: int, keys: int) -> Any:
        distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        buckets = 0 if self.is_causal else (distance > 0).long() * 16
        distance = distance.neg().clamp(min=0) if self.is_causal else distance.abs()
        most = 32 if self.is_causal else 16
        exact = most // 2
        far = exact + (
            torch.log(distance.clamp(min=1).float() / exact) / math.log(128 / exact) * exact
        ).clamp(max=exact - 1).to(torch.int64)
        return buckets + torch.where(distance < exact, distance, far)

    def forward(self, x: Any, memory: Any) -> Any:
        query, key, value = (
            _heads(part(y), self.heads)
            for part, y in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = torch.matmul(query, key.transpose(3, 2))
        scores = scores + self.bias(self._buckets(x.shape[1], memory.shape[1])).permute(2, 0, 1)
        if self.is_causal:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = scores.float().softmax(dim=-1).type_as(scores)
        return self.out(_joined(torch.matmul(weights, value)))


class T5Layer(nn.Module):
    """One layer of the encoder, or of the decoder where there is a memory."""

    def __init__(self, width: int, heads: int, is_decoder: bool) -> None:
        super().__init__()
        self.own = RelativeAttention(width, heads, is_decoder)
        self.cross = RelativeAttention(width, heads, False) if is_decoder else None
        self.norms = nn.ModuleList([nn.RMSNorm(width, eps=1e-6) for _ in range(3)])
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, memory: Any = None) -> Any:
        y = self.norms[0](x)
        x = x + self.own(y, y)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory)
        return x + self.narrow(self.wide(self.norms[2](x)).relu())


class T5(nn.Module):
    """An encoder and a decoder that share the embedding of words."""

    def __init__(self, width: int = 192, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.word = nn.Embedding(1000, width)
        self.encoder = nn.ModuleList([T5Layer(width, heads, False) for _ in range(depth)])
        self.decoder = nn.ModuleList([T5Layer(width, heads, True) for _ in range(depth)])
        self.scale = width**-0.5

    def forward(self, source: Any, target: Any) -> Any:
        memory = self.word(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.word(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return (x * self.scale) @ self.word.weight.t()


def _translated(size: int) -> Arguments:
    return (torch.randint(1, 1000, (size, 48)), torch.randint(1, 1000, (size, 32))), {}


class Tagger(nn.Module):
    """An LSTM in both directions that gives every word a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(1000, 96, padding_idx=0)
        self.lstm = nn.LSTM(96, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(256, 17)

    def forward(self, words: Any) -> tuple[Any, Any]:
        scores = self.tag(self.lstm(self.word(words))[0]).log_softmax(-1)
        return scores, scores.argmax(-1)


class Experts(nn.Module):
    """A mixture of experts: each token is sent to the best two of six."""

    def __init__(self, width: int = 128, experts: int = 6) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            ]
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> tuple[Any, Any]:
        y = self.norm(x)
        weights, chosen = self.gate(y).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = torch.where(chosen == number, weights, 0.0).sum(-1, keepdim=True)
            out = out + share * expert(y)
        return x + out, chosen


class DecodeStep(nn.Module):
    """One token through a decoder whose keys and values are state in and out."""

    def __init__(self, width: int = 256, heads: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.word = nn.Embedding(1000, width)
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(depth)])
        self.out = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(depth)])

    def forward(self, token: Any, place: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        x = self.word(token)
        mask = torch.arange(keys.shape[3]) <= place
        new_keys, new_values = [], []
        for layer, (qkv, out, norm) in enumerate(zip(self.qkv, self.out, self.norms, strict=True)):
            query, key, value = (_heads(part, self.heads) for part in qkv(norm(x)).chunk(3, -1))
            new_keys.append(keys[layer].index_copy(2, place, key))
            new_values.append(values[layer].index_copy(2, place, value))
            mixed = functional.scaled_dot_product_attention(
                query, new_keys[-1], new_values[-1], attn_mask=mask[None, None, None, :]
            )
            x = x + out(_joined(mixed))
        return x @ self.word.weight.t(), torch.stack(new_keys), torch.stack(new_values)


def _step(size: int) -> Arguments:
    keys, values = torch.randn(3, size, 8, 64, 32), torch.randn(3, size, 8, 64, 32)
    return (torch.randint(1, 1000, (size, 1)), torch.tensor([20]), keys, values), {}


MODULES = (
    ModuleCase("bert", Bert, _padded, sizes=(2, 3, 5), is_network=True),
    ModuleCase("gpt", Gpt, _tokens(64), sizes=(2, 3, 5), is_network=True),
    ModuleCase("rotary_decoder", Rotary, _tokens(64), sizes=(2, 3, 5), is_network=True),
    ModuleCase("t5", T5, _translated, sizes=(2, 3, 5), is_network=True),
    ModuleCase("lstm_tagger", Tagger, _tokens(40), sizes=(4, 2, 3), is_network=True),
    ModuleCase(
        "mixture_of_experts",
        Experts,
        lambda size: ((torch.randn(size, 32, 128),), {}),
        sizes=(4, 1, 3),
        is_network=True,
    ),
    ModuleCase("decode_step", DecodeStep, _step, sizes=(2, 1), is_network=True),
)
