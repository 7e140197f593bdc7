"""Dispatches as commands, and what the device says of the time that each of them took."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backends.webgpu.context import Context
from fusewire.ir.graph import Array

_WORDS = 2


def record_one(section: Any, pipeline: Any, group: Any, groups: tuple[int, int]) -> None:
    """Add one dispatch to a pass."""
    section.set_pipeline(pipeline)
    section.set_bind_group(0, group)
    section.dispatch_workgroups(*groups)


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

    def record(self, encoder: Any, steps: Sequence[tuple[Any, Any, tuple[int, int]]]) -> None:
        """Add dispatches, each between two timestamps."""
        for place, step in enumerate(steps):
            writes = {
                "query_set": self._queries,
                "beginning_of_pass_write_index": _WORDS * place,
                "end_of_pass_write_index": _WORDS * place + 1,
            }
            section = encoder.begin_compute_pass(timestamp_writes=writes)
            record_one(section, *step)
            section.end()
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        if not hasattr(self._found, "here"):
            self._found.here = self._context.gpu.create_buffer(size=self._size, usage=usage)
        encoder.resolve_query_set(self._queries, 0, _WORDS * self._count, self._found.here, 0)

    def seconds(self) -> list[float]:
        """Read what the last run of this thread took, dispatch by dispatch."""
        if not hasattr(self._found, "here"):
            return []
        held = self._context.queue.read_buffer(self._found.here, 0, self._size)
        return spans(np.frombuffer(held, np.uint64))


def spans(ticks: Array) -> list[float]:
    """Give the seconds between timestamps, which are nanoseconds in pairs.

    Some drivers wrap, or write them out of order: NaN where the end comes before the beginning.
    """
    pairs = ticks.reshape(-1, _WORDS).tolist()
    return [(end - begin) * 1e-9 if end >= begin else math.nan for begin, end in pairs]
