"""The child of a service: engines that stay here for good.

The main thread does jobs, as any child does: it loads artifacts and closes executables. Calls come
over lanes, each with a thread: a lane has two pipes for signals, and a piece of shared memory for
headers and small tensors. The parent is trusted, so requests are not checked.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fusewire.contract.backend import Executable
from fusewire.errors import EngineError, EngineGarbage
from fusewire.ir.graph import Array, HostValue
from fusewire.ops.limits import RunLimits, limited
from fusewire.process.codec import read_value
from fusewire.process.frames import Blobs
from fusewire.process.guard import CALLERS, blaming, guarded
from fusewire.process.lifeline import watch
from fusewire.process.tensors import ArrayPlace, Layout, PackedValues, ValueHeader, strings
from fusewire.process.trial import backend_of, run
from fusewire.process.worker import Request, Worker, away, settle

# A lane has room for the headers of a request and of an answer, small inputs and small outputs.
# Only pages that are written take memory.
HEADER = 1 << 24
SMALL = 1 << 16
LANE_BYTES = 2 * (HEADER + SMALL)
# Both ways: the number of the call, and the bytes of its header.
SIGNAL = struct.Struct("<QQ")
# The executable, or 0 to get the outputs of the last call again; where inputs begin, where outputs
# go, and how many bytes they may take.
REQUEST = struct.Struct("<QQQQ")
# The first byte of an answer.
OUTPUTS, NO_ROOM, FAILED = range(3)
ROOM = struct.Struct("<BQ")
# Requests of which a lane remembers what they mean, and forms of inputs of which it remembers the
# outputs.
_KNOWN_REQUESTS = 64
# Room for outputs from which on an engine is asked to write them there itself.
_LARGE = 1 << 18


class _Request(NamedTuple):
    held: str
    inputs: list[HostValue]
    start: int
    room: int


class _Lane:
    """Answers calls, one at a time."""

    def __init__(self, server: Server, index: int, requests: int, replies: int) -> None:
        self._server = server
        self._memory = server.memory
        self._start = index * LANE_BYTES
        self._requests = requests
        self._replies = replies
        self._known: dict[bytes, _Request] = {}
        # Where large outputs were last, by executable and form of the inputs.
        self._expected: dict[bytes, list[ArrayPlace]] = {}
        self._outputs = PackedValues(())

    def serve(self) -> None:
        """Answer calls until the parent is gone."""
        memory, begin, answers = self._memory, self._start, self._start + HEADER
        while signal := os.read(self._requests, SIGNAL.size):
            number, length = SIGNAL.unpack(signal)
            answer = self._answer(memory[begin : begin + length])
            memory[answers : answers + len(answer)] = answer
            os.write(self._replies, SIGNAL.pack(number, len(answer)))

    def _answer(self, raw: bytes) -> bytes:
        try:
            return guarded(self._server.name, "run", "a region", self._outputs_of, raw)
        except EngineError as error:
            about = {"code": error.code, "reason": error.reason, "advice": error.advice}
        except CALLERS as error:
            about = {"code": type(error).__name__, "reason": str(error)}
        self._outputs = PackedValues(())
        return bytes((FAILED,)) + json.dumps(about).encode()

    def _outputs_of(self, raw: bytes) -> bytes:
        request = self._known.get(raw) or self._read(raw)
        given: list[Array] = []
        if request.held != "0":
            given = self._given(raw, request)
            self._outputs = self._server.run(request.held, request.inputs, given)
        outputs = self._outputs
        if len(outputs.header) >= HEADER:
            raise EngineGarbage(f"a header of {len(outputs.header)} bytes; the limit is {HEADER}")
        if given and outputs.places != self._expected[_form(raw)]:
            # One has another size now, and those after it belong elsewhere.
            outputs.take_away(given)
            given = []
        if outputs.size > request.room:
            return ROOM.pack(NO_ROOM, outputs.size)
        outputs.copy_to(self._memory, request.start, given)
        if request.room > _LARGE and request.held != "0" and not given:
            self._remember(raw, outputs)
        # Engines reuse memory that nobody holds.
        self._outputs = PackedValues(())
        return bytes((OUTPUTS,)) + outputs.header

    def _given(self, raw: bytes, request: _Request) -> list[Array]:
        """Return the memory where large outputs belong, if they are as they were last."""
        if request.room <= _LARGE:
            return []
        places = self._expected.get(_form(raw), ())
        arrays = [
            np.ndarray(place.shape, place.dtype, self._memory, request.start + place.start)
            for place in places
        ]
        ends = (place.start + array.nbytes for place, array in zip(places, arrays, strict=True))
        return arrays if max(ends, default=0) <= request.room else []

    def _remember(self, raw: bytes, outputs: PackedValues) -> None:
        if outputs.is_plain:
            if len(self._expected) >= _KNOWN_REQUESTS:
                self._expected.clear()
            self._expected[_form(raw)] = outputs.places

    def _read(self, raw: bytes) -> _Request:
        held, inputs, start, room = REQUEST.unpack_from(raw)
        header = ValueHeader(raw[REQUEST.size :])
        request = _Request(
            str(held), [self._value(layout, inputs) for layout in header.layouts], start, room
        )
        # Views show what the next call wrote; strings were copied.
        if all(isinstance(x, np.ndarray) and x.dtype.kind != "O" for x in request.inputs):
            if len(self._known) >= _KNOWN_REQUESTS:
                self._known.clear()
            self._known[raw] = request
        return request

    def _value(self, layout: Layout, offset: int) -> HostValue:
        if layout is None:
            return None
        if isinstance(layout, list):
            return [self._value(item, offset) for item in layout]
        at = offset + layout.start
        if layout.dtype.kind == "string":
            return strings(layout, np.ndarray((layout.size,), np.uint8, self._memory, at))
        return np.ndarray(layout.shape, layout.dtype.numpy, self._memory, at)


def _form(raw: bytes) -> bytes:
    """Return the executable of a request, and what its inputs are, wherever they lie."""
    return raw[:8] + raw[REQUEST.size :]


class Server(Worker):
    """Serves the executables of one backend to several threads of the parent."""

    def __init__(
        self, reference: str, requests: int, replies: int, memory: mmap.mmap, lanes: list[int]
    ) -> None:
        super().__init__(reference, requests, replies)
        self.memory = memory
        self._weights: dict[str, Array] = {}
        self._limits = RunLimits()
        pairs = zip(lanes[::2], lanes[1::2], strict=True)
        for index, (asked, told) in enumerate(pairs):
            lane = _Lane(self, index, asked, told)
            threading.Thread(target=lane.serve, name=f"lane-{index}", daemon=True).start()

    def _request(self, header: Any, given: Iterator[Array]) -> Request:
        request = super()._request(header, given)
        own = header["limits"]
        self._limits = RunLimits(own["seconds"], own["memory"])
        rows = header.get("weights", {}).items()
        self._weights = {digest: read_value(value, given) for digest, value in rows}
        return request

    def _do(self, request: Request, blobs: Blobs) -> Any:
        if request.kind == "weigh":
            name, executable = self._held[request.held]
            return guarded(name, "load", name, executable.run_bytes)
        if request.kind != "load":
            # Only to say that it is alive.
            return None
        if self._backend is None:
            self._report("import")
            self._backend = backend_of(self._reference)
        backend, name = self._backend, self._backend.info.name
        self.close_process(backend, request.config)
        self._report("load")
        weights, self._weights = self._weights, {}
        for array in weights.values():
            array.flags.writeable = False
        loaded = guarded(
            name, "load", name, backend.load, request.artifact, request.device, weights
        )
        self._held[request.held] = (name, guarded(name, "load", name, _checked, loaded))
        return bool(loaded.is_reentrant)

    @property
    def name(self) -> str:
        return self._reference if self._backend is None else self._backend.info.name

    def run(self, held: str, inputs: list[HostValue], places: Sequence[Array] = ()) -> PackedValues:
        """Run an executable, perhaps to memory that is given, and describe its outputs."""
        name, executable = self._held[held]
        # What is interpreted ends by itself, and the child lives on.
        with limited(self._limits):
            outputs = guarded(name, "run", "a region", run, executable, inputs, places)
        with blaming(name, "run", "a region"):
            return PackedValues(outputs)


def _checked(loaded: object) -> Executable:
    if not isinstance(loaded, Executable):
        raise TypeError(f"expected Executable, found {type(loaded).__name__}")
    bool(loaded.is_reentrant)
    return loaded


def main(reference: str, requests: int, replies: int, life: int, *shared: int) -> None:
    """Serve until the parent is gone."""
    settle()
    watch(away(life))
    arena, *lanes = shared
    memory = mmap.mmap(arena, os.fstat(arena).st_size)
    os.close(arena)
    Server(reference, away(requests), away(replies), memory, [away(x) for x in lanes]).serve()
    # Engines crash and hang at exit too; nobody needs to know.
    os._exit(0)
