"""Frames come back as they went, and nothing else comes back at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewire.errors import EngineGarbage
from fusewire.process.frames import (
    MAGIC,
    MAX_BLOBS,
    MAX_HEADER,
    PREFIX,
    VERSION,
    Frame,
    Incoming,
    Outgoing,
)
from fusewire.system.processes import resident

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FRAMES = st.builds(
    lambda header, blobs: Frame(header, [np.frombuffer(b, np.uint8) for b in blobs]),
    st.dictionaries(st.text(), JSON),
    st.lists(st.binary(max_size=200), max_size=5),
)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def raw(frame: Frame) -> bytes:
    return b"".join(frame.buffers())


def read(data: bytes, limit: int = 1 << 20) -> Frame | None:
    with pipe() as (reader, writer):
        os.write(writer, data[:60000])
        return Incoming(reader, limit).read()


@given(FRAMES, FRAMES)
def test_frames_come_back_as_they_went(first: Frame, second: Frame) -> None:
    with pipe() as (reader, writer):
        assert Outgoing(writer, first).write()
        assert Outgoing(writer, second).write()
        incoming = Incoming(reader, 1 << 20)
        for sent in (first, second):
            found = incoming.read()
            assert found is not None
            assert found.header == sent.header
            assert [b.tobytes() for b in found.blobs] == [b.tobytes() for b in sent.blobs]
        assert incoming.read() is None


@pytest.mark.parametrize("lean", [0, 4, 16, 63])
def test_blobs_come_to_lie_as_they_lay(lean: int) -> None:
    room = np.zeros(1000, np.uint8)
    start = (lean - room.ctypes.data) % 64
    found = read(raw(Frame({}, [room[start : start + 100]])))
    assert found is not None
    assert found.blobs[0].ctypes.data % 64 == lean
    assert found.blobs[0].size == 100


def test_large_blob_goes_through_a_small_pipe() -> None:
    blob = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8)
    with pipe() as (reader, writer):
        outgoing, incoming = (
            Outgoing(writer, Frame({"a": 1}, [blob, blob])),
            Incoming(reader, 1 << 23),
        )
        found = None
        turns = 0
        while found is None:
            outgoing.write()
            found = incoming.read()
            turns += 1
        assert turns > 10
        assert all(np.array_equal(b, blob) for b in found.blobs)


def prefix(
    magic: bytes = MAGIC, version: int = VERSION, blobs: int = 0, header: int = 2, total: int = 0
) -> bytes:
    return PREFIX.pack(magic, version, blobs, header, total)


@pytest.mark.parametrize(
    "data",
    [
        prefix(magic=b"Fwpf") + b"{}",
        prefix(version=VERSION + 1) + b"{}",
        prefix(header=MAX_HEADER + 1),
        prefix(blobs=MAX_BLOBS + 1),
        prefix(total=(1 << 20) + 1),
        prefix(total=1) + b"{}",
        prefix(blobs=1, total=1) + (2).to_bytes(16, "little") + b"{}",
        prefix() + b"[]",
        prefix() + b"{,",
        prefix(header=20000) + b"[" * 20000,
        prefix(header=5) + b'{"\xff":',
        b"Traceback (most recent call last)",
    ],
)
def test_what_is_no_frame_is_garbage(data: bytes) -> None:
    with pytest.raises(EngineGarbage):
        read(data)


def test_a_blob_that_never_comes_costs_nothing() -> None:
    frame = prefix(blobs=1, total=1 << 40) + (1 << 40).to_bytes(8, "little") + b"{}"
    before = resident(os.getpid())
    with pytest.raises(EngineGarbage, match="1099511627776"):
        read(frame, limit=1 << 30)
    lazy = prefix(blobs=1, total=1 << 30) + (1 << 30).to_bytes(8, "little") + b"{}"
    assert read(lazy, limit=1 << 30) is None
    assert resident(os.getpid()) - before < 64 << 20


@given(FRAMES, st.data())
def test_changed_bytes_are_a_frame_or_garbage(frame: Frame, data: st.DataObject) -> None:
    changed = bytearray(raw(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(changed), limit=1 << 16)
    except EngineGarbage:
        return
    assert found is None or isinstance(found.header, dict)


def test_end_in_the_middle_is_an_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, raw(Frame({"a": 1}, []))[:-1])
    os.close(writer)
    with pytest.raises(EOFError):
        Incoming(reader, 0).read()
    os.close(reader)


def test_header_too_large_is_not_sent() -> None:
    with pytest.raises(EngineGarbage, match="too large"):
        Frame({"a": "x" * MAX_HEADER}, []).buffers()
