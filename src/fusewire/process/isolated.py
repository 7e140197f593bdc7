"""An executable whose engine runs in a child: inputs go to shared memory, outputs stay there.

An output is an array over shared memory, which is used again when its last view is gone; small
ones are copied. Its shape and dtype are the parent's own; only its elements are the child's.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np
from numpy import ndarray

from fusewire.contract.backend import Artifact, Device, Executable, Held, Into, Slot
from fusewire.dtypes import bool_, string
from fusewire.errors import EngineGarbage
from fusewire.ir.dims import Dim, Symbol, bind_alone, evaluate, symbols
from fusewire.ir.graph import Array, HostValue
from fusewire.ir.types import OptionalType, SequenceType, Type
from fusewire.process.arena import Arena, Lease, aligned
from fusewire.process.lanes import Fault, ServedChild
from fusewire.process.limits import ChildLimits
from fusewire.process.pool import reported_error
from fusewire.process.service import Service
from fusewire.process.serving import (
    FAILED,
    HEADER,
    LANE_BYTES,
    NO_ROOM,
    OUTPUTS,
    REQUEST,
    ROOM,
    SMALL,
)
from fusewire.process.tensors import Layout, PackedValues, Tensor, ValueHeader, strings

# Signatures of which an executable remembers the headers, and answers of each.
_KNOWN = 64
# The outputs of the last call, in more room.
_AGAIN = 0


class _Signature:
    """What is known about calls with inputs of certain shapes and dtypes."""

    def __init__(self, packed: PackedValues, room: int) -> None:
        self.header = packed.header
        self.size = packed.size
        self.places = [(numpy, start) for _, numpy, start in packed.arrays]
        # Bytes that the outputs took last time.
        self.room = room
        # Answers that were checked.
        self.answers: dict[bytes, ValueHeader] = {}


@final
class IsolatedExecutable(Executable):
    """Runs in the child of a service, under its limits."""

    def __init__(
        self,
        service: Service,
        artifact: Artifact,
        device: Device,
        weights: Mapping[str, Array],
        types: Callable[[], Sequence[Type]],
    ) -> None:
        """``types`` of the outputs are asked for if an output is not a tensor."""
        self._service = service
        self._loadable = service.loadable(artifact, device, weights)
        self._edges = _Edges(artifact, types)
        self._known: dict[Any, _Signature] = {}
        self._is_reentrant = service.load(self._loadable)

    @property
    def is_reentrant(self) -> bool:
        """As the engine says."""
        return self._is_reentrant

    def run_bytes(self) -> int | None:
        """As the engine says, in the child."""
        loadable = self._loadable
        return self._service.call(loadable, lambda served, lane: served.run_bytes(loadable))

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run in the child; its outputs are in memory that both share."""
        key = tuple([(x.shape, x.dtype) if type(x) is np.ndarray else None for x in inputs])
        signature = self._known.get(key)
        if signature is None:
            signature = self._signature(key, inputs)
            if signature is None:
                return self._service.call(self._loadable, partial(self._run_any, inputs))
        return self._service.call(self._loadable, partial(self._run, signature, inputs))

    def _signature(self, key: tuple[Any, ...], inputs: Sequence[HostValue]) -> _Signature | None:
        """Note what a call looks like; None if its header depends on more than shapes."""
        if None in key or any(x.dtype.kind in "OUT" for x in inputs):
            return None
        if len(self._known) >= _KNOWN:
            self._known.clear()
        room = self._edges.room(inputs)
        signature = self._known[key] = _Signature(PackedValues(inputs), room)
        return signature

    def _run(
        self, signature: _Signature, inputs: Sequence[HostValue], served: ServedChild, lane: int
    ) -> list[HostValue]:
        arena = self._service.arena
        lease, start = None, lane * LANE_BYTES + 2 * HEADER
        if signature.size > SMALL:
            lease = arena.lease(signature.size)
            start = lease.offset
        memory = arena.map
        for array, (numpy, offset) in zip(inputs, signature.places, strict=True):
            ndarray(array.shape, numpy, memory, start + offset)[...] = array
        outputs = self._call(signature, start, inputs, served, lane)
        # Until now, the child read from it.
        del lease
        return outputs

    def _run_any(
        self, inputs: Sequence[HostValue], served: ServedChild, lane: int
    ) -> list[HostValue]:
        arena, packed = self._service.arena, PackedValues(inputs)
        lease, start = _room(arena, packed.size, lane * LANE_BYTES + 2 * HEADER)
        packed.copy_to(arena.map, start)
        outputs = self._call(_Signature(packed, 0), start, inputs, served, lane)
        del lease
        return outputs

    def _call(
        self,
        signature: _Signature,
        start: int,
        inputs: Sequence[HostValue],
        served: ServedChild,
        lane: int,
    ) -> list[HostValue]:
        arena, small = self._service.arena, lane * LANE_BYTES + 2 * HEADER + SMALL
        number, header, room = self._loadable.number, signature.header, signature.room
        while True:
            lease, place = _room(arena, room, small)
            size = SMALL if lease is None else lease.size
            answer = served.call(lane, REQUEST.pack(number, start, place, size) + header)
            known = signature.answers.get(answer)
            if known is not None and known.size <= size:
                break
            if answer[0] != NO_ROOM or number == _AGAIN:
                known = self._checked(answer, inputs, size)
                if len(signature.answers) < _KNOWN:
                    signature.answers[answer] = known
                break
            number, header, room = _AGAIN, b"", _needed(answer)
        signature.room = known.size
        try:
            return [_value(arena, layout, lease, place) for layout in known.layouts]
        except (EngineGarbage, ValueError) as error:
            raise Fault(EngineGarbage, str(error)) from None

    def _checked(self, answer: bytes, inputs: Sequence[HostValue], size: int) -> ValueHeader:
        """Read an answer that was copied out of shared memory; it may say anything."""
        if answer[0] == FAILED:
            raise _reported(answer[1:])
        try:
            if answer[0] != OUTPUTS:
                raise EngineGarbage(f"an answer of an unknown kind {answer[0]}")
            header = ValueHeader(answer[1:])
            if header.size > size:
                raise EngineGarbage(f"outputs of {header.size} bytes in {size}")
            self._edges.check(header.layouts, inputs)
        except EngineGarbage as error:
            raise Fault(EngineGarbage, error.reason) from None
        return header

    def close(self) -> None:
        """Have the child close it."""
        self._service.drop(self._loadable)


