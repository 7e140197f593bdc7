"""Modules for the tests, and how they are held against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fusewire.contract.frontend import Limits, Reading
from fusewire.frontends.torch.frontend import TorchFrontend
from fusewire.ops.interpret import interpret


class Block(nn.Module):  # type: ignore[misc] # torch is not typed here
    """A block of a transformer, as people write it."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.heads = heads

    def forward(self, x: Any) -> Any:
        batch, time, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.wide(self.after(x))


class Lambda(nn.Module):  # type: ignore[misc] # torch is not typed here
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def converted(module: Any, *example: Any) -> Reading:
    """Convert a module for an example."""
    return TorchFrontend().open(module, Limits()).convert(example)


def flat(found: Any) -> list[Any]:
    """List the tensors of a result as arrays."""
    leaves = torch.utils._pytree.tree_leaves(found)
    return [leaf.detach().numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def check(module: Any, *arrays: Any, rtol: float = 1e-5, atol: float = 1e-6) -> Reading:
    """Hold the graph of a module against the module; returns what was read."""
    reading = converted(module, *arrays)
    compare(module, reading, arrays, rtol, atol)
    return reading


def compare(
    module: Any, reading: Reading, arrays: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Hold what a graph computes against what a module returns, dtypes included."""
    with torch.no_grad():
        expected = flat(module(*map(torch.from_numpy, arrays)))
    found = [np.asarray(x) for x in interpret(reading.graph, list(arrays))]
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def draw(*shape: int, of: str = "float32", seed: int = 0) -> Any:
    """Draw an array."""
    return np.random.default_rng(seed).normal(size=shape).astype(of)
