"""Replicas of a program: each has an engine in a process of its own, and runs a batch at a time.

The processes are those of ``isolate="always"``: they have deadlines and memory limits, and one that
dies is started again by the call that finds it dead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.ir.graph import Array
from fusewire.planning.rows import RowProof
from fusewire.program.program import Program

if TYPE_CHECKING:
    from fusewire.serve.batcher import Batcher, Pending


class Replica:
    """A program and the thread that calls it."""

    def __init__(self, program: Program, name: str) -> None:
        self.program = program
        # Batches that it runs, or will run next.
        self.batches = 0
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)


class Replicas:
    """Runs batches on whichever replica is idle."""

    def __init__(self, programs: Sequence[Program], proof: RowProof, pads: bool = False) -> None:
        self._proof = proof
        self._pads = pads
        self.all = [Replica(p, f"replica-{place}") for place, p in enumerate(programs)]
        self._idle = deque(self.all)
        self._busy: deque[Replica] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether a replica has nothing to do."""
        return bool(self._idle)

    @property
    def has_room(self) -> bool:
        """Whether a replica can take a batch that it runs after the one it has."""
        return bool(self._busy)

    def start(self, batch: list[Pending], done: Batcher) -> None:
        """Give a batch to a replica; ``done.finished`` is called on the event loop."""
        loop = asyncio.get_running_loop()
        # Of idle ones, that which ran last: it has what it needs in its caches.
        replica = self._idle.pop() if self._idle else self._busy.popleft()
        replica.batches += 1
        if replica.batches == 1:
            self._busy.append(replica)
        future = replica.thread.submit(self._run, replica.program, batch)
        report = partial(self._finished, replica, batch, done)
        future.add_done_callback(partial(_told, loop, report))

    def _finished(
        self, replica: Replica, batch: list[Pending], done: Batcher, future: Future[Any]
    ) -> None:
        replica.batches -= 1
        if replica.batches:
            self._busy.append(replica)
        else:
            self._busy.remove(replica)
            self._idle.append(replica)
        error = future.exception()
        done.finished(batch, future.result() if error is None else error)

    def _run(self, program: Program, batch: list[Pending]) -> list[list[Array]]:
        """Run a batch in the thread of a replica; returns the outputs of each request."""
        if len(batch) == 1 and not self._pads:
            return [called(program, batch[0].arrays)]
        rows = [pending.rows for pending in batch]
        padding = _padding(sum(rows)) if self._pads and batch[0].key is not None else 0
        joined = [
            self._joined([pending.arrays[place] for pending in batch], axis, padding)
            for place, axis in enumerate(self._proof.inputs or (None,) * len(batch[0].arrays))
        ]
        outputs = called(program, joined)
        if len(batch) == 1 and not padding:
            return [outputs]
        parts: list[list[Array]] = []
        start = 0
        for count in rows:
            pairs = zip(outputs, self._proof.outputs, strict=True)
            parts.append([_part(output, axis, start, start + count) for output, axis in pairs])
            start += count
        return parts

    def _joined(self, arrays: list[Array], axis: int | None, padding: int) -> Array:
        if axis is None:
            return arrays[0]
        if padding:
            # A row that is there already: whatever it holds, the model takes it.
            last = arrays[-1].take([-1], axis)
            arrays = [*arrays, *[last] * padding]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)

    def close(self) -> None:
        """End all processes; nobody may run anything any more."""
        for replica in self.all:
            replica.thread.shutdown(wait=True)
            replica.program.close()


def _told(
    loop: asyncio.AbstractEventLoop, report: Callable[[Future[Any]], None], future: Future[Any]
) -> None:
    loop.call_soon_threadsafe(report, future)


def called(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """Call a program; returns its outputs as a list."""
    outputs = program(*arrays)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _padding(rows: int) -> int:
    """Count the rows that fill a batch up to a power of two."""
    return int((1 << (rows - 1).bit_length()) - rows)


def _part(output: Array, axis: int, start: int, stop: int) -> Array:
    if axis == 0:
        return output[start:stop]
    return output[(slice(None),) * axis + (slice(start, stop),)]
