"""Networks of sound, graphs, tables, and diffusion."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.modules.case import Arguments, ModuleCase, positional


class WhisperEncoder(nn.Module):
    """Two convolutions over a spectrogram, sines for places, and transformer layers."""

    def __init__(self, width: int = 192, depth: int = 3, length: int = 150) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        steps = torch.exp(-math.log(10000) / (width // 2 - 1) * torch.arange(width // 2))
        angles = torch.arange(length)[:, None] * steps[None]
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], dim=1))
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    width, 6, 4 * width, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, mel: Any) -> Any:
        x = functional.gelu(self.second(functional.gelu(self.first(mel))))
        x = x.permute(0, 2, 1)
        x = x + self.places[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, on raw sound."""

    def __init__(self, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            [nn.Conv1d(width, 2 * width, 2, dilation=2**layer) for layer in range(depth)]
        )
        self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(depth)])
        self.end = nn.Conv1d(width, 64, 1)

    def forward(self, x: Any) -> Any:
        x, skipped = self.start(x), 0
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            padded = functional.pad(x, (gate.dilation[0], 0))
            left, right = gate(padded).chunk(2, dim=1)
            y = mix(torch.tanh(left) * torch.sigmoid(right))
            x, skipped = x + y, skipped + y
        return self.end(functional.relu(skipped))


class GraphConvolution(nn.Module):
    """Sum the messages of neighbours, weighted by degree."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inside, outside)

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        ones = torch.ones(source.shape[0], dtype=x.dtype)
        degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add_(0, target, ones) + 1
        scale = degree.rsqrt()
        messages = self.linear(x)[source] * (scale[source] * scale[target])[:, None]
        out = torch.zeros(x.shape[0], messages.shape[1], dtype=x.dtype)
        return out.index_add(0, target, messages)


class GraphAttention(nn.Module):
    """Weigh the messages of neighbours by a softmax over each node's edges."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, width, bias=False)
        self.left, self.right = (nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2))

    def forward(self, x: Any, source: Any, target: Any) -> Any:
        y = self.linear(x).view(x.shape[0], self.heads, -1)
        scores = (y * self.left).sum(-1)[source] + (y * self.right).sum(-1)[target]
        scores = functional.leaky_relu(scores, 0.2)
        places = target[:, None].expand(-1, self.heads)
        largest = torch.full((x.shape[0], self.heads), -1e30, dtype=x.dtype)
        largest = largest.scatter_reduce(0, places, scores, reduce="amax")
        weights = (scores - largest[target]).exp()
        total = torch.zeros(x.shape[0], self.heads, dtype=x.dtype).scatter_add(0, places, weights)
        weights = weights / (total[target] + 1e-9)
        out = torch.zeros_like(y).index_add(0, target, y[source] * weights[..., None])
        return out.flatten(1)


class GraphNet(nn.Module):
    """Convolution, attention, and a mean over all nodes."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.second = GraphConvolution(32, width), GraphAttention(width, 4)
        self.third, self.out = GraphConvolution(width, width), nn.Linear(width, 5)

    def forward(self, x: Any, edge_index: Any) -> tuple[Any, Any]:
        source, target = edge_index[0], edge_index[1]
        x = functional.elu(self.first(x, source, target))
        x = functional.elu(self.second(x, source, target))
        x = self.third(x, source, target)
        return x, self.out(x.mean(0))


def _graph(size: int) -> Arguments:
    return (torch.randn(size, 32), torch.randint(0, size, (2, 6000))), {}


class Recommender(nn.Module):
    """Bags of categories and dense numbers, crossed in pairs, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(2000, 64, mode="sum") for _ in range(6)])
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)
        )
        self.top = nn.Sequential(
            nn.Linear(64 + 21, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense: Any, categories: list[Any]) -> Any:
        bottom = self.bottom(dense)
        rows = [bottom, *(bag(c) for bag, c in zip(self.bags, categories, strict=True))]
        x = torch.stack(rows, dim=1)
        crossed = torch.bmm(x, x.transpose(1, 2))
        first, second = torch.tril_indices(7, 7, offset=-1)
        return torch.sigmoid(self.top(torch.cat([bottom, crossed[:, first, second]], dim=1)))


def _clicks(size: int) -> Arguments:
    return (torch.randn(size, 13), [torch.randint(0, 2000, (size, 4)) for _ in range(6)]), {}


def timestep_embedding(steps: Any, width: int) -> Any:
    """Embed steps as sines and cosines."""
    half = width // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half) / half)
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class DiffusionResidual(nn.Module):
    """A residual block that a step shifts."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inside), nn.GroupNorm(8, outside)
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.time, self.shortcut = nn.Linear(time, outside), nn.Conv2d(inside, outside, 1)

    def forward(self, x: Any, time: Any) -> Any:
        y = self.first(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(functional.silu(self.norm2(y)))


class DiffusionAttention(nn.Module):
    """Attention over the places of an image, and to a text beside it."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.own = nn.MultiheadAttention(width, heads, batch_first=True)
        self.cross = nn.MultiheadAttention(width, heads, kdim=text, vdim=text, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: Any, text: Any) -> Any:
        x = self.norm(image).flatten(2).transpose(1, 2)
        y = self.norm1(x)
        x = x + self.own(y, y, y, need_weights=False)[0]
        x = x + self.cross(self.norm2(x), text, text, need_weights=False)[0]
        wide, gate = self.wide(self.norm3(x)).chunk(2, dim=-1)
        x = x + self.narrow(wide * functional.gelu(gate))
        return image + x.transpose(1, 2).reshape(image.shape)


class DiffusionUNet(nn.Module):
    """A small U-Net of diffusion: one step down, a middle, one step up."""

    def __init__(self, width: int = 64, text: int = 48) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 256), nn.SiLU(), nn.Linear(256, 256))
        self.start = nn.Conv2d(4, width, 3, padding=1)
        self.down = DiffusionResidual(width, width, 256)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = DiffusionResidual(width, 2 * width, 256)
        self.attend = DiffusionAttention(2 * width, 4, text)
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = DiffusionResidual(2 * width, width, 256)
        self.norm, self.end = nn.GroupNorm(8, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any) -> dict[str, Any]:
        time = timestep_embedding(timestep, self.width).to(sample.dtype)
        time = self.time(time)
        kept = self.down(self.start(sample), time)
        x = self.attend(self.middle(self.shrink(kept), time), encoder_hidden_states)
        x = self.grow(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up(torch.cat([x, kept], dim=1), time)
        return {"sample": self.end(functional.silu(self.norm(x)))}


def _denoised(size: int) -> Arguments:
    steps, text = torch.randint(0, 1000, (size,)), torch.randn(size, 10, 48)
    return (torch.randn(size, 4, 24, 24), steps), {"encoder_hidden_states": text}


MODULES = (
    ModuleCase(
        "whisper_encoder", WhisperEncoder, positional((None, 80, 200)), (1, 2, 3), is_network=True
    ),
    ModuleCase("wavenet", WaveNet, positional((None, 1, 2000)), (1, 2, 3), is_network=True),
    ModuleCase("graph_net", GraphNet, _graph, sizes=(500, 300, 700), is_network=True),
    ModuleCase("recommender", Recommender, _clicks, sizes=(64, 16, 100), is_network=True),
    ModuleCase("diffusion_unet", DiffusionUNet, _denoised, sizes=(1, 2, 3), is_network=True),
)
