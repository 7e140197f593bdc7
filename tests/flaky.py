"""A backend whose calls fail when a test says so: the n-th compile, load, run, wait, read, close.

It runs graphs as the reference does, in this process (``isolate=False``). Kinds: ``plain`` takes
any size, ``sized`` one executable per size, ``single`` one thread at a time, ``device`` keeps its
outputs in buffers of its own; it and ``split`` take neither ``cos`` nor control flow.
"""

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np

import fusewire as fw
from fusewire.backends.reference.engine import ReferenceBackend
from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.buffer import Buffer
from fusewire.contract.region import claim_by_table
from fusewire.dtypes import dtype
from fusewire.errors import CheckError
from fusewire.ir.graph import Array, Graph
from fusewire.ir.types import TensorType

KINDS = ("plain", "sized", "single", "device", "split")
ON_DEVICE = ("single", "device")


class Trouble:
    """Counts the calls of each phase, and raises at those that ``fails`` names."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fails: Callable[[str, int], type[BaseException] | None] = lambda phase, count: None
        # What is open: executables, and buffers that somebody holds.
        self.open_executables: set[int] = set()
        self.buffers: weakref.WeakSet[FlakyBuffer] = weakref.WeakSet()
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def meet(self, phase: str) -> None:
        """Count a call, and fail if it is one that shall fail."""
        with self._lock:
            self.counts[phase] += 1
            count = self.counts[phase]
        if (kind := self.fails(phase, count)) is not None:
            raise kind(f"{phase} was told to fail")

    def fail(self, phase: str, *counts: int, kind: type[BaseException] = RuntimeError) -> None:
        """Have some calls of a phase fail from now on: 1 is the next one."""
        start = self.counts[phase]

        def fails(now: str, count: int) -> type[BaseException] | None:
            is_due = now == phase and (not counts or count - start in counts)
            return kind if is_due else None

        self.fails = fails

    def heal(self) -> None:
        self.fails = lambda phase, count: None

    @property
    def opened(self) -> int:
        return len(self.open_executables)

    def live_buffers(self) -> int:
        gc.collect()
        return len(self.buffers)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Count how many run at once."""
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1


TROUBLE = Trouble()


@final
class FlakyBuffer(Buffer):
    """A tensor in the memory of a device that is not there."""

    def __init__(self, array: Array) -> None:
        self._array = array
        TROUBLE.buffers.add(self)

    @property
    def device(self) -> str:
        return "flaky:0"

    @property
    def type(self) -> TensorType:
        return TensorType(dtype(self._array.dtype), self._array.shape)

    def read(self, offset: int = 0, count: int | None = None) -> Array:
        TROUBLE.meet("read")
        flat = self._array.reshape(-1)
        return flat[offset : None if count is None else offset + count].copy()

    def write(self, array: Array, offset: int = 0) -> None:
        raise AssertionError("nobody writes")

    def wait(self) -> None:
        TROUBLE.meet("wait")

    def value(self) -> Array:
        return self._array


@final
class FlakyExecutable(Executable):
    """Runs as the reference does, until it is told to fail."""

    def __init__(self, inner: Executable, kind: str) -> None:
        self._inner = inner
        self._kind = kind
        self._is_open = True
        # Its own test's: what an earlier test left behind may be closed late.
        self._opened = TROUBLE.open_executables
        self._opened.add(id(self))

    @property
    def is_reentrant(self) -> bool:
        return self._kind != "single"

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        assert self._is_open, "it ran after it was closed"
        with TROUBLE.turn():
            arrays = [x.value() if isinstance(x, FlakyBuffer) else x for x in inputs]
            TROUBLE.meet("run")
            try:
                outputs = self._inner.run(arrays)
            except CheckError as error:
                # As an engine says it, in words of its own.
                raise RuntimeError("flaky says: bad index") from error
        if self._kind in ON_DEVICE:
            outputs = [FlakyBuffer(x) if isinstance(x, np.ndarray) else x for x in outputs]
        return outputs

    def close(self) -> None:
        self._is_open = False
        self._opened.discard(id(self))
        TROUBLE.meet("close")


@final
class FlakyBackend(Backend):
    """Runs everything as the reference does."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._inner = ReferenceBackend()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("flaky", "1", "Fails when told to.", "tests", checks_indices=True)

    @property
    def gaps(self) -> Sequence[Gap]:
        return ()

    @property
    def exchange(self) -> Exchange:
        return Exchange("flaky:0" if self._kind in ON_DEVICE else "host")

    def probe(self) -> list[Device | Unavailable]:
        return [Device("cpu", "flaky")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        is_part = self._kind in ("split", "device")
        return claim_by_table(
            graph,
            lambda node: f"No {node.op}." if is_part and node.op in ("cos", "cond") else None,
            "static" if self._kind == "sized" else "dynamic",
        )

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        TROUBLE.meet("compile")
        return self._inner.compile(region, device, config)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        TROUBLE.meet("load")
        return FlakyExecutable(self._inner.load(artifact, device, weights), self._kind)


plain, sized, single, device, split = (partial(FlakyBackend, kind) for kind in KINDS)


@contextmanager
def registered(kind: str = "plain") -> Iterator[Trouble]:
    """Register the backend as "flaky", and give what makes it fail."""
    TROUBLE.reset()
    fw.register(f"tests.flaky:{kind}", "flaky")
    try:
        yield TROUBLE
    finally:
        TROUBLE.heal()
        fw.unregister("flaky")


def compiled(source: Any, *example: Any, **options: Any) -> fw.Program:
    """Compile for the flaky backend, in this process."""
    fields: dict[str, Any] = {"backend": "flaky", "isolate": False, "cache": False}
    return fw.compile(source, *example, **{**fields, "fallback": "allow", **options})
