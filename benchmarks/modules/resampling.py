"""Upsampling, shuffles of pixels, paddings, and sampling at given places."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.modules.case import ModuleCase, Parallel, positional


class SpatialTransformer(nn.Module):
    """Find an affine map from the image, and sample the image by it."""

    def __init__(self) -> None:
        super().__init__()
        self.find = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 6))
        self.find[2].bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])

    def forward(self, x: Any) -> Any:
        theta = self.find(x).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


MODULES = (
    ModuleCase(
        "upsample_nearest",
        lambda: Parallel(
            twice=nn.Upsample(scale_factor=2),
            uneven=nn.Upsample(size=(13, 17)),
            fraction=nn.Upsample(scale_factor=(1.5, 2.5)),
        ),
        positional((None, 3, 8, 10)),
        sizes=(2, 3),
        is_small=True,
    ),
    ModuleCase(
        "upsample_linear",
        lambda: Parallel(
            bilinear=nn.Upsample(scale_factor=2, mode="bilinear"),
            corners=nn.Upsample(size=(15, 11), mode="bilinear", align_corners=True),
            smaller=nn.Upsample(size=(5, 6), mode="bilinear"),
            bicubic=nn.Upsample(scale_factor=2, mode="bicubic"),
        ),
        positional((None, 3, 8, 10)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "upsample_volume",
        lambda: nn.Sequential(
            nn.Upsample(scale_factor=2, mode="trilinear"),
            nn.Flatten(2),
            nn.Upsample(size=100, mode="linear"),
        ),
        positional((None, 2, 4, 5, 3)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "pixel_shuffle",
        lambda: nn.Sequential(
            nn.PixelShuffle(2), nn.ChannelShuffle(3), nn.PixelUnshuffle(2), nn.PixelShuffle(2)
        ),
        positional((None, 12, 6, 4)),
        sizes=(2, 3),
        is_small=True,
    ),
    ModuleCase(
        "paddings",
        lambda: nn.Sequential(
            nn.ZeroPad2d((1, 2, 0, 1)),
            nn.ReflectionPad2d(2),
            nn.ReplicationPad2d((1, 0, 2, 1)),
            nn.ConstantPad2d((0, -1, 1, 0), 3.5),
            nn.CircularPad2d((1, 2, 1, 1)),
        ),
        positional((None, 3, 7, 8)),
        sizes=(2, 3),
    ),
    ModuleCase("spatial_transformer", SpatialTransformer, positional((None, 3, 14, 12)), (2, 3)),
)
