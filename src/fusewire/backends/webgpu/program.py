"""A region as kernels in a line: plain data that goes to bytes and back.

What is computed and not given back lies in scratch memory that is used again once nobody reads it.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import numpy as np

from fusewire.backends.webgpu.printer import Target, print_kernel
from fusewire.backends.webgpu.storage import byte_size
from fusewire.ir.graph import Constant
from fusewire.kernel.form import Buffer, Kernel, Lowered, Repeat
from fusewire.kernel.parts import key_of

# A constant of at least so many bytes stays out of the artifact and comes by its digest.
WEIGHT_BYTES = 1024


# How it is run: at once; with timestamps around each dispatch, which may be all that counts of its
# time; or one dispatch after another.
Mode = Literal["plain", "timed", "clocked", "debug"]


@dataclass(frozen=True)
class Memory:
    """Bytes on the device: of an input or output by number, of a constant, or scratch."""

    kind: Literal["input", "output", "constant", "scratch"]
    size: int
    place: int = 0
    digest: str = ""
    data: str = ""


@dataclass(frozen=True)
class Dispatch:
    """One run of a kernel: memories in the order of its bindings.

    Neighbours with the same ``repeat`` are run in turns, ``times`` of them; the third word of their
    params is the number of the turn.
    """

    kernel: int
    memories: tuple[int, ...]
    params: tuple[int, ...]
    groups: tuple[int, int]
    repeat: int = -1
    times: int = 1


@final
@dataclass
class Program:
    """What runs, in order."""

    kernels: list[str] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    scratch: list[int] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    mode: Mode = "plain"

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        held = {
            "kernels": self.kernels,
            "memories": [vars(memory) for memory in self.memories],
            "scratch": self.scratch,
            "dispatches": [vars(dispatch) for dispatch in self.dispatches],
            "mode": self.mode,
        }
        return json.dumps(held).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Program:
        """Read what ``to_bytes`` wrote."""
        held: dict[str, Any] = json.loads(payload)
        return Program(
            held["kernels"],
            [Memory(**fields) for fields in held["memories"]],
            held["scratch"],
            [
                Dispatch(
                    d["kernel"],
                    tuple(d["memories"]),
                    tuple(d["params"]),
                    tuple(d["groups"]),
                    d["repeat"],
                    d["times"],
                )
                for d in held["dispatches"]
            ],
            held["mode"],
        )

    @property
    def bytes(self) -> int:
        """Count what it takes on the device, inputs and outputs included."""
        own = sum(memory.size for memory in self.memories if memory.kind != "scratch")
        return own + sum(self.scratch)

    def turns(self) -> list[tuple[Dispatch, int]]:
        """List every dispatch with the number of its turn, in the order in which they run."""
        found: list[tuple[Dispatch, int]] = []
        for _, group in itertools.groupby(self.dispatches, key=lambda d: d.repeat):
            line = list(group)
            times = line[0].times if line[0].repeat >= 0 else 1
            found += [(dispatch, turn) for turn in range(times) for dispatch in line]
        return found


@final
class Writer:
    """Writes the program of a region."""

    def __init__(
        self,
        region: Lowered,
        target: Target,
        weights: Container[str] = (),
        tuned: Mapping[str, Target] = {},
    ) -> None:
        """Constants whose digests are in ``weights`` come when it is loaded.

        Kernels whose keys are in ``tuned`` are printed for that target.
        """
        self._region = region
        self._target = target
        self._tuned = tuned
        self._weights = weights
        self._program = Program()
        self._kernels: dict[str, int] = {}
        self._memory: dict[str, int] = {}
        self._free: list[int] = []

    def write(self) -> Program:
        """Write it all; RefusedError where the device lacks what a kernel computes."""
        region = self._region
        for kind, names in (("input", region.inputs), ("output", region.outputs)):
            for place, name in enumerate(names):
                self._add(name, Memory(kind, _size(region.buffers[name]), place))  # type: ignore[arg-type] # one of the two
        for name, constant in region.constants.items():
            self._add(name, _constant(constant, region.buffers[name], self._weights))
        last = self._last_uses()
        for position, step in enumerate(region.steps):
            repeat = isinstance(step, Repeat)
            kernels = step.kernels if isinstance(step, Repeat) else (step,)
            times = step.step.extent if isinstance(step, Repeat) else 1
            for kernel in kernels:
                self._dispatch(kernel, position if repeat else -1, times)
            for name in last.get(position, ()):
                self._let_go(name)
        return self._program

    def _add(self, name: str, memory: Memory) -> None:
        self._program.memories.append(memory)
        self._memory[name] = len(self._program.memories) - 1

    def _last_uses(self) -> dict[int, list[str]]:
        """Map positions of steps to the buffers that are touched there for the last time."""
        last: dict[str, int] = {}
        for position, step in enumerate(self._region.steps):
            for kernel in step.kernels if isinstance(step, Repeat) else (step,):
                last.update((b.name, position) for b in (*kernel.reads, *kernel.writes))
        uses: dict[int, list[str]] = {}
        for name, position in last.items():
            uses.setdefault(position, []).append(name)
        return uses

    def _scratch(self, buffer: Buffer) -> None:
        """Take the smallest free memory that is large enough, else a new one."""
        sizes, size = self._program.scratch, _size(buffer)
        fitting = [slot for slot in self._free if sizes[slot] >= size]
        if fitting:
            slot = min(fitting, key=lambda s: sizes[s])
            self._free.remove(slot)
        else:
            slot = len(sizes)
            sizes.append(size)
        self._add(buffer.name, Memory("scratch", size, slot))

    def _let_go(self, name: str) -> None:
        # Of a kernel that runs over nothing there is no dispatch, and no memory.
        place = self._memory.get(name)
        if place is not None and self._program.memories[place].kind == "scratch":
            self._free.append(self._program.memories[place].place)

    def _dispatch(self, kernel: Kernel, repeat: int, times: int) -> None:
        tuned = self._tuned.get(key_of(kernel)) if self._tuned else None
        printed = print_kernel(kernel, tuned or self._target)
        if not {*printed.buffers} & {*kernel.writes}:
            return
        number = self._kernels.setdefault(printed.source, len(self._kernels))
        if number == len(self._program.kernels):
            self._program.kernels.append(printed.source)
        for buffer in (*kernel.reads, *kernel.writes):
            if buffer.name not in self._memory:
                self._scratch(buffer)
        memories = tuple(self._memory[buffer.name] for buffer in printed.buffers)
        self._program.dispatches.append(
            Dispatch(number, memories, printed.params, printed.groups, repeat, times)
        )


def _size(buffer: Buffer) -> int:
    return byte_size(math.prod(buffer.shape), buffer.dtype)


def _constant(held: Constant, buffer: Buffer, weights: Container[str]) -> Memory:
    size = _size(buffer)
    if held.digest in weights:
        return Memory("constant", size, digest=held.digest)
    raw = np.ascontiguousarray(held.array).reshape(-1).view(np.uint8).tobytes()
    return Memory("constant", size, data=base64.b64encode(raw).decode())
