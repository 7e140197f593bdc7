"""What is kept in one piece comes back as it was, where engines can take it as it lies."""

import numpy as np
import pytest

from fusewire.host import ALIGNMENT
from fusewire.placement.remember import framed, unframed


def test_blobs_lie_aligned_where_memory_of_its_own_begins() -> None:
    # The C library gives what is large pages of its own, most of the time: it begins 16 bytes into
    # the first, and the bytes of a Python object 32 after that. Engines copy what lies otherwise.
    blobs = [np.arange(size, dtype=np.uint8) for size in (2_000_003, 0, 3_000_000)]
    held = framed({"of": "weights"}, blobs)
    header, found = unframed(held)
    kept = list(found)
    assert header == {"of": "weights"}
    for blob, wanted in zip(kept, blobs, strict=True):
        assert np.array_equal(blob, wanted)
        at = blob.ctypes.data - np.frombuffer(held, np.uint8).ctypes.data
        assert not blob.size or (at + 16 + 32) % ALIGNMENT == 0


@pytest.mark.parametrize("length", [0, 5, 30, 1000])
def test_what_is_cut_off_is_refused(length: int) -> None:
    held = framed({"of": "weights"}, [np.ones(2000, np.uint8)])
    with pytest.raises(ValueError):
        list(unframed(held[:length])[1])
