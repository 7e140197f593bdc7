"""Pools: largest, mean, of any output size, of powers, and the way back."""

from __future__ import annotations

from typing import Any

from torch import nn

from benchmarks.modules.case import ModuleCase, Parallel, positional


class PooledAndBack(nn.Module):
    """Pool with the positions of the largest, and put these back where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2)

    def forward(self, x: Any) -> tuple[Any, Any]:
        pooled, positions = self.pool(x)
        return self.unpool(pooled, positions), positions


MODULES = (
    ModuleCase(
        "max_pool",
        lambda: Parallel(
            plain=nn.MaxPool2d(2),
            padded=nn.MaxPool2d(3, stride=2, padding=1),
            dilated=nn.MaxPool2d((3, 2), stride=1, dilation=(2, 3)),
            ceiling=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        ),
        positional((None, 4, 20, 17)),
        sizes=(2, 3, 5),
        is_small=True,
    ),
    ModuleCase(
        "avg_pool",
        lambda: Parallel(
            plain=nn.AvgPool2d(2),
            padded=nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
            included=nn.AvgPool2d(3, stride=2, padding=1),
            ceiling=nn.AvgPool2d(3, stride=2, ceil_mode=True),
            divided=nn.AvgPool2d(2, divisor_override=3),
        ),
        positional((None, 4, 20, 18)),
        sizes=(2, 3, 5),
    ),
    ModuleCase(
        "pools_1d_3d",
        lambda: nn.Sequential(
            nn.MaxPool3d(2, stride=(1, 2, 2)),
            nn.AvgPool3d((2, 1, 2)),
            nn.Flatten(2),
            nn.MaxPool1d(3, stride=2),
            nn.AvgPool1d(2),
        ),
        positional((None, 3, 6, 12, 12)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "adaptive_pool",
        lambda: Parallel(
            one=nn.AdaptiveAvgPool2d(1),
            even=nn.AdaptiveAvgPool2d((6, 4)),
            uneven=nn.AdaptiveAvgPool2d((5, 7)),
            largest=nn.AdaptiveMaxPool2d((5, 3)),
            kept=nn.AdaptiveAvgPool2d((None, 2)),
        ),
        positional((None, 4, 18, 12)),
        sizes=(2, 3, 5),
    ),
    ModuleCase(
        "lp_pool",
        lambda: nn.Sequential(nn.Softplus(), nn.LPPool2d(2, 3, stride=2)),
        positional((None, 4, 15, 13)),
        sizes=(2, 3),
    ),
    ModuleCase("max_unpool", PooledAndBack, positional((None, 3, 12, 10)), sizes=(2, 3)),
)
