"""A file that was hashed is not hashed again, as long as nothing speaks for a change."""

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from fusewire.store import stamps
from fusewire.store.disk import Store
from fusewire.store.stamps import file_digest

SIZE = 2**19


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the file was written long ago; the kernel's time cannot be set."""
    monkeypatch.setattr(stamps, "_SETTLED", -time.time())


def truth(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def known(store: Store) -> int:
    return len(list(store.entries("stamp")))


@pytest.mark.usefixtures("later")
def test_file_that_was_hashed_is_not_read_again(store: Store, path: Path) -> None:
    assert file_digest(path, store) == truth(path)
    (entry,) = store.entries("stamp")
    store.put(entry.key, json.dumps({"sha256": "0" * 64}).encode())
    assert file_digest(path, store) == "0" * 64


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("way", ["in place", "with its old time", "moved over it"])
def test_file_that_changed_is_hashed(store: Store, path: Path, way: str) -> None:
    before = path.stat()
    file_digest(path, store)
    # As long as a clock of the kernel takes to show another time.
    time.sleep(0.02)
    if way == "moved over it":
        other = path.with_name("other")
        other.write_bytes(os.urandom(SIZE))
        other.rename(path)
    else:
        with path.open("r+b") as file:
            file.write(b"other")
    if way != "in place":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path, store) == truth(path)


def test_file_written_a_moment_ago_is_not_believed(store: Store, path: Path) -> None:
    assert file_digest(path, store) == truth(path)
    assert known(store) == 0


@pytest.mark.usefixtures("later")
def test_disk_that_knows_whole_seconds_is_not_believed(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_SECOND", 1)
    assert file_digest(path, store) == truth(path)
    assert known(store) == 0


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("held", [b"{}", b"[]", b"no", b'{"sha256": 3}', b'{"sha256": "x"}'])
def test_note_that_is_none_is_made_again(store: Store, path: Path, held: bytes) -> None:
    file_digest(path, store)
    (entry,) = store.entries("stamp")
    store.put(entry.key, held)
    assert file_digest(path, store) == truth(path)
    (entry,) = store.entries("stamp")
    assert b"sha256" in (store.get(entry.key) or b"")
    assert file_digest(path, store) == truth(path)


def test_small_and_missing_files(store: Store, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"few")
    assert file_digest(small, store) == truth(small)
    assert file_digest(tmp_path / "none", store) is None
    assert known(store) == 0
