"""The store: what is put comes back, what is not right never does, and no disk stops us."""

import json
import os
import random
import threading
import warnings
from pathlib import Path

import pytest

from fusewire.errors import StoreError, StoreWarning
from fusewire.store.blob import MAGIC, Bytes, pack, read_header, unpack
from fusewire.store.disk import Store
from fusewire.store.key import Key


def key(**fields: object) -> Key:
    return Key.of("artifact", graph="ab", **fields)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def entry_file(store: Store) -> Path:
    (found,) = store.path.glob("*.entry")
    return found


def test_what_is_put_comes_back_in_another_store_of_the_same_folder(store: Store) -> None:
    assert store.get(key()) is None
    assert store.put(key(), b"payload")
    assert Store(store.path).get(key()) == b"payload"


def test_folder_and_files_are_closed_to_others(store: Store) -> None:
    store.put(key(), b"payload")
    assert store.path.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in store.path.iterdir())


def test_every_truncation_and_every_flipped_byte_is_a_miss_and_heals(store: Store) -> None:
    store.put(key(), b"some payload")
    path = entry_file(store)
    whole = path.read_bytes()
    broken = [whole[:cut] for cut in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        broken.append(bytes(flipped))
    for held in broken:
        path.write_bytes(held)
        assert store.get(key()) is None
        assert not path.exists()
    store.put(key(), b"some payload")
    assert store.get(key()) == b"some payload"


@pytest.mark.parametrize("name", ["sha256", "blake2b"])
def test_large_entries_are_checked_by_either_hash(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("fusewire.store.blob.fastest_hash", lambda: name)
    payload = random.Random(1).randbytes(3 << 20)
    store.put(key(), payload)
    whole = entry_file(store).read_bytes()
    assert (b'"hash":"blake2b"' in whole) == (name == "blake2b")
    # A machine on which the other hash is faster reads it all the same.
    monkeypatch.undo()
    assert store.get(key()) == payload
    for place in (len(whole) // 3, len(whole) - 40, whole.index(b'"size"')):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        entry_file(store).write_bytes(bytes(flipped))
        assert store.get(key()) is None
        store.put(key(), payload)


@pytest.mark.parametrize("name", ["md5", "", None, 1, []])
def test_hash_that_is_not_known_is_refused(name: object) -> None:
    header = json.dumps({**key().to_json(), "size": 0, "hash": name}).encode()
    with pytest.raises(StoreError, match="unknown hash"):
        read_header(Bytes(MAGIC + len(header).to_bytes(4, "big") + header))


def test_entry_of_another_key_is_refused(store: Store) -> None:
    store.put(key(engine="a"), b"for a")
    held = entry_file(store).read_bytes()
    other = store.path / f"{key(engine='b').digest}.entry"
    other.write_bytes(held)
    assert store.get(key(engine="b")) is None
    assert store.get(key(engine="a")) == b"for a"


def test_forged_entry_with_a_right_digest_and_no_key_is_refused(store: Store) -> None:
    store.put(key(), b"true")
    entry_file(store).write_bytes(b"".join(pack(key(), b"forged", secret=b"\0" * 32)))
    assert store.get(key()) is None


def test_unpack_says_what_is_wrong() -> None:
    secret = b"s" * 32
    with pytest.raises(StoreError, match="another key"):
        unpack(Bytes(b"".join(pack(key(engine="a"), b"x", secret))), key(engine="b"), secret)


def test_folder_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    store = Store(folder)
    with pytest.warns(StoreWarning, match="chmod 700"):
        assert store.put(key(), b"x") is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get(key()) is None
    assert list(folder.iterdir()) == []


def test_symbolic_link_for_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.warns(StoreWarning, match="is not a folder, or a link"):
        assert Store(tmp_path / "link").put(key(), b"x") is False


def test_symbolic_link_for_an_entry_is_not_followed(store: Store, tmp_path: Path) -> None:
    store.put(key(), b"x")
    path = entry_file(store)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert store.get(key()) is None
    assert not path.is_symlink()
    assert (tmp_path / "moved").exists()


def test_pipe_for_an_entry_does_not_hang(store: Store) -> None:
    store.put(key(), b"x")
    path = entry_file(store)
    path.unlink()
    os.mkfifo(path)
    assert store.get(key()) is None


def test_disk_that_is_full_costs_a_warning(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(key(), b"x")

    def full(fd: int, held: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.warns(StoreWarning, match="No space left"):
            assert store.put(key(engine="b"), b"y") is False
    assert store.get(key()) == b"x"
    assert not list(store.path.glob(".part-*"))


def test_miss_names_the_field_that_differs(store: Store) -> None:
    store.put(key(engine="openvino 2026.3", threads=2), b"x")
    store.put(key(engine="onnxruntime 1.31", threads=4), b"x")
    said = store.why_missed(key(engine="openvino 2026.4", threads=2))
    assert said == "The nearest artifact differs in engine: openvino 2026.3 -> openvino 2026.4."


def test_of_long_fields_only_what_differs_is_told(store: Store) -> None:
    around = '{"threads": 2, "flags": "' + "f" * 200 + '", "engine": "%s", "more": "' + "m" * 200
    store.put(key(way=around % "2026.3"), b"x")
    said = store.why_missed(key(way=around % "2026.4"))
    assert '"engine": "2026.3", "more"' in said
    assert '"engine": "2026.4", "more"' in said
    assert len(said) < 160


def test_of_entries_as_near_the_one_used_last_is_named(store: Store) -> None:
    for version, used in (("2026.2", 200), ("2026.3", 300), ("2026.1", 100)):
        store.put(key(engine=version), b"x")
        os.utime(store.path / f"{key(engine=version).digest}.entry", (used, used))
    assert "engine: 2026.3 -> 2026.4." in store.why_missed(key(engine="2026.4"))


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", limit=2**20)
    for number in range(4):
        store.put(key(number=number), bytes(1000))
        os.utime(store.path / f"{key(number=number).digest}.entry", (number, number))
    assert store.get(key(number=0)) is not None
    assert store.prune(2600) == 2
    kept = {dict(entry.key.fields)["number"] for entry in store.entries()}
    assert kept == {"0", "3"}


def test_threads_that_want_the_same_make_it_once(store: Store) -> None:
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"made"

    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.once(key(), make))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"made"] * 8
    assert len(made) == 1


def test_verify_removes_what_is_not_right(store: Store) -> None:
    store.put(key(engine="a"), b"a")
    store.put(key(engine="b"), b"b")
    (store.path / f"{key(engine='a').digest}.entry").write_bytes(b"rubbish")
    (store.path / f".part-999999-{'0' * 12}-{'0' * 16}").write_bytes(b"left")
    os.utime(store.path / f".part-999999-{'0' * 12}-{'0' * 16}", (1, 1))
    found = store.verify()
    assert (found.good, len(found.bad), found.swept) == (1, 1, 1)
    assert store.verify().bad == ()
