"""What is kept in one piece comes back as it was, where engines can take it as it lies."""

import numpy as np
import pytest

from fusewire.host import ALIGNMENT
from fusewire.placement.remember import framed, unframed


def test_large_blobs_come_back_aligned() -> None:
    blobs = [np.arange(size, dtype=np.uint8) for size in (2_000_003, 0, 3_000_000)]
    held = framed({"of": "weights"}, blobs)
    header, found = unframed(held)
    kept = list(found)
    assert header == {"of": "weights"}
    for blob, wanted in zip(kept, blobs, strict=True):
        assert np.array_equal(blob, wanted)
        assert not blob.size or blob.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize("length", [0, 5, 30, 1000])
def test_what_is_cut_off_is_refused(length: int) -> None:
    held = framed({"of": "weights"}, [np.ones(2000, np.uint8)])
    with pytest.raises(ValueError):
        list(unframed(held[:length])[1])
