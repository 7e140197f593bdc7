"""A module of PyTorch that runs a program: the way back into a pipeline of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fusewire.errors import GraphError
from fusewire.frontends.torch.arrays import call_array, result_tensor


class ProgramModule(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Runs a program on tensors: it has no parameters, and computes no gradients.

    ``takes_arrays`` tells whether the program takes arrays; one that was compiled from a module
    takes tensors itself.
    """

    def __init__(self, program: Callable[..., Any], name: str, takes_arrays: bool) -> None:
        super().__init__()
        self.program, self.name, self.takes_arrays = program, name, takes_arrays
        self.eval()

    def extra_repr(self) -> str:
        """Show the name of the program."""
        return self.name

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch is not typed here
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the program."""
        if not self.takes_arrays:
            return self.program(*arguments, **named)
        arguments, named = pytree.tree_map_only(torch.Tensor, self._array, (arguments, named))
        results = self.program(*arguments, **named)
        return pytree.tree_map_only((np.ndarray, np.generic), result_tensor, results)

    def _array(self, tensor: torch.Tensor) -> Any:
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GraphError(
                f"The module runs the compiled program {self.name}, which computes no gradients, "
                "and an argument requires one. Call it under torch.no_grad()."
            )
        return call_array(tensor)


def program_module(program: Callable[..., Any], name: str, takes_arrays: bool) -> ProgramModule:
    """Make a module of a program."""
    return ProgramModule(program, name, takes_arrays)
