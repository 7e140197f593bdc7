"""What a signature covers, who may sign, and what is refused."""

import base64
import hashlib
import json
import os
import random
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fusewire.cli import main
from fusewire.errors import SignatureError, StoreError, UnknownSignerError
from fusewire.store.disk import Store
from fusewire.store.key import Key, canonical_json
from fusewire.store.signing import (
    _WEAK_KEYS,
    AllowedSigner,
    AllowedSigners,
    Signer,
    Statement,
    _envelope,
    _signed_bytes,
    allow,
)

KEY = Key.of("artifact", graph="ab")
SIGNER = Signer.generate()
# Workers of a test run name a test by its parameters, which must not be random.
PUBLIC = base64.b64encode(bytes(range(32))).decode()
ALLOWED = AllowedSigners((AllowedSigner(SIGNER.id, "builder"),))


def statement(payload: bytes = b"code", key: Key = KEY, **fields: object) -> Statement:
    return replace(Statement.of(key, payload, format=1), **fields)  # type: ignore[arg-type] # fields of a test


def refusal(
    envelope: bytes,
    expected: Statement | None = None,
    allowed: AllowedSigners = ALLOWED,
    store: Store | None = None,
    release: str | None = None,
) -> str:
    with pytest.raises(SignatureError) as caught:
        allowed.verify(envelope, expected or statement(), store, release)
    assert not isinstance(caught.value, UnknownSignerError)
    return str(caught.value)


def test_what_a_signer_of_the_list_signed_is_believed() -> None:
    signed = Statement.of(
        KEY, b"code", format=1, versions={"jax": "0.10"}, generation=7, expires=2**40
    )
    assert signed.versions == (("jax", "0.10"),)
    believed = ALLOWED.verify(SIGNER.sign(signed), statement())
    assert believed == replace(signed, signer=SIGNER.id)


def test_signer_who_is_not_on_the_list_is_unknown() -> None:
    stranger = Signer.generate()
    with pytest.raises(UnknownSignerError, match="allowed_signers"):
        ALLOWED.verify(stranger.sign(statement()), statement())


def test_stranger_who_claims_to_be_on_the_list_is_refused() -> None:
    envelope = json.loads(Signer.generate().sign(statement()))
    body = json.loads(base64.b64decode(envelope["payload"]))
    body["signer"] = SIGNER.id
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    envelope["payload"] = base64.b64encode(text).decode()
    envelope["signatures"][0]["keyid"] = SIGNER.id
    forged = json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()
    assert "forged" in refusal(forged)


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (statement(b"other"), "payload"),
        (statement(key=Key.of("artifact", graph="cd")), "key"),
        (statement(kind="plan"), "kind"),
        (statement(format=2), "format 1, and this version reads 2"),
    ],
)
def test_signature_for_something_else_is_refused(expected: Statement, said: str) -> None:
    assert said in refusal(SIGNER.sign(statement()), expected)


def test_expired_and_revoked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    late = SIGNER.sign(statement(expires=1000))
    assert "expired" in refusal(late)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert "expired" in refusal(late)
    monkeypatch.setattr(time, "time", lambda: 999.9)
    ALLOWED.verify(late, statement())
    revoked = AllowedSigners((AllowedSigner(SIGNER.id, "builder", is_revoked=True),))
    assert "revoked" in refusal(SIGNER.sign(statement()), allowed=revoked)


def test_generation_below_the_least_or_one_seen_before_is_refused(tmp_path: Path) -> None:
    old, new = (SIGNER.sign(statement(generation=number)) for number in (1, 2))
    least = AllowedSigners((AllowedSigner(SIGNER.id, "builder", least_generation=2),))
    assert "only 2" in refusal(old, allowed=least)
    store = Store(tmp_path / "cache", secret=bytes(32))
    ALLOWED.verify(old, statement(), store)
    ALLOWED.verify(new, statement(), store)
    ALLOWED.verify(new, statement(), store)
    assert "2 was seen" in refusal(old, store=store)
    other = statement(key=Key.of("artifact", graph="cd"))
    ALLOWED.verify(SIGNER.sign(replace(other, generation=1)), other, store)


