"""A region as launches of kernels on memories: plain data that every kernel backend runs.

What is computed and not given back lies in scratch memory, which is used again once nobody reads
what is in it. Nothing here knows the language that kernels are printed in.
"""

from __future__ import annotations

import base64
import itertools
from bisect import bisect, insort
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, final

import numpy as np

from fusewire.ir.graph import Constant
from fusewire.kernel.form import Kernel, KernelBuffer, Lowered, Repeat
from fusewire.kernel.printed import Code, PrintedKernel

# A constant of at least so many bytes stays out of the artifact and comes by its digest.
WEIGHT_BYTES = 1024


@dataclass(frozen=True)
class Allocation:
    """Bytes on the device: of an input or output by number, of a constant, or of scratch memory.

    ``place`` numbers inputs, outputs and slots of scratch memory. A constant comes by its digest
    when the program is loaded, or is here as base64.
    """

    kind: Literal["input", "output", "constant", "scratch"]
    size: int
    place: int = 0
    digest: str = ""
    data: str = ""

    def constant(self, weights: Mapping[str, Any]) -> Any:
        """Give the elements of a constant: an array of ``weights``, or bytes."""
        if self.digest:
            return weights[self.digest]
        return np.frombuffer(base64.b64decode(self.data), np.uint8)


@dataclass(frozen=True)
class Launch:
    """One run of a kernel on allocations in the order of its parameters.

    Neighbours with the same ``repeat`` run in turns, ``times`` of them.
    """

    kernel: int
    allocations: tuple[int, ...]
    grid: tuple[int, ...]
    params: tuple[int, ...] = ()
    repeat: int = -1
    times: int = 1


@final
@dataclass
class Schedule:
    """What runs, in order, and on which memory; ``scratch`` has the bytes of each slot."""

    allocations: list[Allocation] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """Give it as lists, strings and numbers."""
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Schedule:
        """Read what ``to_data`` gave, also after a round trip through JSON."""
        launches = [
            Launch(
                x["kernel"],
                tuple(x["allocations"]),
                tuple(x["grid"]),
                tuple(x["params"]),
                x["repeat"],
                x["times"],
            )
            for x in data["launches"]
        ]
        allocations = [Allocation(**fields) for fields in data["allocations"]]
        return Schedule(allocations, list(data["scratch"]), launches)

    @property
    def bytes(self) -> int:
        """Bytes on the device, inputs and outputs included."""
        own = sum(memory.size for memory in self.allocations if memory.kind != "scratch")
        return own + sum(self.scratch)

    def turns(self) -> list[tuple[Launch, int]]:
        """List every launch with the number of its turn, in the order in which they run."""
        turns: list[tuple[Launch, int]] = []
        for _, group in itertools.groupby(self.launches, key=lambda launch: launch.repeat):
            line = list(group)
            times = line[0].times if line[0].repeat >= 0 else 1
            turns += [(launch, turn) for turn in range(times) for launch in line]
        return turns


