"""A program bound to one device: what does not change from run to run is made once.

It dies with its device; an executable then makes another.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backends.webgpu.context import Context
from fusewire.backends.webgpu.memory import WebGpuBuffer, whole_words
from fusewire.backends.webgpu.program import Dispatch, Memory, Program
from fusewire.backends.webgpu.recording import Clock, record_one
from fusewire.errors import EngineRaised
from fusewire.ir.graph import Array

# Sets of edge buffers whose bindings are kept: buffers are used again, so few sets come back often.
_KEPT = 8


@final
class Binding:
    """Pipelines, memory and bindings of a program on a device."""

    def __init__(self, context: Context, program: Program, weights: Mapping[str, Array]) -> None:
        self.context = context
        self._program = program
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
        self._alone = threading.Lock()
        timed = program.mode in ("timed", "clocked") and bool(self._turns)
        self.clock = Clock(context, len(self._turns)) if timed else None

    def submit(
        self,
        given: Sequence[WebGpuBuffer],
        made: Sequence[WebGpuBuffer],
    ) -> None:
        """Hand a run to the queue."""
        groups = self._bound(self._places(given, made))
        if self._program.mode == "debug":
            # Scratch memory is shared, and between kernels another run would come in.
            with self._alone:
                self._one_by_one(groups)
            groups = []
        encoder = self.context.gpu.create_command_encoder()
        self._record(encoder, groups)
        self.context.queue.submit([encoder.finish()])

    def close(self) -> None:
        """Give memory back."""
        # A scratch buffer is in several places, and each buffer is given back once.
        for buffer in {id(held): held for held in self._fixed if held is not None}.values():
            self.context.pool.give(buffer)
        self._fixed = []
        self._scratch = []
        self._kept.clear()

    def _place(self, memory: Memory, weights: Mapping[str, Array]) -> Any:
        if memory.size == 0 or memory.kind in ("input", "output"):
            return None
        if memory.kind == "scratch":
            return self._scratch[memory.place]
        if memory.digest:
            held = weights[memory.digest]
        else:
            held = np.frombuffer(base64.b64decode(memory.data), np.uint8)
        buffer = self.context.pool.take(memory.size)
        self.context.queue.write_buffer(buffer, 0, whole_words(held))
        return buffer

    def _write_params(self) -> tuple[Any, list[int]]:
        """Put the parameters of all dispatches into one buffer."""
        step = max(self.context.alignment // 4, 4)
        words: list[int] = []
        offsets = []
        for dispatch, turn in self._turns:
            offsets.append(len(words) * 4)
            words += dispatch.params[:2]
            words += [turn, *dispatch.params[3:]]
            words += [0] * (-len(words) % step)
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        buffer = self.context.gpu.create_buffer(size=max(len(words) * 4, 16), usage=usage)
        if words:
            self.context.queue.write_buffer(buffer, 0, np.array(words, np.uint32))
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
        return self.context.gpu.create_bind_group(layout=layout, entries=entries)

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
        if not groups:
            return
        if self.clock is not None:
            self.clock.record(encoder, self._steps(groups))
            return
        section = encoder.begin_compute_pass()
        for step in self._steps(groups):
            record_one(section, *step)
        section.end()

    def _steps(self, groups: Sequence[Any]) -> list[tuple[Any, Any, tuple[int, int]]]:
        turns = zip(self._turns, groups, strict=True)
        return [(self._pipelines[d.kernel], group, d.groups) for (d, _), group in turns]

    def _one_by_one(self, groups: Sequence[Any]) -> None:
        """Run each kernel alone, so that an error names the one that made it."""
        for number, step in enumerate(self._steps(groups)):
            encoder = self.context.gpu.create_command_encoder()
            section = encoder.begin_compute_pass()
            record_one(section, *step)
            section.end()
            try:
                self.context.queue.submit([encoder.finish()])
                self.context.wait()
            except wgpu.GPUError as error:
                source = self._program.kernels[self._turns[number][0].kernel]
                raise EngineRaised(f"Kernel {number} failed: {error}\n{source}") from error