class RacedStore(Store):
    """Another process records a newer generation before this one has the lock."""

    newer = 9

    @contextmanager
    def alone(self, key: Key, seconds: float = 600.0) -> Iterator[None]:
        if self.newer:
            self.put(key, canonical_json({"generation": self.newer}))
            self.newer = 0
        with super().alone(key, seconds):
            yield


def test_generation_that_another_process_saw_meanwhile_stays(tmp_path: Path) -> None:
    store = RacedStore(tmp_path / "cache", secret=bytes(32))
    assert "9 was seen" in refusal(SIGNER.sign(statement(generation=2)), store=store)
    assert "9 was seen" in refusal(SIGNER.sign(statement(generation=5)), store=store)


def released(name: str | None, generation: int, graph: str = "ab") -> tuple[bytes, Statement]:
    versions = () if name is None else (("release", name),)
    own = statement(key=Key.of("artifact", graph=graph))
    return SIGNER.sign(replace(own, versions=versions, generation=generation)), own


def test_release_is_signed_as_one_and_the_newest_that_was_seen(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", secret=bytes(32))
    envelope, own = released("r", 2)
    assert "no cache that knows the newest" in refusal(envelope, own, release="r")
    ALLOWED.verify(envelope, own, store, "r")
    unnamed, own = released(None, 2)
    assert "signed without a release, and a release of r" in refusal(
        unnamed, own, store=store, release="r"
    )
    other, own = released("other", 2)
    assert "signed as a release of other" in refusal(other, own, store=store, release="r")
    # Another model of the release, older than what was seen of the release.
    older, own = released("r", 1, "cd")
    assert "2 was seen" in refusal(older, own, store=store, release="r")
    older, own = released("r", 1, "ef")
    ALLOWED.verify(older, own, store)


def test_signature_is_checked_once_for_a_store_that_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope = SIGNER.sign(statement())
    forged = envelope.replace(json.loads(envelope)["signatures"][0]["sig"].encode(),
                              base64.b64encode(bytes(64)))  # fmt: skip
    store = Store(tmp_path / "cache", secret=bytes(32))
    ALLOWED.verify(envelope, statement(), store)
    for _ in range(2):
        assert "forged" in refusal(forged, store=store)
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    ALLOWED.verify(envelope, statement(), store)
    with pytest.raises(UnknownSignerError):
        ALLOWED.verify(forged, statement(), store)
    with pytest.raises(UnknownSignerError):
        ALLOWED.verify(envelope, statement(), Store(tmp_path / "other", secret=bytes(32)))


def test_every_mutated_envelope_is_refused() -> None:
    good, random_ = SIGNER.sign(statement()), random.Random(0)
    for _ in range(2000):
        bad = bytearray(good)
        place = random_.randrange(len(bad))
        match random_.randrange(3):
            case 0:
                bad[place] ^= 1 << random_.randrange(8)
            case 1:
                del bad[place : place + random_.randrange(1, 9)]
            case _:
                bad[place:place] = random_.randbytes(random_.randrange(1, 9))
        with pytest.raises(SignatureError):
            ALLOWED.verify(bytes(bad), statement())


@pytest.mark.parametrize(
    "held", [b"", b"[" * 60_000, b"{}", b'{"payloadType": 1}', b"0" * 2**17, b'{"a": 1e999}']
)
def test_what_is_no_envelope_is_refused(held: bytes) -> None:
    refusal(held)


def test_envelope_beyond_64_kib_is_not_parsed() -> None:
    assert "is not a JSON object" in refusal(b"0" * 2**16)
    assert "65,537 bytes; it is too large" in refusal(b"0" * (2**16 + 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", 3),
        ("signer", None),
        ("key", "zz" * 32),
        ("payload", "AB" * 32),
        ("format", True),
        ("generation", -1),
        ("generation", 2**53),
        ("expires", 1.5),
        ("versions", []),
        ("versions", {"jax": 1}),
        ("versions", {"jax": 1, "numpy": "2"}),
    ],
)
def test_statement_with_a_field_of_another_kind_is_refused(name: str, value: object) -> None:
    about = {**json.loads(statement().to_bytes()), name: value}
    with pytest.raises(SignatureError, match="statement is malformed"):
        Statement.from_bytes(canonical_json(about))


def test_statement_is_read_as_canonical_json_of_its_fields_alone() -> None:
    most = statement(generation=2**53 - 1)
    assert Statement.from_bytes(most.to_bytes()) == most
    with pytest.raises(SignatureError, match="not canonical"):
        Statement.from_bytes(most.to_bytes() + b" ")
    more = canonical_json({**json.loads(most.to_bytes()), "more": 1})
    with pytest.raises(SignatureError, match="other fields"):
        Statement.from_bytes(more)
    # The envelope says the same of what is in it.
    assert "other fields" in refusal(_envelope(more, SIGNER.id, bytes(64)))


@pytest.mark.parametrize("expires", ["[]", "false", "-1", "1.5", '""', "1e400", "9" * 5000])
def test_statement_with_an_odd_expiry_is_refused(expires: str) -> None:
    held = statement().to_bytes().replace(b'"expires":null', f'"expires":{expires}'.encode())
    assert expires.encode() in held
    with pytest.raises(SignatureError):
        Statement.from_bytes(held)


def test_private_key_is_closed_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    SIGNER.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert Signer.read(path).id == SIGNER.id
    with pytest.raises(SignatureError, match="never replaced"):
        Signer.generate().write(path)
    path.chmod(0o640)
    with pytest.raises(SignatureError, match="mode 640"):
        Signer.read(path)


def test_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    for size, said in ((2**14, "keygen"), (2**14 + 1, "16,385 bytes; that is too large")):
        path.write_bytes(b"-" * size)
        path.chmod(0o600)
        with pytest.raises(SignatureError, match=said):
            Signer.read(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_list_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "allowed_signers"
    path.write_text(f"{SIGNER.id} builder\n")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(SignatureError, match="found owner 12345"):
        AllowedSigners.read(tmp_path)


@pytest.mark.parametrize("held", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_file_that_is_no_key_is_refused(tmp_path: Path, held: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(held)
    path.chmod(0o600)
    with pytest.raises(SignatureError, match="keygen"):
        Signer.read(path)


def test_list_says_who_is_revoked_and_from_which_generation(tmp_path: Path) -> None:
    other = Signer.generate().id
    (tmp_path / "allowed_signers").write_text(
        f"# ours\n{SIGNER.id} builder generation=4\n\n{other} old-builder revoked # left\n"
    )
    (tmp_path / "allowed_signers").chmod(0o644)
    assert AllowedSigners.read(tmp_path).signers == (
        AllowedSigner(SIGNER.id, "builder", least_generation=4),
        AllowedSigner(other, "old-builder", is_revoked=True),
    )
    assert AllowedSigners.read(tmp_path / "none") == AllowedSigners()


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "!!!! me",
        "AAAA me",
        PUBLIC,
        f"{PUBLIC} me revokd",
        f"{PUBLIC} me generation=x",
        f"{PUBLIC} me 12",
        f"{PUBLIC} me generation=\u0661",
        f"{PUBLIC} me generation={'1' * 16}",
        # The same 32 bytes in another base64; the second is a key for which anybody can sign.
        f"{PUBLIC[:-2]}9= me",
        f"{'A' * 42}B= me",
    ],
    ids=range(11),
)
def test_list_with_a_line_that_cannot_be_read_is_unusable(line: str) -> None:
    with pytest.raises(SignatureError, match="line 1"):
        AllowedSigners.parse(line)


def test_line_is_read_as_it_was_written() -> None:
    for signer in (
        AllowedSigner(PUBLIC, "me"),
        AllowedSigner(PUBLIC, "me", is_revoked=True),
        AllowedSigner(PUBLIC, "me", least_generation=int("9" * 15)),
    ):
        assert signer.is_readable
        assert AllowedSigners.parse(signer.line()).signers == (signer,)
    assert not AllowedSigner(PUBLIC, "me#").is_readable
    with pytest.raises(SignatureError, match="line 2 is not a signer, or the second one"):
        AllowedSigners.parse(f"{PUBLIC} me\n{PUBLIC} me revoked")


@pytest.mark.parametrize("before", ["", "# ours\n", "# ours"])
def test_signer_is_added_to_the_list_once(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path))
    tmp_path.chmod(0o700)
    path = tmp_path / "allowed_signers"
    path.write_text(before)
    path.chmod(0o600)
    for _ in range(2):
        assert allow(AllowedSigner(PUBLIC, "me")) == path
        lines = before.splitlines()
        assert path.read_text() == "".join(f"{line}\n" for line in (*lines, f"{PUBLIC} me"))


def test_list_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "allowed_signers"
    path.write_text(f"{SIGNER.id} builder\n")
    path.chmod(0o666)
    with pytest.raises(SignatureError, match="mode 666"):
        AllowedSigners.read(tmp_path)


def test_without_the_library_everyone_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = SIGNER.sign(statement())
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UnknownSignerError, match=r"Run: pip install .*(cryptography|remote)"):
        ALLOWED.verify(envelope, statement())