class _Edges:
    """The inputs and outputs of an artifact, to check and predict what a child answers."""

    def __init__(self, artifact: Artifact, types: Callable[[], Sequence[Type]]) -> None:
        self._inputs = [slot for slot in artifact.slots if slot.role == "input"]
        self._outputs = [slot for slot in artifact.slots if slot.role == "output"]
        self._types = types

    def _bound(self, inputs: Sequence[HostValue]) -> dict[Symbol, int]:
        bound: dict[Symbol, int] = {}
        for slot, value in zip(self._inputs, inputs, strict=True):
            if isinstance(value, np.ndarray) and value.ndim == len(slot.dims):
                bind_alone(slot.dims, value.shape, bound)
        return bound

    def room(self, inputs: Sequence[HostValue]) -> int:
        """Return the bytes that the outputs take, as far as that is known before a call."""
        bound, total = self._bound(inputs), 0
        for slot in self._outputs:
            size = slot.dtype.itemsize
            for dim in slot.dims:
                size *= evaluate(dim, bound) if _is_known(dim, bound) else 1
            total += aligned(size)
        return total

    def check(self, layouts: Sequence[Layout], inputs: Sequence[HostValue]) -> None:
        """Raise EngineGarbage unless these can be the outputs for such inputs."""
        if len(layouts) != len(self._outputs):
            raise EngineGarbage(f"{len(layouts)} outputs, not {len(self._outputs)}")
        bound = self._bound(inputs)
        for place, (slot, layout) in enumerate(zip(self._outputs, layouts, strict=True)):
            if isinstance(layout, Tensor):
                _check_tensor(slot, layout, bound)
            elif not _is_of(layout, self._types()[place]):
                raise EngineGarbage(f"the output {slot.name} is {self._types()[place]}")


