"""Modules of tensor operations: views changed in place, indexing, sums, structures in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.modules.case import Arguments, ModuleCase, positional


class InPlace(nn.Module):
    """Write through views, as people do: the result is a new tensor, the argument stays."""

    def forward(self, x: Any) -> tuple[Any, Any]:
        y = x.clone()
        y[:, 0] += 1
        y[:, 1:3].mul_(2).relu_()
        y[..., -1] = y[..., 0]
        row = y.view(x.shape[0], -1)
        row.sub_(row.mean(1, keepdim=True))
        mask = y > 0.5
        y[mask] = 0.5
        return y, y.transpose(0, 1).contiguous().add_(x.transpose(0, 1))


class Indexing(nn.Module):
    """Take and put by positions of all kinds."""

    def forward(self, x: Any, rows: Any) -> dict[str, Any]:
        columns = torch.tensor([2, 0])
        values, positions = x.topk(3, dim=-1)
        ordered, order = x.sort(dim=-1, descending=True, stable=True)
        return {
            "gather": x.gather(1, rows),
            "scatter": torch.zeros_like(x).scatter_add(1, rows, x[:, : rows.shape[1]]),
            "advanced": x[:, columns],
            "select": x.index_select(1, columns),
            "top": values,
            "positions": positions,
            "ordered": ordered,
            "order": order,
            "cumulative": x.cumsum(1),
            "flipped": x.flip(1).roll(1, 1),
            "chunks": torch.cat(x.chunk(2, 1)[::-1], 1),
            "lower": x.unsqueeze(-1).expand(-1, -1, x.shape[1]).tril(),
            "where": torch.where(x > 0, x, -x).masked_fill(x > 1, 9.0),
            "one_hot": nn.functional.one_hot(rows, 8).float(),
            "repeat": x.repeat(1, 2).repeat_interleave(2, 1),
        }


class Reductions(nn.Module):
    """Reduce along axes, in every way that layers need."""

    def forward(self, x: Any) -> dict[str, Any]:
        return {
            "sum": x.sum((1, 2)),
            "mean": x.mean(-1, keepdim=True),
            "var": x.var(1),
            "std": x.std((0, 2), correction=0),
            "norm": x.norm(dim=-1),
            "log": x.logsumexp(2),
            "largest": x.amax((1, 2)),
            "at": x.argmax(1),
            "pair": x.max(2),
            "prod": x.prod(1),
            "any": (x > 1).any(1),
            "all": (x > -3).all(-1),
            "median": x.median(-1).values,
        }


class Products(nn.Module):
    """Multiply matrices under all their names."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 5))
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: Any) -> tuple[Any, ...]:
        outer = torch.einsum("bij,bkj->bik", x, x)
        return (
            torch.addmm(self.bias, x[:, 0], self.matrix, beta=0.5, alpha=2),
            torch.bmm(outer, x),
            torch.baddbmm(x, outer, x),
            x @ self.matrix,
            torch.einsum("bij,jk,k->bi", x, self.matrix, self.bias),
            torch.matmul(self.matrix.t(), x.mT),
        )


class Spectrum(nn.Module):
    """Mix tokens by a Fourier transform, as FNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.out(self.norm(x + mixed)) + torch.fft.irfft(torch.fft.rfft(x, dim=1), 12, dim=1)


class Structured(nn.Module):
    """Take and return nested dictionaries, lists and tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(8, 6), nn.Linear(5, 6)

    def forward(self, batch: dict[str, Any], scales: list[Any]) -> dict[str, Any]:
        image, text = self.image(batch["image"]), self.text(batch["meta"]["text"])
        return {
            "sum": image * scales[0] + text * scales[1],
            "parts": [image, (text, {"count": image.shape[-1]})],
            "nothing": None,
        }


def _structured(size: int) -> Arguments:
    batch = {"image": torch.randn(size, 8), "meta": {"text": torch.randn(size, 5), "id": 7}}
    return (batch, [torch.rand(6), torch.rand(())]), {}


@dataclass
class HeadOutput:
    """What a detector returns."""

    boxes: Any
    scores: Any
    labels: Any = None


class Ranked(NamedTuple):
    """The best scores and where they were."""

    values: Any
    positions: Any


class Head(nn.Module):
    """Return a dataclass that holds a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(12, 4), nn.Linear(12, 3)

    def forward(self, x: Any) -> HeadOutput:
        values, positions = self.scores(x).softmax(-1).max(-1)
        return HeadOutput(boxes=self.boxes(x).sigmoid(), scores=Ranked(values, positions))


class Keywords(nn.Module):
    """Take keyword arguments, flags and None, which decide what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(
        self, x: Any, *, mask: Any = None, scale: float = 1.0, residual: bool = False
    ) -> Any:
        y = self.layer(x) * scale
        if mask is not None:
            y = y.masked_fill(~mask, 0)
        return x + y if residual else y


def _keywords(size: int) -> Arguments:
    flags = {"mask": torch.rand(size, 6) < 0.5, "residual": True, "scale": 0.5}
    return (torch.randn(size, 6),), flags


def _indexed(size: int) -> Arguments:
    return (torch.randn(size, 8), torch.stack([torch.randperm(8)[:3] for _ in range(size)])), {}


MODULES = (
    ModuleCase("in_place", InPlace, positional((None, 4, 5)), sizes=(3, 2, 6), is_small=True),
    ModuleCase("indexing", Indexing, _indexed, sizes=(4, 3)),
    ModuleCase("reductions", Reductions, positional((None, 4, 5)), sizes=(3, 6), is_small=True),
    ModuleCase("products", Products, positional((None, 4, 6)), sizes=(3, 5)),
    ModuleCase("spectrum", Spectrum, positional((None, 12, 16)), sizes=(2, 3)),
    ModuleCase("structured", Structured, _structured, sizes=(4, 3), is_small=True),
    ModuleCase("dataclass_out", Head, positional((None, 12)), sizes=(5, 3), is_small=True),
    ModuleCase("keywords", Keywords, _keywords, sizes=(4, 3), is_small=True),
)
