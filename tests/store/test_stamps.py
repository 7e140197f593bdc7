"""A file that was hashed is not hashed again, as long as nothing speaks for a change."""

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
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
    """Pretend that it is an hour later, on a disk as good as any; ``ctime`` cannot be set."""
    with path.open("rb", buffering=0) as file:
        kind, _ = stamps._mount(file.fileno())
    monkeypatch.setattr(stamps, "_NOTING", {kind})
    an_hour_on(monkeypatch)


def an_hour_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)


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


def test_writes_through_a_mapping_are_seen_where_no_time_tells_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_on(monkeypatch)
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(SIZE))
        file.flush()
        path = Path(file.name)
        before = file_digest(path, store), path.stat().st_ctime_ns
        mapped = np.memmap(path, np.uint8, "r+")
        # What was read through it is open to writes from then on.
        assert not mapped.any()
        mapped[0] = 7
        mapped.flush()
        assert file_digest(path, store) == truth(path) != before[0]
        # If tmpfs learns to note it, this test tells nothing.
        assert path.stat().st_ctime_ns == before[1]
        with path.open("rb", buffering=0) as raw:
            assert stamps._mount(raw.fileno())[0] == "tmpfs"


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("expire", "wake", "is_known"),
    [
        ("3000", "500", True),
        ("360000", "500", False),
        ("100", "360000", False),
        ("3000", "0", False),
        ("3000", "x", False),
    ],
)
def test_kernel_that_keeps_pages_back_longer_is_given_longer(
    store: Store,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expire: str,
    wake: str,
    is_known: bool,
) -> None:
    for name, told in zip(stamps._KEPT_BACK, (expire, wake), strict=True):
        (tmp_path / name).write_text(told)
    monkeypatch.setattr(stamps, "_SYSTEM", tmp_path)
    file_digest(path, store)
    assert known(store) == is_known


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("mount", [("tmpfs", ["rw"]), ("ext4", ["rw", "lazytime"]), ("", [])])
def test_file_systems_that_note_late_or_never_are_not_believed(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, mount: tuple[str, list[str]]
) -> None:
    monkeypatch.setattr(stamps, "_NOTING", {"ext4"})
    monkeypatch.setattr(stamps, "_mount", lambda _: ("ext4", ["rw"]))
    file_digest(path, store)
    assert known(store) == 1
    (entry,) = store.entries("stamp")
    store.drop(entry.key)
    monkeypatch.setattr(stamps, "_mount", lambda _: mount)
    file_digest(path, store)
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
