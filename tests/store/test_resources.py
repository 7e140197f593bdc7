"""What a store takes, it gives back: descriptors, and listings of its folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusewire.store.disk import Store
from fusewire.store.files import _world
from fusewire.store.key import Key
from tests.counting import Counts


def key(number: int) -> Key:
    return Key.of("artifact", graph="ab", number=number)


def test_listing_and_pruning_leave_no_descriptor_open(tmp_path: Path, counts: Counts) -> None:
    store = Store(tmp_path / "cache")
    for number in range(5):
        store.put(key(number), b"payload")
    before = counts.descriptors
    opened = store.opened()
    assert opened is not None
    for _ in range(100):
        assert len(list(store.entries())) == 5
        assert store.prune(1 << 20) == 0
        assert opened[0].sweep() == 0
        assert store.verify().good == 5
    assert counts.descriptors == before


def test_reading_writing_and_waiting_leave_no_descriptor_open(
    tmp_path: Path, counts: Counts
) -> None:
    store = Store(tmp_path / "cache")
    store.put(key(0), b"payload")
    before = counts.descriptors
    for number in range(50):
        store.put(key(number), b"payload")
        assert store.get(key(number)) == b"payload"
        assert store.get(key(number + 1000)) is None
        assert store.once(key(number + 2000), lambda: b"made") == b"made"
        with store.alone(key(number)):
            pass
        store.drop(key(number))
    assert counts.descriptors == before
    assert not list(store.path.glob("*.lock"))


def test_few_puts_list_the_folder(tmp_path: Path, counts: Counts) -> None:
    store = Store(tmp_path / "cache")
    for number in range(100):
        store.put(key(number), b"payload")
        # The first one looks how large the folder is and sweeps it, and so does every 33rd.
        assert counts.listings == 2 * (number // 33 + 1)
    assert len(list(store.entries())) == 100


def test_folder_that_overflows_is_pruned_to_its_limit(tmp_path: Path, counts: Counts) -> None:
    store = Store(tmp_path / "cache", limit=4000)
    for number in range(20):
        assert store.put(key(number), b"x" * 500)
    kept = list(store.entries())
    assert 1 <= len(kept) < 20
    assert sum(entry.size for entry in kept) <= 4000
    # The last one is there, and the first is not.
    assert store.get(key(19)) is not None
    assert store.get(key(0)) is None


def test_closed_store_gives_its_folder_back(tmp_path: Path, counts: Counts) -> None:
    before = counts.descriptors
    for number in range(20):
        store = Store(tmp_path / f"cache{number}")
        store.put(key(0), b"payload")
        store.close()
        assert store.get(key(0)) is None
        assert not store.put(key(1), b"payload")
    assert counts.descriptors <= before + 1


@pytest.mark.parametrize("age", [-2.0, 2.0])
def test_sweep_removes_what_was_left_long_ago_whatever_the_clock_said(
    tmp_path: Path, age: float
) -> None:
    store = Store(tmp_path / "cache")
    store.put(key(0), b"payload")
    opened = store.opened()
    assert opened is not None
    now = time.time()
    paths = {
        "left": (store.path / ".part-1-elsewhere-ab", age * 3600),
        "young": (store.path / ".part-2-elsewhere-cd", age * 600),
        "old lock": (store.path / f"{key(1).digest}.lock", age * 3600),
        "young lock": (store.path / f"{key(2).digest}.lock", age * 600),
    }
    for path, moved in paths.values():
        path.write_bytes(b"part")
        os.utime(path, (now + moved, now + moved))
    assert opened[0].sweep() == 1
    assert {name for name, (path, _) in paths.items() if path.exists()} == {"young", "young lock"}
    assert store.get(key(0)) == b"payload"


def test_sweep_removes_what_a_process_left_that_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    opened = store.opened()
    assert opened is not None
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone, here = (store.path / f".part-{pid}-{_world()}-ab" for pid in (ended.pid, os.getpid()))
    for path in (gone, here):
        path.write_bytes(b"part")
    assert opened[0].sweep() == (1 if _world() else 0)
    assert here.exists()
    assert gone.exists() == (not _world())
