"""Networks that look at images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.modules.case import ModuleCase, positional


def _convolution(inside: int, outside: int, size: int, stride: int = 1, groups: int = 1) -> Any:
    return nn.Sequential(
        nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    )


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            _convolution(inside, outside, 3, stride),
            _convolution(outside, outside, 3),
        )
        is_same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if is_same else _convolution(inside, outside, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.second(self.relu(self.first(x)))
        y += self.shortcut(x)
        return self.relu(y)


class BottleneckBlock(nn.Module):
    """Narrow, convolve, widen, and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        inner = outside // 4
        self.body = nn.Sequential(
            _convolution(inside, inner, 1),
            nn.ReLU(inplace=True),
            _convolution(inner, inner, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(inner, outside, 1),
        )
        is_same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if is_same else _convolution(inside, outside, 1, stride)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of four stages."""

    def __init__(self, block: Any, depths: tuple[int, ...], widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages, inside = [], 64
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for layer in range(depth):
                stages.append(block(inside, width, 2 if stage and not layer else 1))
                inside = width
        self.stages = nn.Sequential(*stages)
        self.pool, self.head = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(inside, 100)

    def forward(self, x: Any) -> Any:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inside * expansion
        self.is_residual = stride == 1 and inside == outside
        self.body = nn.Sequential(
            _convolution(inside, inner, 1),
            nn.ReLU6(inplace=True),
            _convolution(inner, inner, 3, stride, groups=inner),
            nn.ReLU6(inplace=True),
            _convolution(inner, outside, 1),
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.is_residual else self.body(x)


class MobileNet(nn.Module):
    """MobileNetV2 at width 1, with the stages of the paper."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = [_convolution(3, 32, 3, 2), nn.ReLU6(inplace=True)]
        inside = 32
        table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
        for expansion, width, depth, stride in (*table, (6, 160, 3, 2), (6, 320, 1, 1)):
            for layer in range(depth):
                layers.append(InvertedResidual(inside, width, 1 if layer else stride, expansion))
                inside = width
        self.features = nn.Sequential(*layers, _convolution(inside, 1280, 1), nn.ReLU6())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 100))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x).mean([2, 3]))


class SqueezeExcite(nn.Module):
    """Scale channels by what the whole image says, as EfficientNet does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(width, width * 4, 1), nn.SiLU(), _convolution(width * 4, width * 4, 5)
        )
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width * 4, width // 4, 1),
            nn.SiLU(),
            nn.Conv2d(width // 4, width * 4, 1),
            nn.Sigmoid(),
        )
        self.out = _convolution(width * 4, width, 1)

    def forward(self, x: Any) -> Any:
        y = nn.functional.silu(self.body(x))
        return x + self.out(y * self.gate(y))


class UNet(nn.Module):
    """Go down by pools, up by transposed convolutions, and join what has the same size."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths[:-1]), widths, strict=True))
        self.down = nn.ModuleList([self._double(inside, outside) for inside, outside in pairs])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1])]
        )
        self.join = nn.ModuleList([self._double(w * 2, w) for w in reversed(widths[:-1])])
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _double(inside: int, outside: int) -> Any:
        first, second = _convolution(inside, outside, 3), _convolution(outside, outside, 3)
        return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))

    def forward(self, x: Any) -> Any:
        kept = []
        for position, stage in enumerate(self.down):
            x = stage(self.pool(x) if position else x)
            kept.append(x)
        for up, join, other in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            x = join(torch.cat([up(x), other], dim=1))
        return self.out(x)


class VisionBlock(nn.Module):
    """Attention over patches written by hand, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, width * 3), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width)
        )

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, size: int = 96, patch: int = 16, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList([VisionBlock(width, 3) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then linear layers over channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.narrow(nn.functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Mixer(nn.Module):
    """Mix over patches and over channels in turn, without attention."""

    def __init__(self, length: int = 64, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * depth)])
        self.tokens = nn.ModuleList([self._mlp(length, 128) for _ in range(depth)])
        self.channels = nn.ModuleList([self._mlp(width, 512) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _mlp(width: int, inner: int) -> Any:
        return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).mT
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * i](x).mT).mT
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


class Autoencoder(nn.Module):
    """A variational autoencoder that returns the mean, without a draw."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU()
        )
        self.mean, self.spread = nn.Linear(64 * 49, 16), nn.Linear(64 * 49, 16)
        self.start = nn.Linear(16, 64 * 49)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
        )

    def forward(self, x: Any) -> tuple[Any, Any, Any]:
        hidden = self.encode(x).flatten(1)
        mean, spread = self.mean(hidden), self.spread(hidden).clamp(-5, 5)
        image = torch.sigmoid(self.decode(self.start(mean).unflatten(1, (64, 7, 7))))
        return image, mean, spread


MODULES = (
    ModuleCase(
        "resnet18",
        lambda: ResNet(BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512)),
        positional((None, 3, 96, 96)),
        sizes=(1, 2, 3),
        is_network=True,
    ),
    ModuleCase(
        "resnet26_bottleneck",
        lambda: ResNet(BottleneckBlock, (2, 2, 2, 2), (128, 256, 512, 1024)),
        positional((None, 3, 64, 64)),
        sizes=(1, 2, 3),
        is_network=True,
    ),
    ModuleCase(
        "mobilenet_v2",
        MobileNet,
        positional((None, 3, 96, 96)),
        sizes=(1, 2, 3),
        is_network=True,
    ),
    ModuleCase(
        "efficientnet_blocks",
        lambda: nn.Sequential(_convolution(3, 24, 3, 2), *[SqueezeExcite(24) for _ in range(2)]),
        positional((None, 3, 32, 32)),
        sizes=(1, 2, 3),
        is_network=True,
    ),
    ModuleCase("unet", UNet, positional((None, 3, 64, 64)), sizes=(1, 2, 3), is_network=True),
    ModuleCase("vit", ViT, positional((None, 3, 96, 96)), sizes=(1, 2, 5), is_network=True),
    ModuleCase(
        "convnext",
        lambda: nn.Sequential(nn.Conv2d(3, 64, 4, 4), *[ConvNextBlock(64) for _ in range(4)]),
        positional((None, 3, 96, 96)),
        sizes=(1, 2, 3),
        is_network=True,
    ),
    ModuleCase("mlp_mixer", Mixer, positional((None, 3, 64, 64)), (1, 2, 5), is_network=True),
    ModuleCase("autoencoder", Autoencoder, positional((None, 1, 28, 28)), (8, 3), is_network=True),
)
