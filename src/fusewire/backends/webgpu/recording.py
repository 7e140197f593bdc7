"""Dispatches as commands, and what the device says of the time that each of them took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import wgpu

from fusewire.backends.webgpu.context import Context

_WORDS = 2


def record_one(section: Any, pipeline: Any, group: Any, groups: tuple[int, int]) -> None:
    """Add one dispatch to a pass."""
    section.set_pipeline(pipeline)
    section.set_bind_group(0, group)
    section.dispatch_workgroups(*groups)


@final
class Clock:
    """Timestamps around every dispatch of a run: each has a pass of its own."""

    def __init__(self, context: Context, count: int) -> None:
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._context = context
        self._count = count
        self._queries = context.gpu.create_query_set(type="timestamp", count=_WORDS * count)
        self._found = context.gpu.create_buffer(size=8 * _WORDS * count, usage=usage)

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
        encoder.resolve_query_set(self._queries, 0, _WORDS * self._count, self._found, 0)

    def seconds(self) -> list[float]:
        """Read what the last run took, dispatch by dispatch; timestamps are in nanoseconds."""
        size = 8 * _WORDS * self._count
        ticks = np.frombuffer(self._context.queue.read_buffer(self._found, 0, size), np.uint64)
        begin, end = ticks.reshape(-1, _WORDS).T
        return [float(span) * 1e-9 for span in end - begin]
