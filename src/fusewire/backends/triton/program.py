"""A region as kernels of Triton and their schedule: plain data, to bytes and back, or files.

The bytes hold no code that is executed as it is read: they hold the kernels in their loop-level
form, and the digest of the text that was printed of them. Whoever reads them prints the text again.
Of a kernel that a package brings they hold its name and digest; whoever has the package prints it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from functools import cached_property
from typing import Any, final

from fusewire.backends.triton.printer import Configuration, Function, print_kernel, print_module
from fusewire.errors import EngineGarbage
from fusewire.kernel.data import kernel_from_data, kernel_to_data
from fusewire.kernel.form import Kernel, KernelBuffer
from fusewire.kernel.program import Launch, Schedule

_NUMBERS = len(Configuration.__dataclass_fields__)


@final
@dataclass(frozen=True)
class Source:
    """What a function is printed of."""

    kernel: Kernel
    configuration: Configuration

    def to_data(self) -> list[Any]:
        """Give it as lists, strings and numbers."""
        return [kernel_to_data(self.kernel), list(astuple(self.configuration))]

    @staticmethod
    def from_data(data: Any) -> Source:
        """Read what ``to_data`` gave; EngineGarbage if it is something else."""
        if type(data) is not list or len(data) != 2 or not _are_numbers(data[1]):
            raise EngineGarbage("expected a kernel and its configuration")
        return Source(kernel_from_data(data[0]), Configuration(*data[1]))


Bring = Callable[[Sequence[Source]], Mapping[int, Function]]


@final
@dataclass
class Program:
    """What runs. ``binaries`` are of one target, by function, if it was compiled."""

    sources: list[Source]
    schedule: Schedule
    binaries: list[dict[str, Any]] = field(default_factory=list)
    # Functions that were printed of kernels of packages, by their places among the sources.
    brought: Mapping[int, Function] = field(default_factory=dict)

    @cached_property
    def functions(self) -> list[Function]:
        """The functions, printed by this process, or sent by the one that has their packages."""
        return [
            self.brought[place]
            if source.kernel.call is not None
            else print_kernel(source.kernel, source.configuration).code
            for place, source in enumerate(self.sources)
        ]

    @cached_property
    def text(self) -> str:
        """All functions as one module."""
        return print_module(self.functions)

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        data = {
            "sources": [source.to_data() for source in self.sources],
            "text": _digest(self.text),
            "schedule": self.schedule.to_data(),
            "binaries": self.binaries,
        }
        return json.dumps(data).encode()

    @staticmethod
    def from_bytes(payload: bytes, bring: Bring | None = None) -> Program:
        """Read what ``to_bytes`` wrote, and print its text; EngineGarbage if that is another.

        ``bring`` gives the functions of kernels of packages, by their places.
        """
        data: dict[str, Any] = json.loads(payload)
        sources = [Source.from_data(source) for source in data["sources"]]
        brought = {} if bring is None else bring(sources)
        missing = [x.kernel.call for at, x in enumerate(sources) if at not in brought]
        if lost := next((call for call in missing if call is not None), None):
            raise EngineGarbage(
                f"the kernel of {lost.op} is not here: its package is not installed"
            )
        schedule = Schedule.from_data(data["schedule"])
        program = Program(sources, schedule, data["binaries"], brought)
        if _digest(program.text) != data["text"]:
            raise EngineGarbage("The kernels of an artifact print another text than it was made of")
        return program

    def turns(self) -> list[tuple[Launch, tuple[int, ...]]]:
        """List launches as they run, each with the numbers that follow its pointers."""
        return [
            (launch, (turn,) * self.functions[launch.kernel].steps)
            for launch, turn in self.schedule.turns()
        ]

    def files(self) -> dict[str, bytes]:
        """Give it as files: Triton, binaries, launches, and what each kernel takes."""
        files = {"module.py": self.text.encode()}
        kernels = []
        for function, about in zip(self.functions, self.binaries, strict=True):
            file = f"{function.name}.{about['kind']}"
            files[file] = base64.b64decode(about["data"])
            rest = {key: value for key, value in about.items() if key != "data"}
            kernels.append(
                {
                    "function": function.name,
                    "file": file,
                    **rest,
                    "pointers": function.pointers,
                    "steps": function.steps,
                }
            )
        told = {"kernels": kernels, **self._launches()}
        return {**files, "kernels.json": (json.dumps(told, indent=1) + "\n").encode()}

    def _launches(self) -> Mapping[str, Any]:
        """Say what is launched on which memory: places in lists, sizes in bytes."""
        memories = [
            {key: value for key, value in asdict(allocation).items() if key != "data"}
            for allocation in self.schedule.allocations
        ]
        launches = [
            {
                "function": launch.kernel,
                "memories": launch.allocations,
                "steps": steps,
                "programs": launch.grid[0],
            }
            for launch, steps in self.turns()
        ]
        return {"memories": memories, "scratch": self.schedule.scratch, "launches": launches}


def brought_data(brought: Mapping[int, Function]) -> list[Any]:
    """Give functions as lists, strings and numbers, for a child of this process."""
    return [[place, *astuple(function)] for place, function in brought.items()]


def brought_functions(data: Any) -> dict[int, Function]:
    """Read what the parent of this process wrote."""
    return {
        place: Function(name, text, tuple(pointers), *numbers)
        for place, name, text, pointers, *numbers in data
    }


def size_of(buffer: KernelBuffer) -> int:
    """Give the bytes that a buffer takes on a device."""
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def _are_numbers(data: object) -> bool:
    is_list = isinstance(data, list) and len(data) == _NUMBERS
    return is_list and all(type(number) is int and number >= 0 for number in data)  # type: ignore[attr-defined] # a list by now


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
