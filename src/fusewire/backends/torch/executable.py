"""A program as an executable: arrays in, arrays out, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from fusewire.backends.torch.program import Program, copied_outputs
from fusewire.backends.torch.storage import entrance, exit_of, quiet_about_read_only
from fusewire.contract.backend import Done, Event, Executable, Held
from fusewire.errors import CheckError
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

    def run(self, inputs: Sequence[Held]) -> Event:
        """Run to the end; outputs are fresh, writable, and the caller's."""
        if self._threads is None:
            return Done(self._run(inputs))
        # The number of threads is the process's: whoever uses PyTorch beside us keeps theirs.
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            return Done(self._run(inputs))
        finally:
            torch.set_num_threads(before)

    def _run(self, inputs: Sequence[Any]) -> list[Held]:
        with torch.inference_mode():
            tensors = [enter(x) for enter, x in zip(self._enters, inputs, strict=True)]
            try:
                outputs = self._program(tensors)
            except IndexError as error:
                raise CheckError(f"PyTorch found an index that does not exist: {error}") from error
            arrays: list[Held] = []
            for x, (leave, is_lent) in zip(outputs, self._exits, strict=True):
                if is_lent:
                    x = x.clone(memory_format=torch.contiguous_format)
                elif not x.is_contiguous():
                    x = x.contiguous()
                arrays.append(leave(x))
            return arrays
