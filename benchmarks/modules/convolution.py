"""Convolutions, their transposes, and what cuts an image in patches."""

from __future__ import annotations

from torch import nn

from benchmarks.modules.case import ModuleCase, Parallel, positional

MODULES = (
    ModuleCase(
        "conv1d",
        lambda: Parallel(
            same=nn.Conv1d(6, 8, 4, padding="same", dilation=2),
            strided=nn.Conv1d(6, 8, 3, stride=2, padding=2, bias=False),
        ),
        positional((None, 6, 33)),
        sizes=(4, 1, 7),
    ),
    ModuleCase(
        "conv2d",
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, (3, 5), stride=(1, 2), padding=(0, 2), dilation=(2, 1)),
        ),
        positional((None, 3, 40, 40)),
        sizes=(2, 3, 5),
        is_small=True,
    ),
    ModuleCase(
        "conv2d_groups",
        lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False),
            nn.Conv2d(16, 12, 1, groups=4),
            nn.Conv2d(12, 12, 5, padding=2, groups=12),
        ),
        positional((None, 8, 24, 20)),
        sizes=(2, 3, 5),
    ),
    ModuleCase(
        "conv_padding_modes",
        lambda: nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(6, 6, 5, padding=2, padding_mode="reflect"),
            nn.Conv2d(6, 4, 3, padding=(1, 2), padding_mode="replicate"),
        ),
        positional((None, 3, 17, 18)),
        sizes=(2, 4),
        is_small=True,
    ),
    ModuleCase(
        "conv3d",
        lambda: nn.Conv3d(3, 8, (3, 3, 2), stride=(1, 2, 1), padding=(1, 1, 0)),
        positional((None, 3, 8, 12, 10)),
        sizes=(2, 1, 3),
    ),
    ModuleCase(
        "conv_unbatched",
        lambda: nn.Conv2d(4, 4, 3, padding="same"),
        positional((4, None, 9)),
        sizes=(11, 12, 30),
    ),
    ModuleCase(
        "conv_transpose1d",
        lambda: nn.ConvTranspose1d(8, 6, 5, stride=3, padding=1, output_padding=1),
        positional((None, 8, 21)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "conv_transpose2d",
        lambda: nn.Sequential(
            nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=2),
            nn.ConvTranspose2d(12, 3, 3, dilation=2, bias=False),
        ),
        positional((None, 8, 12, 10)),
        sizes=(2, 3),
        is_small=True,
    ),
    ModuleCase(
        "conv_transpose3d",
        lambda: nn.ConvTranspose3d(4, 3, 3, stride=(2, 1, 2), padding=1),
        positional((None, 4, 5, 6, 5)),
        sizes=(2, 3),
    ),
    ModuleCase(
        "fold_unfold",
        lambda: nn.Sequential(
            nn.Unfold((3, 2), padding=(1, 0), stride=(2, 2)),
            nn.Fold((9, 8), (3, 2), padding=(1, 0), stride=(2, 2)),
        ),
        positional((None, 4, 9, 8)),
        sizes=(2, 3),
    ),
)
