"""Normalizations, with and without scales, and weights that are norms of others."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrizations

from benchmarks.modules.case import ModuleCase, Parallel, positional

MODULES = (
    ModuleCase(
        "batch_norm",
        lambda: nn.Sequential(
            nn.BatchNorm3d(4),
            nn.Flatten(3),
            nn.BatchNorm2d(4, affine=False, eps=1e-3),
            nn.Flatten(2),
            nn.BatchNorm1d(4),
        ),
        positional((None, 4, 3, 5, 4)),
        sizes=(2, 3, 6),
        is_small=True,
    ),
    ModuleCase(
        "layer_norm",
        lambda: Parallel(
            last=nn.LayerNorm(24),
            two=nn.LayerNorm((6, 24), eps=1e-4),
            plain=nn.LayerNorm(24, elementwise_affine=False),
            unbiased=nn.LayerNorm(24, bias=False),
        ),
        positional((None, 6, 24)),
        sizes=(4, 1, 9),
        is_small=True,
    ),
    ModuleCase(
        "group_norm",
        lambda: Parallel(four=nn.GroupNorm(4, 8), plain=nn.GroupNorm(1, 8, affine=False)),
        positional((None, 8, 7, 5)),
        sizes=(2, 3, 5),
    ),
    ModuleCase(
        "instance_norm",
        lambda: Parallel(
            plain=nn.InstanceNorm2d(5),
            affine=nn.InstanceNorm2d(5, affine=True),
            tracked=nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
        ),
        positional((None, 5, 8, 9)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "rms_norm",
        lambda: Parallel(
            scaled=nn.RMSNorm(32), plain=nn.RMSNorm((4, 32), eps=1e-5, elementwise_affine=False)
        ),
        positional((None, 4, 32)),
        sizes=(4, 2, 9),
    ),
    ModuleCase(
        "local_response_norm",
        lambda: nn.LocalResponseNorm(3, alpha=0.5, beta=0.6, k=1.5),
        positional((None, 7, 6, 5)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "weight_norm",
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Conv1d(4, 8, 3)),
            parametrizations.spectral_norm(nn.Conv1d(8, 8, 3)),
        ),
        positional((None, 4, 20)),
        sizes=(2, 3),
    ),
)
