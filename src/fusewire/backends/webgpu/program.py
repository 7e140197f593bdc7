"""A region as WGSL: sources of kernels and their schedule, which go to bytes and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, final

from fusewire.backends.webgpu.storage import byte_size
from fusewire.kernel.form import KernelBuffer
from fusewire.kernel.program import Schedule

# How it is run: at once; with timestamps around each dispatch, which may be all that counts of its
# time; or one dispatch after another.
Mode = Literal["plain", "timed", "clocked", "debug"]


@final
@dataclass
class Program:
    """What runs: the sources of kernels, and their launches in order."""

    kernels: list[str]
    schedule: Schedule
    mode: Mode = "plain"

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        data = {"kernels": self.kernels, "mode": self.mode, "schedule": self.schedule.to_data()}
        return json.dumps(data).encode()

    @staticmethod
    def from_bytes(payload: bytes) -> Program:
        """Read what ``to_bytes`` wrote."""
        data: dict[str, Any] = json.loads(payload)
        return Program(data["kernels"], Schedule.from_data(data["schedule"]), data["mode"])


def size_of(buffer: KernelBuffer) -> int:
    """Give the bytes that a buffer takes on a device."""
    return byte_size(math.prod(buffer.shape), buffer.dtype)