def _check_tensor(slot: Slot, found: Tensor, bound: dict[Symbol, int]) -> None:
    is_same = found.dtype is slot.dtype and len(found.shape) == len(slot.dims)
    if is_same:
        bind_alone(slot.dims, found.shape, bound)
        dims = zip(slot.dims, found.shape, strict=True)
        is_same = all(evaluate(dim, bound) == size for dim, size in dims if _is_known(dim, bound))
    if not is_same:
        expected = f"{slot.dtype.name}[{', '.join(map(str, slot.dims))}]"
        shown = f"{found.dtype.name}{list(found.shape)}"
        raise EngineGarbage(f"the output {slot.name} is {expected}, found {shown}")


def _is_known(dim: Dim, bound: Mapping[Symbol, int]) -> bool:
    return isinstance(dim, int) or all(x in bound for x in symbols(dim))


def _is_of(layout: Layout, type_: Type) -> bool:
    """Tell whether a value is of a type, apart from sizes."""
    if isinstance(type_, OptionalType):
        return layout is None or _is_of(layout, type_.element)
    if isinstance(type_, SequenceType):
        return isinstance(layout, list) and all(_is_of(item, type_.element) for item in layout)
    if not isinstance(layout, Tensor):
        return False
    return layout.dtype is type_.dtype and len(layout.shape) == type_.rank


def _room(arena: Arena, size: int, small: int) -> tuple[Lease | None, int]:
    """Find room for values: what a lane has, if they are small."""
    if size <= SMALL:
        return None, small
    lease = arena.lease(size)
    return lease, lease.offset


def _needed(answer: bytes) -> int:
    if len(answer) != ROOM.size:
        raise Fault(EngineGarbage, f"{answer[:40].hex()} where a size should be")
    _, size = ROOM.unpack(answer)
    return int(size)


def _reported(raw: bytes) -> Exception:
    try:
        error = reported_error(json.loads(raw))
    except (ValueError, RecursionError):
        error = EngineGarbage("an error that is not JSON")
    is_malformed = isinstance(error, EngineGarbage) and not error.advice
    return Fault(EngineGarbage, str(error)) if is_malformed else error


def _value(arena: Arena, layout: Layout, lease: Lease | None, place: int) -> HostValue:
    """Make a value of checked outputs."""
    if layout is None:
        return None
    if isinstance(layout, list):
        return [_value(arena, item, lease, place) for item in layout]
    of, shape, start, size = layout
    at = place + start
    if of is string:
        return strings(layout, np.ndarray((size,), np.uint8, arena.map, at).copy())
    numpy = of.numpy
    if of is not bool_ and lease is not None and size > SMALL:
        return arena.lent(shape, numpy, lease, at)
    copy = np.ndarray(shape, numpy, arena.map, at).copy()
    if of is bool_ and size and copy.view(np.uint8).max() > 1:
        raise EngineGarbage("a bool that is neither 0 nor 1")
    return copy


@final
class Services:
    """The services of one program, one per backend; each ends with its last executable."""

    def __init__(self, limits: ChildLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._running: weakref.WeakValueDictionary[str, Service] = weakref.WeakValueDictionary()

    def load(
        self,
        reference: str,
        artifact: Artifact,
        device: Device,
        weights: Mapping[str, Array],
        types: Callable[[], Sequence[Type]],
    ) -> IsolatedExecutable:
        """Load an artifact in the child of a backend, "module:Class"."""
        with self._lock:
            service = self._running.get(reference)
            if service is None:
                service = self._running[reference] = Service(reference, self._limits)
        return IsolatedExecutable(service, artifact, device, weights, types)
