"""A region as launches of kernels on memories: plain data that every kernel backend runs.

What is computed and not given back lies in scratch memory, which is used again once nobody reads
what is in it. Nothing here knows the language that kernels are printed in.
"""

from __future__ import annotations

import base64
import itertools
from bisect import bisect, insort
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, final

import numpy as np

from fusewire.ir.graph import Constant
from fusewire.kernel.form import Kernel, KernelBuffer, Lowered, Repeat
from fusewire.kernel.printed import Code, PrintedKernel

# A constant of at least so many bytes stays out of the artifact and comes by its digest.
WEIGHT_BYTES = 1024
# Outputs of at least so many bytes serve as scratch memory until they are written.
LENT_BYTES = 1 << 20


@dataclass(frozen=True)
class Allocation:
    """Bytes on the device: of an input or output by number, of a constant, or of scratch memory.

    ``place`` numbers inputs, outputs and slots of scratch memory; what is "lent" is the memory of
    that output before it is written. A constant comes by its digest when the program is loaded, or
    is here as base64.
    """

    kind: Literal["input", "output", "constant", "scratch", "lent"]
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
        kinds = ("input", "output", "constant")
        own = sum(memory.size for memory in self.allocations if memory.kind in kinds)
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
        lends: bool = False,
    ) -> None:
        """Constants whose digests are in ``weights`` come when the program is loaded.

        ``size_of`` gives the bytes that a buffer takes on the device. If it ``lends``, large
        outputs serve as scratch memory until they are written.
        """
        self._region = region
        self._print = print_kernel
        self._size_of = size_of
        self._weights = weights
        self._lends = lends
        self._codes: dict[Code, int] = {}
        self._schedule = Schedule()
        # Where each buffer of the region lies, and from which step to which scratch memory is used.
        self._places: dict[str, int] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        # The step that touches each allocation first.
        self._first: dict[int, int] = {}

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
        for place in places:
            self._first.setdefault(place, position)
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

        No slot is split: a device binds whole buffers, and not one for reading and for writing. So
        the order decides; the best of a few is taken, without what outputs can lend.
        """
        allocations = self._schedule.allocations
        self._lend(allocations)
        rest = [place for place in self._spans if allocations[place].kind == "scratch"]
        sizes = {place: allocations[place].size for place in rest}
        orders = [
            sorted(rest, key=lambda place: -sizes[place]),
            sorted(rest, key=lambda place: (self._spans[place][0], -sizes[place])),
            sorted(rest, key=self._breadth(sizes)),
        ]
        found = [_slots(order, sizes, self._spans) for order in orders]
        slots, self._schedule.scratch = min(found, key=lambda row: sum(row[1]))
        for place, slot in slots.items():
            allocations[place] = replace(allocations[place], place=slot)

    def _breadth(self, sizes: Mapping[int, int]) -> Callable[[int], tuple[int, int]]:
        """Return a key by which what is live in the broadest step comes first."""
        broad = [0] * len(self._region.steps)
        for place, size in sizes.items():
            begin, end = self._spans[place]
            for position in range(begin, end + 1):
                broad[position] += size

        def key(place: int) -> tuple[int, int]:
            begin, end = self._spans[place]
            return -max(broad[begin : end + 1]), -sizes[place]

        return key

    def _lend(self, allocations: list[Allocation]) -> None:
        """Have large outputs serve as scratch memory, the largest first."""
        lent = self._lendable() if self._lends else {}
        for place in sorted(self._spans, key=lambda place: -allocations[place].size):
            span, size = self._spans[place], allocations[place].size
            owner = _lender(lent, allocations, span, size)
            if owner is not None:
                insort(lent[owner], span)
                allocations[place] = Allocation("lent", size, allocations[owner].place)

    def _lendable(self) -> dict[int, list[tuple[int, int]]]:
        """Map large outputs to the spans in which they are in use: from their first write on.

        Before that they serve as scratch memory. Not small ones, since what is bound to an output
        is bound anew for each that a caller keeps; nor one that begins as a copy of an input,
        which a run in place leaves out.
        """
        allocations, end = self._schedule.allocations, len(self._region.steps)
        spans: dict[int, list[tuple[int, int]]] = {}
        for place, position in self._first.items():
            if allocations[place].kind == "output" and allocations[place].size >= LENT_BYTES:
                spans[place] = [(position, end)]
        for launch in self._schedule.launches:
            kinds = {allocations[place].kind for place in launch.allocations}
            if len(launch.allocations) == len(kinds) and kinds == {"input", "output"}:
                for place in launch.allocations:
                    spans.pop(place, None)
        return spans


def _slots(
    order: Sequence[int], sizes: Mapping[int, int], spans: Mapping[int, tuple[int, int]]
) -> tuple[dict[int, int], list[int]]:
    """Place memory in this order, where a slot grows least; returns slots, and their sizes."""
    slots: dict[int, int] = {}
    grown: list[int] = []
    taken: list[list[tuple[int, int]]] = []
    for place in order:
        size, span = sizes[place], spans[place]
        free = [slot for slot, others in enumerate(taken) if _is_free(others, span)]
        if not free:
            free = [len(taken)]
            taken.append([])
            grown.append(size)
        # The least that it grows by, then the least that is left over.
        slot = min(free, key=lambda slot: (max(size - grown[slot], 0), grown[slot]))
        grown[slot] = max(grown[slot], size)
        insort(taken[slot], span)
        slots[place] = slot
    return slots, grown


def _lender(
    lent: Mapping[int, list[tuple[int, int]]],
    allocations: Sequence[Allocation],
    span: tuple[int, int],
    size: int,
) -> int | None:
    """Find the smallest output that is large enough and not in use in a span."""
    fitting = [
        place
        for place, spans in lent.items()
        if allocations[place].size >= size > 0 and _is_free(spans, span)
    ]
    return min(fitting, key=lambda place: allocations[place].size, default=None)


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
