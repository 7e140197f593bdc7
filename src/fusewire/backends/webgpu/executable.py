"""A program bound to a device: everything that does not change from run to run is made once."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backend import Event, Executable, Held, Slot
from fusewire.backends.webgpu.context import Context
from fusewire.backends.webgpu.memory import WebGpuBuffer, whole_words
from fusewire.backends.webgpu.program import Dispatch, Memory, Program
from fusewire.errors import ShapeMismatchError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType

# Sets of edge buffers whose bindings are kept: buffers are used again, so few sets come back often.
_KEPT = 8


@final
class WebGpuEvent(Event):
    """Work that was submitted; outputs given as host arrays are filled when it is waited for."""

    __slots__ = ("_context", "_made", "_targets")

    def __init__(
        self, context: Context, made: list[WebGpuBuffer], targets: Sequence[Held] | None
    ) -> None:
        self._context = context
        self._made = made
        self._targets = targets

    @property
    def outputs(self) -> list[Held]:
        """Buffers of the device: whoever reads them, or runs on them, comes after in its queue."""
        return list(self._made if self._targets is None else self._targets)

    def wait(self) -> list[Held]:
        """Block until the device is done."""
        self._context.wait()
        for buffer, target in zip(self._made, self._targets or (), strict=False):
            if isinstance(target, np.ndarray):
                target[...] = buffer.read()
        return self.outputs


@final
class WebGpuExecutable(Executable):
    """Kernels in a line. Tensors stay on the device from run to run."""

    def __init__(
        self,
        context: Context,
        program: Program,
        slots: Sequence[Slot],
        weights: Mapping[str, Array],
    ) -> None:
        self._context = context
        self._program = program
        self._inputs = [TensorType(s.dtype, s.dims) for s in slots if s.role == "input"]
        self._outputs = [TensorType(s.dtype, s.dims) for s in slots if s.role == "output"]
        self._pipelines = [context.pipeline(source) for source in program.kernels]
        self._layouts = [made.get_bind_group_layout(0) for made in self._pipelines]
        self._scratch = [context.pool.take(size) if size else None for size in program.scratch]
        # What lies where, but for inputs and outputs.
        self._fixed = [self._place(memory, weights) for memory in program.memories]
        self._turns = program.turns()
        self._params, self._offsets = self._write_params()
        self._groups = self._fixed_groups()
        self._kept: OrderedDict[tuple[int, ...], tuple[list[Any], list[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def is_reentrant(self) -> bool:
        """Runs join one queue, so scratch memory is never in two runs at once."""
        return True

    def run(
        self,
        inputs: Sequence[Held],
        outputs: Sequence[Held] | None = None,
        stream: object | None = None,
    ) -> Event:
        """Submit the kernels; ``inputs`` are host arrays, or buffers of this device."""
        given = [self._accept(x, t) for x, t in zip(inputs, self._inputs, strict=True)]
        made = self._targets(given, outputs)
        places = self._places(given, made)
        encoder = self._context.gpu.create_command_encoder()
        self._record(encoder, self._bound(places))
        for buffer, wanted in zip(made, outputs or (), strict=False):
            if isinstance(wanted, WebGpuBuffer) and wanted is not buffer and wanted.gpu is not None:
                size = -(-wanted.size // 4) * 4
                encoder.copy_buffer_to_buffer(buffer.gpu, 0, wanted.gpu, 0, size)
        self._context.queue.submit([encoder.finish()])
        return WebGpuEvent(self._context, made, outputs)

    def close(self) -> None:
        """Give memory back; running it is a mistake from then on."""
        # A scratch buffer is in several places, and each buffer is given back once.
        for buffer in {id(held): held for held in self._fixed if held is not None}.values():
            self._context.pool.give(buffer)
        self._fixed = []
        self._scratch = []
        self._kept.clear()

    def _accept(self, value: Held, type_: TensorType) -> WebGpuBuffer:
        if isinstance(value, WebGpuBuffer):
            if value.device != self._context.id or value.type != type_:
                raise ShapeMismatchError(
                    f"A buffer is {type_} on {self._context.id}, found {value.type} on "
                    f"{value.device}."
                )
            return value
        array = np.asarray(value)
        if array.shape != type_.shape or array.dtype != type_.dtype.numpy:
            raise ShapeMismatchError(
                f"An input is {type_}, found {array.dtype}{list(array.shape)}."
            )
        return self._context.upload(array, type_)

    def _targets(
        self, given: Sequence[WebGpuBuffer], outputs: Sequence[Held] | None
    ) -> list[WebGpuBuffer]:
        """Take the buffers that were given for outputs; make others, also for one read as input."""
        wanted: Sequence[Held] = [None] * len(self._outputs) if outputs is None else outputs
        read = {id(buffer) for buffer in given}
        made = []
        for target, type_ in zip(wanted, self._outputs, strict=True):
            if isinstance(target, WebGpuBuffer) and id(target) not in read:
                made.append(self._accept(target, type_))
            else:
                made.append(WebGpuBuffer(self._context, type_))
        return made

    def _place(self, memory: Memory, weights: Mapping[str, Array]) -> Any:
        if memory.size == 0 or memory.kind in ("input", "output"):
            return None
        if memory.kind == "scratch":
            return self._scratch[memory.place]
        if memory.digest:
            held = weights[memory.digest]
        else:
            held = np.frombuffer(base64.b64decode(memory.data), np.uint8)
        buffer = self._context.pool.take(memory.size)
        self._context.queue.write_buffer(buffer, 0, whole_words(held))
        return buffer

    def _write_params(self) -> tuple[Any, list[int]]:
        """Put the parameters of all dispatches into one buffer."""
        step = max(self._context.alignment // 4, 4)
        words: list[int] = []
        offsets = []
        for dispatch, turn in self._turns:
            offsets.append(len(words) * 4)
            words += dispatch.params[:2]
            words += [turn, *dispatch.params[3:]]
            words += [0] * (-len(words) % step)
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        buffer = self._context.gpu.create_buffer(size=max(len(words) * 4, 16), usage=usage)
        if words:
            self._context.queue.write_buffer(buffer, 0, np.array(words, np.uint32))
        return buffer, offsets

    def _fixed_groups(self) -> list[Any]:
        """Bind the dispatches that touch neither inputs nor outputs; None for the others."""
        kinds = [memory.kind for memory in self._program.memories]
        return [
            None
            if any(kinds[place] in ("input", "output") for place in dispatch.memories)
            else self._bind(number, dispatch, self._fixed)
            for number, (dispatch, _) in enumerate(self._turns)
        ]

    def _bind(self, number: int, dispatch: Dispatch, places: Sequence[Any]) -> Any:
        entries = [
            {
                "binding": at,
                "resource": {
                    "buffer": places[place],
                    "offset": 0,
                    "size": self._program.memories[place].size,
                },
            }
            for at, place in enumerate(dispatch.memories)
        ]
        params = {
            "buffer": self._params,
            "offset": self._offsets[number],
            "size": len(dispatch.params) * 4,
        }
        entries.append({"binding": len(entries), "resource": params})
        layout = self._layouts[dispatch.kernel]
        return self._context.gpu.create_bind_group(layout=layout, entries=entries)

    def _places(self, given: Sequence[WebGpuBuffer], made: Sequence[WebGpuBuffer]) -> list[Any]:
        places = list(self._fixed)
        for at, memory in enumerate(self._program.memories):
            if memory.kind == "input":
                places[at] = given[memory.place].gpu
            elif memory.kind == "output":
                places[at] = made[memory.place].gpu
        return places

    def _bound(self, places: list[Any]) -> list[Any]:
        """Bind the dispatches to these buffers, or find them bound."""
        key = tuple(map(id, places))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        groups = [
            fixed or self._bind(number, dispatch, places)
            for number, (fixed, (dispatch, _)) in enumerate(
                zip(self._groups, self._turns, strict=True)
            )
        ]
        with self._lock:
            # The buffers are kept with them, so that no other can have the same identity.
            self._kept[key] = (places, groups)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return groups

    def _record(self, encoder: Any, groups: Sequence[Any]) -> None:
        if not self._turns:
            return
        section = encoder.begin_compute_pass()
        for (dispatch, _), group in zip(self._turns, groups, strict=True):
            section.set_pipeline(self._pipelines[dispatch.kernel])
            section.set_bind_group(0, group)
            section.dispatch_workgroups(*dispatch.groups)
        section.end()
