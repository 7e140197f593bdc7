"""A program on a device: bound to it once, submitted run by run, timed where that is asked for.

What does not change from run to run is made once, and dies with its device; the executable then
goes on with another device.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backends.webgpu.context import Context, Memory, WebGpuBuffer, is_loss, whole_words
from fusewire.backends.webgpu.program import Program
from fusewire.contract.backend import Executable, Held, Into, Slot
from fusewire.contract.profiling import KernelTime, Profiled
from fusewire.contract.tuning import Clocked
from fusewire.errors import EngineRaised, ShapeMismatchError
from fusewire.ir.graph import Array
from fusewire.ir.types import TensorType
from fusewire.kernel.program import Allocation, Launch

# Sets of edge buffers whose bindings are kept: buffers are used again, so few sets come back often.
_KEPT = 8
# What each run brings: inputs, outputs, and outputs that serve as scratch memory before.
_EDGES = ("input", "output", "lent")
# Timestamps of a dispatch: its begin and its end.
_WORDS = 2
# The most timestamps of a set, as WebGPU has it.
_MOST_TIMESTAMPS = 4096
# A pipeline, what it is bound to, and its grid.
_Step = tuple[Any, Any, tuple[int, ...]]


def _record_one(section: Any, pipeline: Any, group: Any, grid: tuple[int, ...]) -> None:
    """Add one dispatch to a pass."""
    section.set_pipeline(pipeline)
    section.set_bind_group(0, group)
    section.dispatch_workgroups(*grid)


@final
class Clock:
    """Timestamps around every dispatch of a run: each has a pass of its own.

    Threads may run at once, so each has its own memory for what was found.
    """

    def __init__(self, context: Context, count: int) -> None:
        self._context = context
        self._count = count
        self._queries = context.gpu.create_query_set(type="timestamp", count=_WORDS * count)
        self._size = 8 * _WORDS * count
        self._found = threading.local()

    def record(self, encoder: Any, steps: Sequence[_Step]) -> None:
        """Add dispatches, each between two timestamps."""
        for place, step in enumerate(steps):
            writes = {
                "query_set": self._queries,
                "beginning_of_pass_write_index": _WORDS * place,
                "end_of_pass_write_index": _WORDS * place + 1,
            }
            section = encoder.begin_compute_pass(timestamp_writes=writes)
            _record_one(section, *step)
            section.end()
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        if not hasattr(self._found, "here"):
            self._found.here = self._context.gpu.create_buffer(size=self._size, usage=usage)
        encoder.resolve_query_set(self._queries, 0, _WORDS * self._count, self._found.here, 0)

    def seconds(self) -> list[float]:
        """Read what the last run of this thread took, dispatch by dispatch."""
        return spans(self.ticks())

    def ticks(self) -> Array:
        """Read the timestamps of the last run of this thread, in nanoseconds, in pairs."""
        if not hasattr(self._found, "here"):
            return np.zeros(0, np.uint64)
        held = self._context.queue.read_buffer(self._found.here, 0, self._size)
        return np.frombuffer(held, np.uint64)


def spans(ticks: Array) -> list[float]:
    """Give the seconds between timestamps, which are nanoseconds in pairs.

    Some drivers wrap, or write them out of order: NaN where the end comes before the beginning.
    """
    pairs = ticks.reshape(-1, _WORDS).tolist()
    return [(end - begin) * 1e-9 if end >= begin else math.nan for begin, end in pairs]


def placed(names: Sequence[str], ticks: Array, end_of_run: float) -> list[KernelTime]:
    """Place dispatches on the clock of the run.

    The device's clock has another zero: the last dispatch is taken to end with the run.
    """
    pairs = ticks.reshape(-1, _WORDS).tolist()
    last = max((end for _, end in pairs), default=0)
    return [
        KernelTime(name, end_of_run - (last - begin) * 1e-9, (end - begin) * 1e-9)
        for name, (begin, end) in zip(names, pairs, strict=False)
        if begin <= end
    ]


@final
class Binding:
    """Pipelines, memory and bindings of a program on a device."""

    def __init__(self, context: Context, program: Program, weights: Mapping[str, Array]) -> None:
        self.context = context
        self._program = program
        self._allocations = program.schedule.allocations
        self._pipelines = [context.pipeline(source) for source in program.kernels]
        self._layouts = [made.get_bind_group_layout(0) for made in self._pipelines]
        self._turns = program.schedule.turns()
        self._pool = context.pool
        self._taken: list[Any] = []
        self._kept: OrderedDict[tuple[int, ...], tuple[list[Any], list[Any]]] = OrderedDict()
        with contextlib.ExitStack() as stack:
            # Where there is not enough memory for all of it, none is kept.
            stack.callback(self.close)
            self._scratch = [
                self._take(size) if size else None for size in program.schedule.scratch
            ]
            # What lies where, but for inputs and outputs.
            self._fixed = [self._place(memory, weights) for memory in self._allocations]
            stack.pop_all()
        self._params, self._offsets = self._write_params()
        self._groups = self._fixed_groups()
        self._lock = threading.Lock()
        self._alone = threading.Lock()
        timed = program.mode in ("timed", "clocked") and bool(self._turns)
        self.clock = Clock(context, len(self._turns)) if timed else None
        self._profiling_clock = self.clock

    def profiling_clock(self) -> Clock | None:
        """Return what times every dispatch of a run that is given it; None if nothing can."""
        count = len(self._turns)
        is_able = "timestamp-query" in self.context.gpu.features and self._program.mode != "debug"
        if not is_able or not 0 < _WORDS * count <= _MOST_TIMESTAMPS:
            return None
        with self._lock:
            if self._profiling_clock is None:
                self._profiling_clock = Clock(self.context, count)
            return self._profiling_clock

    def dispatch_names(self) -> list[str]:
        """Name the dispatches of a run in order: the kernel by its number, and the grid."""
        return [
            f"kernel {launch.kernel}, {'x'.join(map(str, launch.grid))} groups"
            for launch, _ in self._turns
        ]

    def submit(
        self,
        inputs: Sequence[Memory | None],
        outputs: Sequence[Memory | None],
        skipped: Sequence[int] = (),
        clock: Clock | None = None,
    ) -> None:
        """Hand a run to the queue without the dispatches of these numbers; a ``clock`` times it.

        The caller holds the memory until this returns.
        """
        groups = self._bound(self._places(inputs, outputs), skipped)
        if self._program.mode == "debug":
            # Scratch memory is shared, and between kernels another run would come in.
            with self._alone:
                self._one_by_one(groups)
            groups = []
        encoder = self.context.gpu.create_command_encoder()
        self._record(encoder, groups, clock or self.clock)
        self.context.queue.submit([encoder.finish()])

    def close(self) -> None:
        """Give memory back."""
        while self._taken:
            self._pool.give(self._taken.pop())
        self._fixed = []
        self._scratch = []
        self._kept.clear()

    def _take(self, size: int) -> Any:
        buffer = self._pool.take(size)
        self._taken.append(buffer)
        return buffer

    def _place(self, memory: Allocation, weights: Mapping[str, Array]) -> Any:
        if memory.size == 0 or memory.kind in _EDGES:
            return None
        if memory.kind == "scratch":
            return self._scratch[memory.place]
        buffer = self._take(memory.size)
        self.context.queue.write_buffer(buffer, 0, whole_words(memory.constant(weights)))
        return buffer

    def _write_params(self) -> tuple[Any, list[int]]:
        """Put the parameters of all dispatches into one buffer."""
        step = max(self.context.alignment // 4, 4)
        words: list[int] = []
        offsets = []
        for launch, turn in self._turns:
            offsets.append(len(words) * 4)
            if not launch.params:
                # A kernel of a package has its numbers in its text.
                continue
            words += launch.params[:2]
            words += [turn, *launch.params[3:]]
            words += [0] * (-len(words) % step)
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        buffer = self.context.gpu.create_buffer(size=max(len(words) * 4, 16), usage=usage)
        if words:
            self.context.queue.write_buffer(buffer, 0, np.array(words, np.uint32))
        return buffer, offsets

    def _fixed_groups(self) -> list[Any]:
        """Bind the dispatches that touch neither inputs nor outputs; None for the others."""
        kinds = [memory.kind for memory in self._allocations]
        return [
            None
            if any(kinds[place] in _EDGES for place in launch.allocations)
            else self._bind(number, launch, self._fixed)
            for number, (launch, _) in enumerate(self._turns)
        ]

    def _bind(self, number: int, launch: Launch, places: Sequence[Any]) -> Any:
        entries = [
            {
                "binding": at,
                "resource": {
                    "buffer": places[place],
                    "offset": 0,
                    "size": self._allocations[place].size,
                },
            }
            for at, place in enumerate(launch.allocations)
        ]
        if launch.params:
            params = {
                "buffer": self._params,
                "offset": self._offsets[number],
                "size": len(launch.params) * 4,
            }
            entries.append({"binding": len(entries), "resource": params})
        layout = self._layouts[launch.kernel]
        return self.context.gpu.create_bind_group(layout=layout, entries=entries)

    def _places(self, given: Sequence[Memory | None], made: Sequence[Memory | None]) -> list[Any]:
        places = list(self._fixed)
        for at, allocation in enumerate(self._allocations):
            if allocation.kind not in _EDGES:
                continue
            memory = (given if allocation.kind == "input" else made)[allocation.place]
            places[at] = None if memory is None else memory.gpu
        return places

    def copying(self, output: int, place: int) -> int | None:
        """Find the one dispatch that copies an input to an output, before others write to that.

        None if the input is read otherwise: then the output cannot be in its memory.
        """
        edges = {(memory.kind, memory.place): at for at, memory in enumerate(self._allocations)}
        taken, made = edges["input", place], edges["output", output]
        if ("lent", output) in edges:
            return None
        touched = [n for n, (launch, _) in enumerate(self._turns) if made in launch.allocations]
        readers = [n for n, (launch, _) in enumerate(self._turns) if taken in launch.allocations]
        if not readers or readers != touched[:1]:
            return None
        (launch, _) = self._turns[readers[0]]
        return readers[0] if {*launch.allocations} == {taken, made} else None

    def _bound(self, places: list[Any], skipped: Sequence[int] = ()) -> list[Any]:
        """Bind the dispatches to these buffers, or find them bound; None for what is skipped."""
        key = (*map(id, places), *skipped)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        groups = [
            None if number in skipped else fixed or self._bind(number, launch, places)
            for number, (fixed, (launch, _)) in enumerate(
                zip(self._groups, self._turns, strict=True)
            )
        ]
        with self._lock:
            # The buffers are kept with them, so that no other can have the same identity.
            self._kept[key] = (places, groups)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return groups

    def _record(self, encoder: Any, groups: Sequence[Any], clock: Clock | None) -> None:
        if not groups:
            return
        if clock is not None:
            clock.record(encoder, self._steps(groups))
            return
        section = encoder.begin_compute_pass()
        for step in self._steps(groups):
            _record_one(section, *step)
        section.end()

    def _steps(self, groups: Sequence[Any]) -> list[_Step]:
        turns = zip(self._turns, groups, strict=True)
        return [
            (self._pipelines[launch.kernel], group, launch.grid)
            for (launch, _), group in turns
            if group is not None
        ]

    def _one_by_one(self, groups: Sequence[Any]) -> None:
        """Run each kernel alone, so that an error names the one that made it."""
        for number, step in enumerate(self._steps(groups)):
            encoder = self.context.gpu.create_command_encoder()
            section = encoder.begin_compute_pass()
            _record_one(section, *step)
            section.end()
            try:
                self.context.queue.submit([encoder.finish()])
                self.context.wait()
            except wgpu.GPUError as error:
                source = self._program.kernels[self._turns[number][0].kernel]
                raise EngineRaised(f"Kernel {number} failed: {error}\n{source}") from error


@final
class WebGpuExecutable(Executable, Clocked, Profiled):
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

    def run_bytes(self) -> int | None:
        """Count what its kernels share as scratch memory, and what a run returns."""
        schedule = self._program.schedule
        own = sum(memory.size for memory in schedule.allocations if memory.kind == "output")
        return own + sum(schedule.scratch)

    @property
    def is_reentrant(self) -> bool:
        """Runs join one queue, each as a whole, so scratch memory is never in two at once."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Submit the kernels; ``inputs`` are host arrays, or buffers of this device.

        They write where ``into`` has buffers of this device, and to a state itself where all that
        a kernel does is to copy it. Whoever reads the outputs, or runs on them, comes after in the
        device's queue.
        """
        binding = self._binding
        try:
            return self._submit(binding, inputs, into)
        except wgpu.GPUError as error:
            if not is_loss(error):
                raise
        # A device is lost when its driver fails or is replaced; another one is opened.
        with self._lock:
            if self._binding is binding:
                self._binding = Binding(self._renew(binding.context), self._program, self._weights)
        return self._submit(self._binding, inputs, into)

    def run_profiled(
        self, inputs: Sequence[Held], into: Into = ()
    ) -> tuple[list[Held], Sequence[KernelTime]]:
        """Run to the end with timestamps around every dispatch, if the device has them."""
        binding = self._binding
        clock = binding.profiling_clock()
        if clock is not None:
            try:
                outputs = self._submit(binding, inputs, into, clock)
                binding.context.wait()
            except wgpu.GPUError as error:
                if not is_loss(error):
                    raise
            else:
                end = perf_counter()
                return outputs, placed(binding.dispatch_names(), clock.ticks(), end)
        # Without timestamps; a device that was lost is renewed.
        outputs = self.run(inputs, into)
        self._binding.context.wait()
        return outputs, ()

    def _submit(
        self,
        binding: Binding,
        inputs: Sequence[Held],
        into: Into = (),
        clock: Clock | None = None,
    ) -> list[Held]:
        context = binding.context
        given = [self._accept(context, x, t) for x, t in zip(inputs, self._inputs, strict=True)]
        memories = [x.memory() for x in given]
        is_plain = clock is None and self._program.mode == "plain"
        made: list[WebGpuBuffer] = []
        skipped: list[int] = []
        for output, type_ in enumerate(self._outputs):
            wish = into[output] if into else None
            if isinstance(wish, int):
                number = binding.copying(output, wish) if is_plain else None
                is_once = sum(x is memories[wish] for x in memories) == 1
                if number is not None and is_once and given[wish] is inputs[wish]:
                    # Other kernels than the one that copies the state write to the state itself.
                    made.append(given[wish])
                    skipped.append(number)
                    continue
            made.append(_target(context, wish, type_))
        binding.submit(memories, [x.memory() for x in made], skipped, clock)
        return list(made)

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
            value.require_open()
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


def _target(context: Context, value: object, type_: TensorType) -> WebGpuBuffer:
    """Return the memory of an output: the caller's, if a kernel can write to it."""
    if isinstance(value, WebGpuBuffer) and value.context is context and value.type == type_:
        value.require_open()
        return value
    return WebGpuBuffer(context, type_)
