"""What a shared store gives is used only if it is signed for this key by somebody believed."""

import hashlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.object_servers import ObjectServer, is_installed, serve
from fusewire.errors import RemoteError, SignatureError, StoreError, UnknownSignerError
from fusewire.session.context import CompileContext
from fusewire.store.blob import Provenance
from fusewire.store.brought import believed, forget_others
from fusewire.store.disk import Store
from fusewire.store.key import Key
from fusewire.store.remote import (
    INLINE,
    Pointer,
    RemoteClient,
    blob_path,
    lease_path,
    perform,
    pointer_path,
)
from fusewire.store.sharing import Release, SharedStore
from fusewire.store.signing import AllowedSigner, AllowedSigners, Signer, allow
from fusewire.store.tier import Breaker, Patience, RemoteTier
from fusewire.store.transport import ObjectTransport, open_transport

SMALL = Key.of("measurement", graph="ab12", engine="openvino 2026.4.1")
OTHER = Key.of("measurement", graph="cd34", engine="openvino 2026.4.1")
LARGE = Key.of("artifact", region="ab12", backend="xla")
DATA = json.dumps({"seconds": 0.25}).encode()
CODE = random.Random(5).randbytes(3 * INLINE)


def believing(*signers: Signer) -> AllowedSigners:
    return AllowedSigners(
        tuple(AllowedSigner(one.id, f"signer{at}") for at, one in enumerate(signers))
    )


@pytest.fixture
def signer() -> Signer:
    return Signer.generate()


@pytest.fixture
def client(signer: Signer, tmp_path: Path) -> Iterator[RemoteClient]:
    seen = Store(tmp_path / "reader")
    yield RemoteClient(believing(signer), signer, seen)
    seen.close()


@pytest.fixture
def folder(tmp_path: Path) -> ObjectTransport:
    return open_transport(str(tmp_path / "shared"))


