"""The child of a service: engines write large outputs to the memory that their callers read."""

import mmap
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from fusewire.contract.backend import Executable, Held, Into
from fusewire.process.serving import (
    HEADER,
    LANE_BYTES,
    NO_ROOM,
    OUTPUTS,
    REQUEST,
    Server,
    _Lane,
)
from fusewire.process.tensors import PackedValues, Tensor, ValueHeader

X = np.arange(100_000, dtype=np.float32)


@final
class _Doubling(Executable):
    """Writes to memory of the caller's where it fits; returns more than asked if told to."""

    def __init__(self) -> None:
        self.written = 0
        self.times = 1
        # The elements of an output before it, if there is one.
        self.first = 0

    @property
    def is_reentrant(self) -> bool:
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        before = [np.ones(self.first, np.float32)] if self.first else []
        made = np.tile(np.asarray(inputs[0]) * 2, self.times)
        place = into[-1] if into else None
        if not isinstance(place, np.ndarray) or place.shape != np.shape(made):
            return [*before, made]
        place[...] = made
        self.written += 1
        return [*before, place]


class _Child:
    """A lane that is asked in this process, over memory that nobody shares."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, LANE_BYTES + (8 << 20))
        self.executable = _Doubling()
        server = Server(
            "fusewire.backends.reference.engine:ReferenceBackend", 0, 0, self.memory, []
        )
        server._held["1"] = ("doubling", self.executable)
        self.lane = _Lane(server, 0, -1, -1)
        self.start = LANE_BYTES
        self.packed = PackedValues([X])
        self.packed.copy_to(self.memory, self.start)

    def asked(self, held: int, place: int, room: int) -> bytes:
        header = self.packed.header if held else b""
        return self.lane._outputs_of(REQUEST.pack(held, self.start, place, room) + header)

    def found(self, place: int, count: int = X.size) -> Any:
        return np.ndarray((count,), np.float32, self.memory, place)


def test_outputs_of_known_shapes_are_written_in_place() -> None:
    child, room = _Child(), 1 << 20
    for turn in range(3):
        # Wherever the room is, shapes are what they were.
        place = child.start + (1 + turn) * room
        assert child.asked(1, place, room)[0] == OUTPUTS
        np.testing.assert_array_equal(child.found(place), X * 2)
        assert child.executable.written == turn


def test_outputs_that_need_more_room_are_returned_in_it() -> None:
    child, room = _Child(), 1 << 20
    place = child.start + room
    child.asked(1, place, room)
    child.executable.times = 3
    assert child.asked(1, place, room)[0] == NO_ROOM
    child.found(place)[...] = -1.0
    assert child.asked(0, place + room, 3 * room)[0] == OUTPUTS
    np.testing.assert_array_equal(child.found(place + room, 3 * X.size), np.tile(X * 2, 3))
    child.executable.times = 1
    assert child.asked(1, place, room)[0] == OUTPUTS
    np.testing.assert_array_equal(child.found(place), X * 2)
    assert child.executable.written == 1


def test_outputs_after_one_that_changed_its_size_are_where_they_are_read() -> None:
    child, room = _Child(), 2 << 20
    place = child.start + room
    # The first output has other sizes; the second is always written where it was before.
    for count in (60_000, 60_000, 20_000, 60_000, 20_000, 20_000):
        child.executable.first = count
        answer = child.asked(1, place, room)
        assert answer[0] == OUTPUTS
        first, second = ValueHeader(answer[1:]).layouts
        assert isinstance(first, Tensor)
        assert isinstance(second, Tensor)
        np.testing.assert_array_equal(child.found(place + first.start, count), np.ones(count))
        np.testing.assert_array_equal(child.found(place + second.start), X * 2)


def test_engine_writes_to_no_more_than_its_room() -> None:
    child, room = _Child(), 2 << 20
    child.executable.first = 60_000
    for _ in range(2):
        assert child.asked(1, child.start + room, room)[0] == OUTPUTS
    written = child.executable.written
    less = 600_000
    after = child.found(child.start + room + less)
    after[...] = -1.0
    assert child.asked(1, child.start + room, less)[0] == NO_ROOM
    assert child.executable.written == written
    np.testing.assert_array_equal(after, -1.0)
    assert child.asked(0, child.start + 2 * room, room)[0] == OUTPUTS
    np.testing.assert_array_equal(child.found(child.start + 2 * room, 60_000), np.ones(60_000))


def test_small_outputs_are_copied() -> None:
    child = _Child()
    child.packed = PackedValues([X[:8]])
    for _ in range(3):
        assert child.asked(1, HEADER, 1 << 12)[0] == OUTPUTS
    assert child.executable.written == 0