def test_keygen_makes_a_key_that_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_CONFIG", str(tmp_path / "config"))
    words = ["store", "keygen", "--name", "me", "--allow", "--json"]
    report = json.loads(CliRunner().invoke(main, words).stdout)
    assert report["line"].endswith(" me")
    signer = Signer.read(Path(report["private"]))
    assert AllowedSigners.read().verify(signer.sign(statement()), statement()).signer == signer.id
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1
    assert "never replaced" in again.output
    stated = CliRunner().invoke(main, [*words[:2], "-o", str(tmp_path / "other.pem")])
    assert stated.exit_code == 0, stated.output
    assert "Keep it as you would keep a password" in stated.output
    allow(AllowedSigner(Signer.generate().id, "you"))
    assert [one.name for one in AllowedSigners.read().signers] == ["me", "you"]
    listed = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["store", "signers"])
    assert "you" in listed.output
    assert max(map(len, listed.output.splitlines())) <= 80


def test_errors_are_those_of_the_store() -> None:
    assert issubclass(UnknownSignerError, SignatureError)
    assert issubclass(SignatureError, StoreError)
    assert os.name == "posix"


def signed_without_a_key(public: str) -> bytes:
    """Sign for a public key of order 4 without a private one: a multiple of 4 of it is nothing."""
    order = 2**252 + 27742317777372353535851937790883648493
    body = replace(statement(), signer=public).to_bytes()
    for number in range(100):
        seed = number.to_bytes(32, "little")
        point = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
        digest = bytearray(hashlib.sha512(seed).digest()[:32])
        digest[0] &= 248
        digest[31] = (digest[31] & 127) | 64
        challenge = hashlib.sha512(point + base64.b64decode(public) + _signed_bytes(body)).digest()
        if int.from_bytes(challenge, "little") % order % 4 == 0:
            scalar = int.from_bytes(digest, "little") % order
            return _envelope(body, public, point + scalar.to_bytes(32, "little"))
    raise AssertionError


def test_key_for_which_anybody_can_sign_is_refused() -> None:
    weak = base64.b64encode(bytes(32)).decode()
    careless = AllowedSigners((AllowedSigner(weak, "builder"),))
    assert careless.verify(signed_without_a_key(weak), statement()).signer == weak
    for key in _WEAK_KEYS:
        for sign in (0, 0x80):
            public = base64.b64encode(bytes((*key[:-1], key[-1] | sign))).decode()
            with pytest.raises(SignatureError, match="anybody can sign"):
                AllowedSigners.parse(f"{public} builder")


@pytest.mark.parametrize("name", ["two words", "a#b", "builder revoked", "a=b"])
def test_name_that_no_list_can_have_is_refused_before_a_key_is_made(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "key.pem"
    made = CliRunner().invoke(main, ["store", "keygen", "-o", str(path), "--name", name])
    assert made.exit_code == 2
    assert "give one word" in made.output
    assert not path.exists()
