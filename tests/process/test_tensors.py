"""Headers of values in shared memory: what is written is read, and nothing else is believed."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewire.dtypes import ALL, STORED, string
from fusewire.errors import EngineGarbage
from fusewire.process.tensors import Layout, PackedValues, Tensor, ValueHeader, strings

VALUES: list[Any] = [
    None,
    np.zeros((), np.float32),
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.array(["a", "", "ü"], object),
    [np.ones(3, np.bool_), [None, np.zeros((0, 5), np.float16)]],
    *(np.ones((2, 1), of.numpy) for of in STORED),
]


def read(memory: bytearray, layout: Layout) -> Any:
    if not isinstance(layout, Tensor):
        return None if layout is None else [read(memory, item) for item in layout]
    if layout.dtype is string:
        return strings(layout, np.frombuffer(memory, np.uint8, layout.size, layout.start))
    return np.ndarray(layout.shape, layout.dtype.numpy, memory, layout.start)


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if left is None:
        return right is None
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())


def test_values_are_read_as_they_were_written() -> None:
    packed = PackedValues(VALUES)
    memory = bytearray(packed.size)
    packed.copy_to(memory, 0)
    header = ValueHeader(packed.header)
    assert header.size == packed.size
    assert is_same([read(memory, layout) for layout in header.layouts], VALUES)


def test_what_was_written_in_place_is_not_copied_and_can_be_taken_away() -> None:
    memory = bytearray(256)
    places = [np.ndarray((4,), np.float32, memory, start) for start in (0, 64)]
    places[0][...] = 1.0
    # The second output is the first once more, and the third is new.
    packed = PackedValues([places[0], places[0], np.full(4, 3.0, np.float32)])
    assert packed.is_plain
    assert [place.start for place in packed.places] == [0, 64, 128]
    packed.copy_to(memory, 0, places)
    found = np.frombuffer(memory, np.float32)
    assert [found[0], found[16], found[32]] == [1.0, 1.0, 3.0]
    packed.take_away(places)
    places[0][...] = 9.0
    packed.copy_to(memory, 0)
    assert found[0] == 1.0
    assert not PackedValues([None]).is_plain
    assert not PackedValues([np.array(["a"], object)]).is_plain


def test_other_values_are_refused() -> None:
    for value in (3, "text", np.zeros(2, "M8[s]")):
        with pytest.raises(EngineGarbage, match="expected an array"):
            PackedValues([value])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        header = ValueHeader(raw)
    except EngineGarbage:
        return
    assert header.size >= 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_header_never_says_more_than_its_size(data: st.DataObject) -> None:
    raw = bytearray(PackedValues(VALUES[:5]).header)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = ValueHeader(bytes(raw))
    except EngineGarbage:
        return
    assert all(_fits(layout, header.size) for layout in header.layouts)


def _fits(layout: Layout, size: int) -> bool:
    if not isinstance(layout, Tensor):
        return layout is None or all(_fits(item, size) for item in layout)
    is_whole = layout.dtype is string or layout.size == layout.dtype.itemsize * int(
        np.prod([int(dim) for dim in layout.shape], dtype=object)
    )
    return is_whole and layout.start + layout.size <= size


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<BBBQQ", 2, 10, 1, 8, 3),
        struct.pack("<BBBQ", 2, len(ALL), 0, 4),
        struct.pack("<BBBQQ", 2, 10, 1, 0, 1 << 63),
        struct.pack("<BI", 1, 1 << 31),
        struct.pack("<BI", 9, 0),
        struct.pack("<BI", 1, 1) * 12 + struct.pack("<BI", 0, 0),
    ],
)
def test_headers_that_lie_are_refused(raw: bytes) -> None:
    with pytest.raises(EngineGarbage):
        ValueHeader(raw)


def test_strings_that_lie_are_refused() -> None:
    tensor = Tensor(string, (1 << 40,), 0, 4)
    with pytest.raises(EngineGarbage, match="do not hold"):
        strings(tensor, np.frombuffer(b'["a"', np.uint8))