@final
class ProgramWriter(Generic[Code]):
    """Writes the schedule of a region, and collects the distinct codes of its kernels."""

    def __init__(
        self,
        region: Lowered,
        print_kernel: Callable[[Kernel], PrintedKernel[Code]],
        size_of: Callable[[KernelBuffer], int],
        weights: Container[str] = (),
    ) -> None:
        """Constants whose digests are in ``weights`` come when the program is loaded.

        ``size_of`` gives the bytes that a buffer takes on the device.
        """
        self._region = region
        self._print = print_kernel
        self._size_of = size_of
        self._weights = weights
        self._codes: dict[Code, int] = {}
        self._schedule = Schedule()
        # Where each buffer of the region lies, and from which step to which scratch memory is used.
        self._places: dict[str, int] = {}
        self._spans: dict[int, tuple[int, int]] = {}

    def write(self) -> tuple[list[Code], Schedule]:
        """Write it all; RefusedError where the device lacks what a kernel computes."""
        region = self._region
        for place, name in enumerate(region.inputs):
            self._add(name, Allocation("input", self._size_of(region.buffers[name]), place))
        for place, name in enumerate(region.outputs):
            self._add(name, Allocation("output", self._size_of(region.buffers[name]), place))
        for name, constant in region.constants.items():
            self._add(name, self._constant(constant, region.buffers[name]))
        last = _last_uses(region)
        for position, step in enumerate(region.steps):
            # A repeat is one step: what a kernel keeps to itself would otherwise overwrite what
            # another one hands to the next turn.
            if isinstance(step, Repeat):
                for kernel in step.kernels:
                    self._launch(kernel, position, position, step.step.extent)
            else:
                self._launch(step, position, -1, 1)
            for name in last.get(position, ()):
                self._end(name, position)
        self._share()
        return list(self._codes), self._schedule

    def _add(self, name: str, allocation: Allocation) -> None:
        self._places[name] = len(self._schedule.allocations)
        self._schedule.allocations.append(allocation)

    def _constant(self, constant: Constant, buffer: KernelBuffer) -> Allocation:
        size = self._size_of(buffer)
        if constant.digest in self._weights:
            return Allocation("constant", size, digest=constant.digest)
        raw = np.ascontiguousarray(constant.array).reshape(-1).view(np.uint8).tobytes()
        return Allocation("constant", size, data=base64.b64encode(raw).decode())

    def _launch(self, kernel: Kernel, position: int, repeat: int, times: int) -> None:
        """Add the launch of a kernel; scratch memory that is its alone ends with it."""
        printed = self._print(kernel)
        if not is_launched(kernel, printed):
            return
        shared = (*kernel.reads, *kernel.writes)
        for buffer in (*shared, *printed.buffers):
            if buffer.name not in self._places:
                self._allocate(buffer, position)
        number = self._codes.setdefault(printed.code, len(self._codes))
        places = tuple(self._places[buffer.name] for buffer in printed.buffers)
        self._schedule.launches.append(
            Launch(number, places, printed.grid, printed.params, repeat, times)
        )

    def _allocate(self, buffer: KernelBuffer, position: int) -> None:
        """Add scratch memory that is used in this step; its slot is found at the end."""
        self._spans[len(self._schedule.allocations)] = position, position
        self._add(buffer.name, Allocation("scratch", self._size_of(buffer)))

    def _end(self, name: str, position: int) -> None:
        # Of a kernel that is not launched there is no memory.
        place = self._places.get(name)
        if place is not None and place in self._spans:
            self._spans[place] = self._spans[place][0], position

    def _share(self) -> None:
        """Give a slot to all scratch memory; what is not used at the same time may share one.

        The largest first, each into the smallest slot that is free all the while: slots then hardly
        take more than is live at once, and none has to be split (devices bind whole buffers).
        """
        allocations, sizes = self._schedule.allocations, self._schedule.scratch
        taken: list[list[tuple[int, int]]] = []
        for place in sorted(self._spans, key=lambda place: -allocations[place].size):
            span = self._spans[place]
            free = (slot for slot in reversed(range(len(taken))) if _is_free(taken[slot], span))
            slot = next(free, len(taken))
            if slot == len(taken):
                taken.append([])
                sizes.append(allocations[place].size)
            insort(taken[slot], span)
            allocations[place] = replace(allocations[place], place=slot)


def _is_free(spans: list[tuple[int, int]], span: tuple[int, int]) -> bool:
    """Tell whether none of some spans, in order, has a step in common with another."""
    after = bisect(spans, span)
    is_before = after == len(spans) or span[1] < spans[after][0]
    return is_before and (after == 0 or spans[after - 1][1] < span[0])


def is_launched(kernel: Kernel, printed: PrintedKernel[Code]) -> bool:
    """Tell whether a kernel is launched: not if it runs over nothing, or stores nothing."""
    return 0 not in printed.grid and bool({*printed.buffers} & {*kernel.writes})


def _last_uses(region: Lowered) -> dict[int, list[str]]:
    """Map positions of steps to the buffers that are touched there for the last time."""
    last: dict[str, int] = {}
    for position, step in enumerate(region.steps):
        for kernel in step.kernels if isinstance(step, Repeat) else (step,):
            last.update((b.name, position) for b in (*kernel.reads, *kernel.writes))
    uses: dict[int, list[str]] = {}
    for name, position in last.items():
        uses.setdefault(position, []).append(name)
    return uses
