"""A program that runs on a device, and goes on with another one when that is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np
import wgpu

from fusewire.backends.webgpu.binding import Binding
from fusewire.backends.webgpu.context import Context, is_loss
from fusewire.backends.webgpu.memory import WebGpuBuffer
from fusewire.backends.webgpu.program import Program
from fusewire.contract.backend import Event, Executable, Held, Slot
from fusewire.contract.tuning import Clocked
from fusewire.errors import EngineRaised, ShapeMismatchError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType


@final
class WebGpuEvent(Event):
    """Work that was submitted."""

    __slots__ = ("_context", "_made")

    def __init__(self, context: Context, made: list[WebGpuBuffer]) -> None:
        self._context = context
        self._made = made

    @property
    def outputs(self) -> list[Held]:
        """Buffers of the device: whoever reads them, or runs on them, comes after in its queue."""
        return list(self._made)

    def wait(self) -> list[Held]:
        """Block until the device is done."""
        self._context.wait()
        return self.outputs


@final
class WebGpuExecutable(Executable, Clocked):
    """Kernels in a line. Tensors stay on the device from run to run."""

    def __init__(
        self,
        context: Context,
        program: Program,
        slots: Sequence[Slot],
        weights: Mapping[str, Array],
        renew: Callable[[Context], Context],
    ) -> None:
        """``renew`` gives a context in the place of one whose device was lost."""
        self._program = program
        self._weights = weights
        self._renew = renew
        self._inputs = [TensorType(s.dtype, s.dims) for s in slots if s.role == "input"]
        self._outputs = [TensorType(s.dtype, s.dims) for s in slots if s.role == "output"]
        self._binding = Binding(context, program, weights)
        self._lock = threading.Lock()

    @property
    def is_reentrant(self) -> bool:
        """Runs join one queue, each as a whole, so scratch memory is never in two at once."""
        return True

    def run(self, inputs: Sequence[Held]) -> Event:
        """Submit the kernels; ``inputs`` are host arrays, or buffers of this device."""
        binding = self._binding
        try:
            return self._submit(binding, inputs)
        except wgpu.GPUError as error:
            if not is_loss(error):
                raise
        # A device is lost when its driver fails or is replaced; another one is opened.
        with self._lock:
            if self._binding is binding:
                self._binding = Binding(self._renew(binding.context), self._program, self._weights)
        return self._submit(self._binding, inputs)

    def _submit(self, binding: Binding, inputs: Sequence[Held]) -> Event:
        context = binding.context
        given = [self._accept(context, x, t) for x, t in zip(inputs, self._inputs, strict=True)]
        made = [WebGpuBuffer(context, type_) for type_ in self._outputs]
        binding.submit(given, made)
        return WebGpuEvent(context, made)

    @property
    def kernel_seconds(self) -> list[float]:
        """Seconds on the device of each dispatch of this thread's last run, with timestamps."""
        clock = self._binding.clock
        return [] if clock is None else clock.seconds()

    @property
    def device_seconds(self) -> float | None:
        """All that those dispatches took, with timestamps="clock"; None where it is no time."""
        taken = sum(self.kernel_seconds) if self._program.mode == "clocked" else 0.0
        return taken if taken > 0 else None

    def close(self) -> None:
        """Give memory back; running it is a mistake from then on."""
        self._binding.close()

    def _accept(self, context: Context, value: Held, type_: TensorType) -> WebGpuBuffer:
        if isinstance(value, WebGpuBuffer):
            if value.device != context.id or value.type != type_:
                raise ShapeMismatchError(
                    f"A buffer is {type_} on {context.id}, found {value.type} on {value.device}."
                )
            if value.context is not context:
                raise EngineRaised(
                    f"A buffer of {value.type} lies on {context.id} as it was before it was lost.",
                    "Give an array of the host, or compute it again.",
                )
            return value
        array = np.asarray(value)
        if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
            raise ShapeMismatchError(
                f"An input is {type_}, found {array.dtype}{list(array.shape)}."
            )
        return context.upload(array, type_)
