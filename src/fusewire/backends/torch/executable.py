"""A program as an executable: arrays in, arrays out, without copies.

Private, and why: ``torch._C._InferenceMode`` is what ``torch.inference_mode`` enters, at half of
the price (1.4 us, not 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch._C import _InferenceMode

from fusewire.backends.torch.program import Program, copied_outputs
from fusewire.backends.torch.storage import entrance, exit_of, quiet_about_read_only
from fusewire.backends.torch.threads import run_with
from fusewire.contract.backend import Executable, Held, Into
from fusewire.ir.graph import Graph


@final
class TorchExecutable(Executable):
    """Runs a graph in eager mode, without gradients."""

    def __init__(self, graph: Graph, threads: int | None) -> None:
        quiet_about_read_only()
        with torch.inference_mode():
            self._program = Program(graph)
        self._threads = threads
        self._enters = [entrance(value.tensor.dtype) for value in graph.inputs]
        exits = [exit_of(value.tensor.dtype) for value in graph.outputs]
        self._exits = list(zip(exits, copied_outputs(graph), strict=True))

    @property
    def is_reentrant(self) -> bool:
        """Calls share nothing but weights."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run to the end; outputs are fresh, writable, and the caller's."""
        if self._threads is None:
            return self._run(inputs)
        return run_with(self._threads, self._run, inputs)

    def _run(self, inputs: Sequence[Any]) -> list[Held]:
        with _InferenceMode(True):
            tensors = [enter(x) for enter, x in zip(self._enters, inputs, strict=True)]
            outputs = self._program(tensors)
            arrays: list[Held] = []
            for x, (leave, is_lent) in zip(outputs, self._exits, strict=True):
                if is_lent:
                    x = x.clone(memory_format=torch.contiguous_format)
                elif not x.is_contiguous():
                    x = x.contiguous()
                arrays.append(leave(x))
            return arrays
