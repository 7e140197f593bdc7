"""Tensors that stay in the memory of a GPU, and programs that run there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from fusewire.backends.torch.devices import full_precision, wait_for
from fusewire.backends.torch.program import Program, copied_outputs
from fusewire.backends.torch.storage import (
    CARRIERS,
    Tensor,
    entrance,
    exit_of,
    quiet_about_read_only,
)
from fusewire.contract.backend import Executable, Held, Into
from fusewire.contract.buffer import Buffer, EngineBuffer, note_download, note_upload
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType


@final
class TorchBuffer(EngineBuffer):
    """A contiguous tensor on one device, in the dtype that carries its elements."""

    @staticmethod
    def zeros(device: str, type_: TensorType, place: Any) -> TorchBuffer:
        """Make a buffer of zeros."""
        shape: Any = type_.shape
        carrier = CARRIERS[type_.dtype]
        return TorchBuffer(device, type_, torch.zeros(shape, dtype=carrier, device=place))

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy to the host."""
        tensor = self.tensor
        is_whole = offset == 0 and count is None
        last = None if count is None else offset + count
        part = tensor if is_whole else tensor.reshape(-1)[offset:last]
        host = exit_of(self._type.dtype)(part.to("cpu", copy=True))
        note_download(host.nbytes)
        return host

    def wait(self) -> None:
        """Block until the device has written it."""
        wait_for(self.tensor.device)

    def write(self, array: Array, offset: int = 0) -> None:
        """Copy from the host."""
        self.require_open()
        note_upload(array.nbytes)
        given = entrance(self._type.dtype)(array.reshape(-1))
        self._put(given, offset)

    def copy_within(self, source: Buffer, start: int, count: int, offset: int) -> bool:
        """Copy elements on the device."""
        if not isinstance(source, TorchBuffer) or source.type.dtype is not self._type.dtype:
            return False
        part = source.tensor.reshape(-1)[start : start + count]
        # Elements of its own may lie where others go.
        self._put(part.clone() if source is self else part, offset)
        return True

    def _put(self, part: Tensor, offset: int) -> None:
        # Tensors that a run made may be written to in this mode alone.
        with torch.inference_mode():
            self.tensor.reshape(-1)[offset : offset + part.numel()].copy_(part)

    def extracted(self, offset: int, type_: TensorType) -> Buffer | None:
        """Copy a part on the device."""
        shape: Any = type_.shape
        part = self.tensor.reshape(-1)[offset : offset + math.prod(shape)]
        return TorchBuffer(self._device, type_, part.clone().reshape(shape))

    def exporter(self) -> Any:
        """Return the tensor; one whose elements are carried in another dtype stays here."""
        tensor = self.tensor
        is_carried = tensor.element_size() != self._type.dtype.numpy.itemsize
        return None if is_carried or self._type.dtype.is_narrow else tensor


@final
class ResidentTorchExecutable(Executable):
    """Runs a graph in eager mode on a device that has a memory of its own."""

    def __init__(self, graph: Graph, device: str, place: Any) -> None:
        quiet_about_read_only()
        with torch.inference_mode():
            self._program = Program(graph, place)
        self._device, self._place = device, place
        self._enters = [entrance(value.tensor.dtype) for value in graph.inputs]
        self._dtypes = [value.tensor.dtype for value in graph.outputs]
        self._copied = copied_outputs(graph)

    @property
    def is_reentrant(self) -> bool:
        """Calls share nothing but weights."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Start a run: its outputs may be given to the next one before it is done."""
        with torch.inference_mode(), full_precision(self._place):
            pairs = zip(self._enters, inputs, strict=True)
            found = self._program([self._shown(enter, x) for enter, x in pairs])
            return [self._held(i, x) for i, x in enumerate(found)]

    def _shown(self, enter: Callable[[Array], Tensor], value: Any) -> Tensor:
        if isinstance(value, TorchBuffer):
            return value.tensor
        note_upload(value.nbytes)
        # Of the host's memory, which the caller may write to as soon as this returns.
        return enter(value).to(self._place, copy=True)

    def _held(self, index: int, x: Tensor) -> Held:
        x = x.clone(memory_format=torch.contiguous_format) if self._copied[index] else x
        type_ = TensorType(self._dtypes[index], tuple(x.shape))
        return TorchBuffer(self._device, type_, x.contiguous())
