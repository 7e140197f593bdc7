"""One module of the collection: how it is built, and what it is called with.

A case builds the same module and the same arguments in every process. ``arguments(size)`` makes
the arguments of one size, which is a batch or a length; the first of ``sizes`` is the example,
and a case with more of them is asked for all without being compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class ModuleCase:
    """A module with fixed weights, and arguments of one or more sizes."""

    name: str
    make: Callable[[], Any]
    arguments: Callable[[int], Arguments]
    sizes: tuple[int, ...] = (4,)
    is_network: bool = False
    """Whether it is a whole network, whose time counts; the others show options of layers."""
    is_small: bool = False
    """Whether tests run it: together they show every family in a few seconds."""
    notes: str = field(default="", compare=False)

    def build(self) -> Any:
        """Build the module in evaluation mode, the same every time."""
        torch.manual_seed(0)
        module = self.make().eval()
        with torch.no_grad():
            for part in module.modules():
                _disturb(part)
        return module

    def example(self, size: int | None = None) -> Arguments:
        """Make the arguments of a size, by default of the example."""
        size = self.sizes[0] if size is None else size
        torch.manual_seed(size)
        return self.arguments(size)


def _disturb(part: Any) -> None:
    """Give statistics and scales other values than 0 and 1, which would hide what is left out."""
    if getattr(part, "running_mean", None) is not None:
        part.running_mean.normal_(0, 0.3)
        part.running_var.uniform_(0.5, 2)
    if isinstance(part, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
        weight, bias = part.weight, getattr(part, "bias", None)
        if weight is not None:
            weight.uniform_(0.5, 1.5)
        if bias is not None:
            bias.normal_(0, 0.1)


def positional(*shapes: tuple[int | None, ...]) -> Callable[[int], Arguments]:
    """Make normal arguments of these shapes, where None stands for the size."""

    def arguments(size: int) -> Arguments:
        sized = [[size if dim is None else dim for dim in shape] for shape in shapes]
        return tuple(torch.randn(shape) for shape in sized), {}

    return arguments


class Parallel(nn.Module):
    """Call every part with the same arguments, and return what each returned."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, *args: Any) -> dict[str, Any]:
        return {name: part(*args) for name, part in self.parts.items()}