@pytest.fixture(scope="module", params=["rclone", "moto"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ObjectServer]:
    if not is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    with serve(request.param, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def bucket(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> ObjectTransport:
    for name, text in server.variables.items():
        monkeypatch.setenv(name, text)
    return open_transport(f"{server.url}/{tmp_path.name}")


def fetched(client: RemoteClient, transport: ObjectTransport, key: Key) -> bytes | None:
    entry = perform(client.fetch(key), transport)
    return None if entry is None else entry.payload


def test_server_returns_what_was_published(client: RemoteClient, bucket: ObjectTransport) -> None:
    assert fetched(client, bucket, SMALL) is None
    perform(client.publish(SMALL, DATA, 1), bucket)
    perform(client.publish(LARGE, CODE, 1), bucket)
    assert fetched(client, bucket, SMALL) == DATA
    assert fetched(client, bucket, LARGE) == CODE
    paths = {found.path for found in bucket.list("")}
    assert paths == {
        pointer_path(SMALL),
        pointer_path(LARGE),
        blob_path(hashlib.sha256(CODE).hexdigest()),
    }
    bucket.remove(pointer_path(SMALL))
    bucket.remove(pointer_path(SMALL))
    assert fetched(client, bucket, SMALL) is None


def test_only_servers_with_conditional_writes_refuse_the_second_lease(
    bucket: ObjectTransport, server: ObjectServer
) -> None:
    path = lease_path(SMALL, 0)
    assert bucket.put(path, b"one", only_new=True)
    assert bucket.put(path, b"two", only_new=True) is (server.name == "rclone")


def test_object_larger_than_asked_for_is_refused(bucket: ObjectTransport) -> None:
    bucket.put("cas/00/large", bytes(100_000))
    with pytest.raises(RemoteError, match="100,000 bytes"):
        bucket.get("cas/00/large", 99_999)


def test_address_of_another_kind_is_refused() -> None:
    with pytest.raises(RemoteError, match="not the address of a shared store"):
        open_transport("ftp://example.org/x")


def test_unknown_signer_is_refused(client: RemoteClient, folder: ObjectTransport) -> None:
    stranger = RemoteClient(AllowedSigners(), Signer.generate())
    perform(stranger.publish(LARGE, CODE, 1), folder)
    with pytest.raises(UnknownSignerError):
        fetched(client, folder, LARGE)


def test_revoked_signer_is_refused(
    client: RemoteClient, signer: Signer, folder: ObjectTransport
) -> None:
    perform(client.publish(LARGE, CODE, 1), folder)
    (allowed,) = client.signers.signers
    client.signers = AllowedSigners((replace(allowed, is_revoked=True),))
    with pytest.raises(SignatureError, match="revoked"):
        fetched(client, folder, LARGE)


def test_older_generation_than_one_seen_is_refused(
    client: RemoteClient, folder: ObjectTransport
) -> None:
    perform(client.publish(SMALL, DATA, 7), folder)
    old = folder.get(pointer_path(SMALL), 10**6)
    perform(client.publish(SMALL, b'{"seconds": 0.5}', 8), folder)
    assert fetched(client, folder, SMALL) == b'{"seconds": 0.5}'
    assert old is not None
    folder.put(pointer_path(SMALL), old)
    with pytest.raises(SignatureError, match="generation 7"):
        fetched(client, folder, SMALL)


def test_expired_entry_is_refused(client: RemoteClient, folder: ObjectTransport) -> None:
    perform(client.publish(SMALL, DATA, 1, expires=int(time.time()) - 1), folder)
    with pytest.raises(SignatureError, match="expired"):
        fetched(client, folder, SMALL)


def test_entry_replayed_for_another_key_is_refused(
    client: RemoteClient, folder: ObjectTransport
) -> None:
    perform(client.publish(SMALL, DATA, 1), folder)
    held = folder.get(pointer_path(SMALL), 10**6)
    assert held is not None
    folder.put(pointer_path(OTHER), held)
    with pytest.raises(StoreError, match="another key"):
        fetched(client, folder, OTHER)
    # Even if the pointer says that it belongs there.
    renamed = replace(Pointer.from_bytes(held), key=OTHER)
    folder.put(pointer_path(OTHER), renamed.to_bytes())
    with pytest.raises(SignatureError, match="something else"):
        fetched(client, folder, OTHER)


def test_other_payload_is_refused(client: RemoteClient, folder: ObjectTransport) -> None:
    perform(client.publish(LARGE, CODE, 1), folder)
    path = blob_path(hashlib.sha256(CODE).hexdigest())
    folder.put(path, CODE[:-1] + bytes([CODE[-1] ^ 1]))
    with pytest.raises(StoreError, match="digest"):
        fetched(client, folder, LARGE)
    folder.remove(path)
    with pytest.raises(StoreError, match="not in the shared store"):
        fetched(client, folder, LARGE)


def test_who_has_no_private_key_cannot_publish(folder: ObjectTransport) -> None:
    reader = RemoteClient(AllowedSigners())
    with pytest.raises(StoreError, match="private key"):
        perform(reader.publish(SMALL, DATA, 1), folder)


@pytest.mark.parametrize("kind", ["stamp", "quarantine"])
def test_what_is_this_machines_own_is_not_shared(
    kind: str, client: RemoteClient, folder: ObjectTransport
) -> None:
    with pytest.raises(StoreError, match="not shared"):
        perform(client.publish(Key.of(kind, x=1), DATA, 1), folder)


def test_local_miss_is_filled_by_the_shared_store(
    client: RemoteClient, folder: ObjectTransport, tmp_path: Path
) -> None:
    perform(client.publish(LARGE, CODE, 1), folder)
    local = Store(tmp_path / "local")
    tier = RemoteTier(local, client, lambda: folder)
    tiered = Store(local.path, tier=tier)
    block = tiered.block(LARGE)
    assert block is not None
    assert bytes(block) == CODE
    assert local.get(LARGE) == CODE
    assert local.provenance(LARGE) == Provenance(client.signers.signers[0].id, 1, None)
    assert tiered.get(SMALL) is None


def test_entries_of_a_signer_go_when_the_signer_is_revoked(
    client: RemoteClient, folder: ObjectTransport, tmp_path: Path
) -> None:
    local = Store(tmp_path / "local")
    perform(client.publish(LARGE, CODE, 1), folder)
    shared = SharedStore(folder, client)
    assert shared.pull(local, lambda key: True).kept == {"artifact": 1}
    local.put(OTHER, DATA)
    assert forget_others(local, client.signers) == 0
    assert local.get(LARGE) == CODE
    # What says so is part of the entry, and stays as long as it.
    for entry in list(local.entries("stamp")):
        local.drop(entry.key)
    revoked = AllowedSigners((replace(client.signers.signers[0], is_revoked=True),))
    assert forget_others(local, revoked) == 1
    assert local.get(LARGE) is None
    assert local.get(OTHER) == DATA
    assert forget_others(local, revoked) == 0


def test_entries_of_a_generation_go_when_it_is_not_allowed_any_more(
    client: RemoteClient, folder: ObjectTransport, tmp_path: Path
) -> None:
    local = Store(tmp_path / "local")
    perform(client.publish(LARGE, CODE, 1), folder)
    perform(client.publish(SMALL, DATA, 2), folder)
    assert SharedStore(folder, client).pull(local, lambda key: True).kept.total() == 2
    later = AllowedSigners((replace(client.signers.signers[0], least_generation=2),))
    assert forget_others(local, later) == 1
    assert local.get(LARGE) is None
    assert local.get(SMALL) == DATA


def test_store_is_looked_through_again_when_the_list_is_gone(
    client: RemoteClient,
    folder: ObjectTransport,
    signer: Signer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tmp_path / "config"
    config.mkdir(mode=0o700)
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(config))
    allow(AllowedSigner(signer.id, "me"))
    perform(client.publish(LARGE, CODE, 1), folder)
    local = Store(tmp_path / "local")
    assert SharedStore(folder, client).pull(local, lambda key: True).kept.total() == 1
    assert believed.__wrapped__(local).get(LARGE) == CODE
    (config / "allowed_signers").unlink()
    assert believed.__wrapped__(local).get(LARGE) is None


def test_folder_that_cannot_be_searched_does_not_stop_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Store(tmp_path / "local")
    assert believed.__wrapped__(local) is local

    def denied(self: Path, **options: object) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", denied)
    assert believed.__wrapped__(local) is local


def test_entry_that_was_brought_expires(
    client: RemoteClient, folder: ObjectTransport, tmp_path: Path
) -> None:
    local = Store(tmp_path / "local")
    soon = int(time.time()) + 2
    perform(client.publish(LARGE, CODE, 1, expires=soon), folder)
    assert SharedStore(folder, client).pull(local, lambda key: True).kept.total() == 1
    assert local.get(LARGE) == CODE
    while time.time() < soon:
        time.sleep(0.05)
    assert local.get(LARGE) is None
    assert list(local.entries("artifact")) == []


def test_revoked_signer_is_forgotten_without_a_shared_store(
    client: RemoteClient, folder: ObjectTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("FUSEWIRE_REMOTE", raising=False)
    path = allow(client.signers.signers[0])
    perform(client.publish(LARGE, CODE, 1), folder)
    for name, change, kept in (("a", "", CODE), ("b", " revoked", None), ("c", " what?", None)):
        path.write_text(path.read_text().rstrip() + change + "\n")
        local = Store(tmp_path / name)
        assert SharedStore(folder, client).pull(local, lambda key: True).kept.total() == 1
        assert CompileContext(store=local).records.get(LARGE) == kept


def test_collector_keeps_what_others_may_believe(
    client: RemoteClient, folder: ObjectTransport
) -> None:
    perform(client.publish(LARGE, CODE, 1), folder)
    stranger = SharedStore(folder, RemoteClient(AllowedSigners()))
    assert stranger.collect(3600, grace=-1).pointers == 0
    revoked = AllowedSigners((replace(client.signers.signers[0], is_revoked=True),))
    assert SharedStore(folder, RemoteClient(revoked)).collect(3600, grace=-1).pointers == 1
    assert list(folder.list("")) == []


def test_push_pull_verify_and_collect(
    client: RemoteClient, bucket: ObjectTransport, tmp_path: Path
) -> None:
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    source.put(SMALL, DATA)
    source.put(LARGE, CODE)
    source.put(Key.of("stamp", x=1), DATA)
    shared = SharedStore(bucket, client)
    assert shared.push(source, Release.now()).kept == {"measurement": 1, "artifact": 1}
    assert shared.push(source, Release.now()).present == 2
    assert shared.verify(reads_all=True).good == 2
    moved = shared.pull(target, lambda key: key.kind == "artifact")
    assert moved.kept == {"artifact": 1}
    assert target.get(LARGE) == CODE
    # What was pulled is not pushed as one's own.
    assert not shared.push(target, Release.now()).kept
    bucket.put(lease_path(SMALL, 0), b"x")
    bucket.put(pointer_path(OTHER), b"garbage")
    (bad,) = shared.verify().bad
    assert "not a pointer" in bad
    trial = shared.collect(3600, is_trial=True, grace=-1)
    assert (trial.pointers, trial.blobs, trial.leases) == (1, 0, 1)
    assert shared.collect(3600, grace=-1) == trial
    assert shared.verify(reads_all=True).bad == ()
    assert shared.collect(-10, grace=-10).blobs == 1
    assert list(bucket.list("")) == []


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_breaker_rests_longer_after_each_failure() -> None:
    clock = Clock()
    breaker = Breaker(clock, random.Random(1))
    assert not breaker.is_open
    rests = []
    for _ in range(12):
        breaker.failed()
        start = clock.now
        while breaker.is_open:
            clock.now += 0.1
        rests.append(clock.now - start)
    assert 0.4 < rests[0] < 1.7
    assert rests[5] > 10
    assert max(rests) < 181
    breaker.succeeded()
    assert not breaker.is_open


def test_patience_ends_and_is_granted_again() -> None:
    clock = Clock()
    patience = Patience(clock, 0.2)
    patience.spend(0.15)
    assert patience.left == pytest.approx(0.05)
    patience.spend(0.15)
    assert patience.left == 0
    clock.now += 301
    assert patience.left == pytest.approx(0.2)


class SlowTransport:
    """Answers nothing for a long time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def get(self, path: str, most: int) -> bytes | None:
        self.asked += 1
        time.sleep(self.seconds)
        raise RemoteError("503")

    def put(self, path: str, payload: bytes, *, only_new: bool = False) -> bool:
        raise RemoteError("full")

    def list(self, prefix: str) -> Iterator[None]:
        raise RemoteError("down")

    def remove(self, path: str) -> None:
        raise RemoteError("down")


@pytest.mark.parametrize("seconds", [0.0, 0.05, 2.0])
def test_store_that_fails_or_hangs_delays_all_misses_by_a_fifth_of_a_second(
    seconds: float, client: RemoteClient, tmp_path: Path
) -> None:
    slow = SlowTransport(seconds)
    local = Store(tmp_path / "local")
    tiered = Store(local.path, tier=RemoteTier(local, client, lambda: slow))  # type: ignore[arg-type, return-value] # it lists nothing
    start = time.monotonic()
    for number in range(50):
        assert tiered.get(Key.of("plan", number=number)) is None
    assert time.monotonic() - start < 0.2 + 0.15
    assert slow.asked < 10
