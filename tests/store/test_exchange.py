"""Entries carried in a file: all of it is checked, and a stranger's word is not believed."""

import json
import os
import random
from pathlib import Path

import pytest

from fusewire.errors import StoreError
from fusewire.store.blob import pack
from fusewire.store.disk import Store
from fusewire.store.exchange import export, take
from fusewire.store.key import DATA, IMPORTED, KINDS, LOCAL, VOUCHED, Key

MAGIC = b"FUSEWIRX"
CARRIED = KINDS - LOCAL


def key(kind: str, **fields: object) -> Key:
    return Key.of(kind, graph="ab", **fields)


def payload(kind: str) -> bytes:
    return json.dumps({"of": kind}).encode()


@pytest.fixture
def full(tmp_path: Path) -> Store:
    """Have an entry of every kind."""
    store = Store(tmp_path / "full")
    for kind in KINDS:
        store.put(key(kind), payload(kind))
    return store


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of somebody else."""
    with monkeypatch.context() as patch:
        patch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "theirs"))
        store = Store(tmp_path / "empty")
        assert not store.is_off
    return store


def of_same_user(store: Store) -> Store:
    """Open a store with the key of this process."""
    return Store(store.path)


def test_export_holds_no_code_unless_asked(full: Store, tmp_path: Path) -> None:
    assert export(full, tmp_path / "file").kept.keys() == DATA
    assert export(full, tmp_path / "file", KINDS).kept.keys() == CARRIED
    assert [path.name for path in tmp_path.glob("file*")] == ["file"]


def test_what_needs_belief_is_taken_from_the_same_user_only(
    full: Store, empty: Store, tmp_path: Path
) -> None:
    export(full, tmp_path / "file", KINDS)
    moved = take(empty, tmp_path / "file")
    assert moved.kept.keys() == CARRIED - VOUCHED
    assert len(moved.refused) == len(VOUCHED - LOCAL)
    assert all("this user's key" in said for said in moved.refused)
    assert all((empty.get(key(kind)) is None) == (kind in VOUCHED) for kind in KINDS)


def test_same_user_takes_everything(full: Store, empty: Store, tmp_path: Path) -> None:
    export(full, tmp_path / "file", KINDS)
    own = of_same_user(empty)
    assert take(own, tmp_path / "file").kept.keys() == CARRIED
    assert all(own.get(key(kind)) == payload(kind) for kind in CARRIED)


def test_what_is_true_of_one_machine_is_taken_from_nobody(
    full: Store, empty: Store, tmp_path: Path
) -> None:
    opened = full.opened()
    assert opened is not None
    for kind in LOCAL:
        entry = b"".join(pack(key(kind), payload(kind), opened[1]))
        (tmp_path / "file").write_bytes(MAGIC + entry)
        own = of_same_user(empty)
        moved = take(own, tmp_path / "file")
        assert "on the machine that wrote it" in moved.refused[0]
        assert own.get(key(kind)) is None


def test_what_is_here_stays(full: Store, empty: Store, tmp_path: Path) -> None:
    export(full, tmp_path / "file", {"tuning"})
    empty.put(key("tuning"), b'{"ours": 1}')
    assert take(empty, tmp_path / "file").present == 1
    assert empty.get(key("tuning")) == b'{"ours": 1}'


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (b"no json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b"9" * 10_000, "not JSON"),
        (b'"' + b"x" * 2**24 + b'"', "the limit is"),
    ],
)
def test_data_that_is_not_data_is_refused(
    empty: Store, tmp_path: Path, held: bytes, said: str
) -> None:
    entry = b"".join(pack(key("measurement"), held, bytes(32)))
    (tmp_path / "file").write_bytes(MAGIC + entry)
    (refused,) = take(empty, tmp_path / "file").refused
    assert said in refused
    assert empty.get(key("measurement")) is None


def _entry(header: object, rest: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return MAGIC + b"FUSEWIR3" + len(text).to_bytes(4, "big") + text + rest


@pytest.mark.parametrize(
    "held",
    [
        b"",
        b"FUSEWIR3",
        MAGIC + b"x",
        MAGIC + b"FUSEWIR3\xff\xff\xff\xff",
        _entry([]),
        _entry({"kind": [], "fields": [], "size": 0}),
        _entry({"kind": "tuning", "fields": [[1, 2]], "size": 0}),
        _entry({"kind": "tuning", "fields": [], "size": -1}),
        _entry({"kind": "tuning", "fields": [], "size": True}),
        _entry({"kind": "tuning", "fields": [], "size": 2**70}, b"x" * 100),
        _entry({"kind": "tuning", "fields": [], "size": 5}, b"12345"),
        _entry({"kind": "pickle", "fields": [], "size": 0}, bytes(32)),
    ],
)
def test_file_that_is_none_is_refused_whole(empty: Store, tmp_path: Path, held: bytes) -> None:
    (tmp_path / "file").write_bytes(held)
    with pytest.raises(StoreError):
        take(empty, tmp_path / "file")
    assert list(empty.entries()) == []


def test_claim_of_size_costs_no_memory(empty: Store, tmp_path: Path) -> None:
    size = 2**40
    with (tmp_path / "file").open("wb") as file:
        file.write(_entry({"kind": "tuning", "fields": [], "size": size}))
        file.truncate(file.tell() + size + 32 * (size // 2**24 + 1))
    (refused,) = take(empty, tmp_path / "file").refused
    assert "the limit is" in refused


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_only_a_plain_file_is_read(empty: Store, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()
    with pytest.raises(StoreError, match="not a regular file"):
        take(empty, path)


def marked(kind: str) -> bytes:
    """Give a payload as it is kept of a stranger."""
    if kind != "quarantine":
        return payload(kind)
    return json.dumps({**json.loads(payload(kind)), IMPORTED: True}).encode()


def test_mutated_files_are_refused_in_part_or_whole(
    full: Store, empty: Store, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    export(full, path, KINDS)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        held = bytearray(whole)
        held[draw.randrange(len(held))] ^= 1 << draw.randrange(8)
        path.write_bytes(held[: draw.choice((len(held), draw.randrange(len(held))))])
        try:
            moved = take(empty, path)
        except StoreError:
            continue
        assert moved.kept.total() + moved.present + len(moved.refused) <= len(KINDS)
        for kind in KINDS:
            assert empty.get(key(kind)) in (None, marked(kind))
