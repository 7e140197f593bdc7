"""Folders of every kind, clocks that jump, and disks that lack something."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fusewire.errors import StoreWarning
from fusewire.store import files
from fusewire.store.disk import Store
from fusewire.store.files import default_path
from fusewire.store.key import Key
from fusewire.system import locks

KEY = Key.of("artifact", graph="ab")
IS_ROOT = os.geteuid() == 0


def works(store: Store) -> bool:
    return store.put(KEY, b"x") and Store(store.path).get(KEY) == b"x"


def is_off_with_one_warning(store: Store, said: str) -> bool:
    """Use a store: answers are right, nothing is raised, and it complains once."""
    with pytest.warns(StoreWarning, match=said) as caught:  # noqa: PT031 # one for all of it
        assert store.get(KEY) is None
        assert store.put(KEY, b"x") is False
        assert store.once(KEY, lambda: b"made") == b"made"
        assert list(store.entries()) == []
        assert store.verify().good == 0
        assert "cannot be used" in store.why_missed(KEY)
    return len(caught) == 1 and store.is_off


def test_folder_that_is_missing_is_made_with_its_parents(tmp_path: Path) -> None:
    assert works(Store(tmp_path / "a" / "b" / "cache"))


def test_folder_that_is_removed_meanwhile_is_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(KEY, b"first")
    for path in store.path.iterdir():
        path.unlink()
    store.path.rmdir()
    assert store.get(KEY) is None
    assert works(store)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o710, 0o1777])
def test_folder_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert is_off_with_one_warning(Store(folder), "chmod 700")
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a folder away")
def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    assert is_off_with_one_warning(Store(folder), "found owner 12345")


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a file away")
def test_entry_of_somebody_else_is_a_miss(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(KEY, b"x")
    os.chown(store.path / f"{KEY.digest}.entry", 12345, 12345)
    assert store.get(KEY) is None
    assert works(store)


@pytest.mark.parametrize("what", ["link", "file", "broken link"])
def test_what_is_no_folder_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    path = tmp_path / "cache"
    if what == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / ("real" if what == "link" else "none"))
    assert is_off_with_one_warning(Store(path), "is not a folder, or a link")
    assert list((tmp_path / "real").iterdir()) == []


def test_place_where_nothing_can_be_made_is_no_hindrance() -> None:
    assert is_off_with_one_warning(Store(Path("/proc/fusewire/cache")), "cannot open")


def test_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FUSEWIRE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert is_off_with_one_warning(Store(), "is not a folder, or a link")
    monkeypatch.setenv("FUSEWIRE_CACHE", "/somewhere")
    assert default_path() == Path("/somewhere")


class Failing:
    """The module os, or fcntl, with some calls that fail."""

    def __init__(self, real: object, code: int, *names: str) -> None:
        self.real, self.code, self.names = real, code, names

    def __getattr__(self, name: str) -> object:
        return self.fail if name in self.names else getattr(self.real, name)

    def fail(self, *given: object, **named: object) -> object:
        raise OSError(self.code, os.strerror(self.code))


def test_read_only_disk_still_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "cache").put(KEY, b"x")
    writes = ("write", "replace", "link", "unlink", "utime", "fsync")
    monkeypatch.setattr(files, "os", Failing(os, errno.EROFS, *writes))
    store = Store(tmp_path / "cache")
    assert store.get(KEY) == b"x"
    other = Key.of("artifact", graph="cd")
    with pytest.warns(StoreWarning, match="Read-only") as caught:  # noqa: PT031 # one for both
        assert store.once(other, lambda: b"made") == b"made"
        assert store.put(other, b"made") is False
    assert len(caught) == 1


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_disk_that_cannot_lock_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(locks, "fcntl", Failing(fcntl, code, "flock"))
    store = Store(tmp_path / "cache")
    start = time.monotonic()
    assert store.once(KEY, lambda: b"made") == b"made"
    assert time.monotonic() - start < 5.0
    assert Store(store.path).get(KEY) == b"made"


def test_disk_without_hard_links_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "os", Failing(os, errno.EPERM, "link"))
    assert works(Store(tmp_path / "cache"))


def test_disk_that_cannot_sync_folders_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Network(Failing):
        def fail(self, *given: object, **named: object) -> object:
            (fd,) = given
            assert isinstance(fd, int)
            return super().fail() if stat.S_ISDIR(os.fstat(fd).st_mode) else None

    monkeypatch.setattr(files, "os", Network(os, errno.EINVAL, "fsync"))
    assert works(Store(tmp_path / "cache"))


def test_once_within_once_does_not_wait_for_itself(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    keys = [Key.of("plan", number=number) for number in range(60)]
    # Locks that several keys share would meet here.
    assert len({key.digest[:2] for key in keys}) < len(keys)

    def make(number: int) -> bytes:
        if number + 1 < len(keys):
            store.once(keys[number + 1], lambda: make(number + 1))
        return b"made"

    start = time.monotonic()
    assert store.once(keys[0], lambda: make(0)) == b"made"
    assert time.monotonic() - start < 30.0


def test_waiter_takes_what_another_has_put_and_gives_up_in_the_end(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    opened = store.opened()
    assert opened is not None
    held = opened[0].lock(KEY.digest + files.LOCK)
    assert held is not None
    assert store.once(KEY, lambda: b"own", seconds=0.05) == b"own"
    store.drop(KEY)
    timer = threading.Timer(0.2, store.put, (KEY, b"theirs"))
    timer.start()
    assert store.once(KEY, lambda: b"own", seconds=60.0) == b"theirs"
    timer.join()
    opened[0].unlock(KEY.digest + files.LOCK, held)
    assert not list(store.path.glob("*.lock"))


def test_lock_dies_with_its_process(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(Key.of("plan", other=1), b"{}")
    code = (
        "import os, sys; from pathlib import Path; from fusewire.store.disk import Store; "
        "from fusewire.store.key import Key; key = Key.of('artifact', graph='ab'); "
        "Store(Path(sys.argv[1])).once(key, lambda: os.kill(os.getpid(), 9))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.path)])
    assert done.returncode == -9
    start = time.monotonic()
    assert store.once(KEY, lambda: b"made") == b"made"
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize("read", [Store.get, Store.block])
def test_large_entries_come_back_and_a_changed_byte_is_seen_in_every_piece(
    read: Callable[[Store, Key], bytes | memoryview | None], tmp_path: Path
) -> None:
    store = Store(tmp_path / "cache")
    payload = os.urandom(5 * 2**20 + 17)
    path = store.path / f"{KEY.digest}.entry"
    for at in range(1000, len(payload), 2**20):
        store.put(KEY, payload)
        assert read(store, KEY) == payload
        held = bytearray(path.read_bytes())
        held[at] ^= 1
        path.write_bytes(held)
        assert read(store, KEY) is None


def test_entry_larger_than_the_limit_is_not_kept_and_drives_nobody_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", limit=10_000)
    store.put(KEY, b"x")
    with pytest.warns(StoreWarning, match="the limit is 10,000"):
        assert store.put(Key.of("artifact", graph="cd"), bytes(20_000)) is False
    assert store.get(KEY) == b"x"


def size(store: Store) -> int:
    return sum(entry.size for entry in store.entries())


@pytest.mark.parametrize("clock", [0.0, 1e9, 2e9, 3e9])
def test_limit_holds_whatever_the_clock_says(tmp_path: Path, clock: float) -> None:
    store = Store(tmp_path / "cache", limit=20_000)
    for number in range(60):
        key = Key.of("measurement", number=number)
        store.put(key, bytes(900))
        # Files as clocks that jump forth and back leave them.
        when = clock * (number % 3)
        os.utime(store.path / f"{key.digest}.entry", (when, when))
        assert size(store) <= store.limit


def test_time_in_the_future_neither_keeps_an_entry_for_ever_nor_loses_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    keys = [Key.of("measurement", number=number) for number in range(3)]
    future = time.time() + 1e8
    for key, when in zip(keys, (1e9, future, 1.1e9), strict=True):
        store.put(key, bytes(1000))
        os.utime(store.path / f"{key.digest}.entry", (when, when))
    total = size(store)
    store.prune(total - 1)
    assert {entry.key for entry in store.entries()} == set(keys[1:])
    assert all(entry.used < time.time() + 10 for entry in store.entries())


def test_use_is_noted_now_and_then(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(KEY, b"x")
    path = store.path / f"{KEY.digest}.entry"
    for age, is_noted in ((5.0, False), (3600.0, True), (-3600.0, True)):
        when = time.time() - age
        os.utime(path, (when, when))
        store.get(KEY)
        assert (abs(path.stat().st_mtime - when) > 1.0) == is_noted


def test_parts_of_the_living_stay_and_those_of_the_dead_go(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(KEY, b"x")
    world = files._world()
    living = store.path / f".part-{os.getpid()}-{world}-{'0' * 16}"
    dead = store.path / f".part-4000000-{world}-{'0' * 16}"
    elsewhere = store.path / f".part-4000000-otherboot.1-{'0' * 16}"
    for path in (living, dead, elsewhere):
        path.write_bytes(b"part")
    assert store.verify().swept == 1
    assert living.exists()
    assert elsewhere.exists()
    for path, when in ((living, 1.0), (elsewhere, time.time() + 1e6)):
        os.utime(path, (when, when))
    assert store.verify().swept == 2


def test_listings_of_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    for number in range(300):
        store.put(Key.of("measurement", number=number), b"{}")
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(len(list(store.entries())))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [300] * 4


def test_closed_store_is_off_and_silent(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    store.put(KEY, b"x")
    store.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(KEY) is None
        assert store.put(KEY, b"x") is False


@pytest.mark.parametrize("name", ["graph", "shapes", "engine", "library", "driver", "cpu", "flags"])
def test_every_field_keeps_entries_apart(tmp_path: Path, name: str) -> None:
    fields = dict.fromkeys(
        ("graph", "shapes", "engine", "library", "driver", "cpu", "flags"), "same"
    )
    store = Store(tmp_path / "cache")
    store.put(Key.of("artifact", **fields), b"x")
    other = Key.of("artifact", **{**fields, name: "other"})
    assert store.get(other) is None
    assert store.why_missed(other) == f"The nearest artifact differs in {name}: same -> other."
    assert store.get(Key.of("artifact", **fields)) == b"x"
