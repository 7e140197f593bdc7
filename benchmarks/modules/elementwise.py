"""Activations, linear layers, embeddings, losses and distances."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.modules.case import Arguments, ModuleCase, Parallel, positional


class Bags(nn.Module):
    """Pool embeddings of bags in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.EmbeddingBag(50, 8, mode="sum")
        self.mean = nn.EmbeddingBag(50, 8, mode="mean")
        self.largest = nn.EmbeddingBag(50, 8, mode="max")

    def forward(self, rows: Any, flat: Any, offsets: Any, weights: Any) -> tuple[Any, ...]:
        return (
            self.total(rows, per_sample_weights=weights),
            self.mean(flat, offsets),
            self.largest(rows),
        )


def _bags(size: int) -> Arguments:
    rows = torch.randint(0, 50, (size, 6))
    flat, offsets = torch.randint(0, 50, (20,)), torch.tensor([0, 4, 4, 11])
    return (rows, flat, offsets, torch.rand(size, 6)), {}


class Losses(nn.Module):
    """Compute what training minimizes, with its options."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.CrossEntropyLoss(torch.rand(7) + 0.5, label_smoothing=0.1)
        self.ignored = nn.CrossEntropyLoss(ignore_index=2, reduction="sum")
        self.pairs = nn.ModuleList(
            [nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(beta=0.5), nn.HuberLoss(delta=0.7)]
        )
        self.binary = nn.BCEWithLogitsLoss(pos_weight=torch.rand(7) + 0.5)
        self.divergence = nn.KLDivLoss(reduction="batchmean", log_target=True)

    def forward(self, scores: Any, target: Any, labels: Any) -> dict[str, Any]:
        logs, others = scores.log_softmax(-1), target.log_softmax(-1)
        return {
            "classes": self.classes(scores, labels),
            "ignored": self.ignored(scores, labels),
            "pairs": [loss(scores, target) for loss in self.pairs],
            "binary": self.binary(scores, target.sigmoid()),
            "divergence": self.divergence(logs, others),
        }


def _scored(size: int) -> Arguments:
    return (torch.randn(size, 7), torch.randn(size, 7), torch.randint(0, 7, (size,))), {}


class Distances(nn.Module):
    """Measure how far rows are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.cosine, self.pairwise = nn.CosineSimilarity(dim=-1), nn.PairwiseDistance(p=2)

    def forward(self, left: Any, right: Any) -> tuple[Any, ...]:
        return self.cosine(left, right), self.pairwise(left, right), torch.cdist(left, right, p=1.0)


class Linears(nn.Module):
    """Chain linear layers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(10, 12), nn.Linear(12, 9, bias=False)
        self.both, self.same = nn.Bilinear(9, 10, 4), nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.same(self.both(self.second(self.first(x).relu()), x))


def _smooth() -> Any:
    return _parallel(
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Mish(),
        nn.Softplus(2, 5),
        nn.ELU(0.7),
        nn.SELU(),
        nn.CELU(1.3),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.LogSigmoid(),
        nn.Softsign(),
        nn.Tanhshrink(),
    )


def _pieces() -> Any:
    return _parallel(
        nn.ReLU(),
        nn.ReLU6(),
        nn.LeakyReLU(0.2),
        nn.Hardtanh(-0.5, 0.8),
        nn.Hardswish(),
        nn.Hardsigmoid(),
        nn.Hardshrink(0.3),
        nn.Softshrink(0.4),
        nn.Threshold(0.1, -2.0),
        nn.RReLU(),
        nn.PReLU(6, 0.3),
    )


def _parallel(*parts: Any) -> Any:
    return Parallel(**{f"{type(part).__name__}{i}": part for i, part in enumerate(parts)})


MODULES = (
    ModuleCase(
        "activations_smooth",
        _smooth,
        positional((None, 6, 5)),
        sizes=(4, 3, 9),
        is_small=True,
    ),
    ModuleCase(
        "activations_pieces",
        _pieces,
        positional((None, 6, 5)),
        sizes=(4, 3, 9),
        is_small=True,
    ),
    ModuleCase(
        "softmaxes",
        lambda: _parallel(
            nn.Softmax(1), nn.LogSoftmax(-1), nn.Softmin(2), nn.Softmax2d(), nn.GLU(1)
        ),
        positional((None, 6, 5, 4)),
        sizes=(4, 3),
    ),
    ModuleCase("linears", Linears, positional((None, 10)), sizes=(4, 3, 9), is_small=True),
    ModuleCase(
        "embedding",
        lambda: nn.Sequential(nn.Embedding(40, 12, padding_idx=0), nn.Linear(12, 3)),
        lambda size: ((torch.randint(0, 40, (size, 5)),), {}),
        sizes=(4, 3, 9),
        is_small=True,
    ),
    ModuleCase("embedding_bag", Bags, _bags, sizes=(4, 3)),
    ModuleCase("losses", Losses, _scored, sizes=(6, 4)),
    ModuleCase("distances", Distances, positional((None, 8), (None, 8)), sizes=(5, 3)),
)
