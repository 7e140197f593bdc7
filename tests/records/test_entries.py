"""What is kept in one piece comes back as it was, where engines can take it as it lies."""

from pathlib import Path

import numpy as np
import pytest

from fusewire.host_memory import ALIGNMENT
from fusewire.records.framing import framed, unframed
from fusewire.store.disk import Store
from fusewire.store.key import Key


def test_blobs_lie_where_engines_take_them_as_they_are(tmp_path: Path) -> None:
    blobs = [np.arange(size, dtype=np.uint8) for size in (2_000_003, 0, 3_000_000)]
    store, key = Store(tmp_path / "cache"), Key.of("artifact", graph="g")
    store.put(key, framed({"of": "weights"}, blobs))
    held = store.block(key)
    assert held is not None
    assert held.readonly
    header, found = unframed(held)
    assert header == {"of": "weights"}
    for blob, wanted in zip(list(found), blobs, strict=True):
        assert np.array_equal(blob, wanted)
        assert not blob.size or blob.ctypes.data % ALIGNMENT == 0


@pytest.mark.parametrize("length", [0, 5, 30, 1000])
def test_what_is_cut_off_is_refused(length: int) -> None:
    held = framed({"of": "weights"}, [np.ones(2000, np.uint8)])
    with pytest.raises(ValueError):
        list(unframed(held[:length])[1])
