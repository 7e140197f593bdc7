"""A region as a module of Triton and its schedule: plain data, to bytes and back, or files."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from fusewire.backends.triton.printer import Function, print_module
from fusewire.kernel.form import KernelBuffer
from fusewire.kernel.program import Launch, Schedule


@final
@dataclass
class Program:
    """What runs. ``binaries`` are of one target, by function, if it was compiled."""

    functions: list[Function]
    schedule: Schedule
    binaries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All functions as one module."""
        return print_module(self.functions)

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        data = {
            "functions": [asdict(function) for function in self.functions],
            "schedule": self.schedule.to_data(),
            "binaries": self.binaries,
        }
        return json.dumps(data).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Program:
        """Read what ``to_bytes`` wrote."""
        data: dict[str, Any] = json.loads(payload)
        functions = [
            Function(**{**fields, "pointers": tuple(fields["pointers"])})
            for fields in data["functions"]
        ]
        return Program(functions, Schedule.from_data(data["schedule"]), data["binaries"])

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


def size_of(buffer: KernelBuffer) -> int:
    """Give the bytes that a buffer takes on a device."""
    return math.prod(buffer.shape) * buffer.dtype.itemsize
