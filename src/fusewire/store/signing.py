"""Ed25519 signatures of what travels between machines, and who may sign.

A statement says what is signed: its kind and format, the digest of its key and of its payload,
versions, a generation and when it expires. It travels in an envelope (DSSE, as in in-toto and
Sigstore). A reader believes it only from a signer of its own list, for exactly what it asked for.
The cryptography is that of the library `cryptography`, imported when first needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusewire.errors import SignatureError, UnknownSignerError, install_advice
from fusewire.store.disk import Store
from fusewire.store.files import Folder, plain_file
from fusewire.store.key import Key, canonical_json, is_sha256
from fusewire.store.secret import ALLOWED_SIGNERS, config_path
from fusewire.system.ownership import is_mine, is_open_to

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PRIVATE = "signing.pem"
_TYPE = "application/vnd.fusewire.statement+json"
_MOST_ENVELOPE, _MOST_PEM, _MOST_ALLOWED = 2**16, 2**14, 2**20
_MOST_NUMBER = 2**53
_PUBLIC = 32
_OTHERS, _WRITERS = 0o077, 0o022
# Public keys that are points of small order, without the bit of their sign: anybody can sign for
# them, and OpenSSL 3 verifies it. RFC 8032 leaves it to those who choose keys to refuse them.
_WEAK_KEYS = frozenset(
    bytes.fromhex(key)
    for key in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NAME = re.compile(r"[^\s#=]{1,100}")
_REVOKED, _GENERATION = "revoked", "generation="
# Among the versions of a statement: the name under which generations count, whatever is in them.
RELEASE = "release"


@dataclass(frozen=True)
class Statement:
    """What a signature covers; ``key`` and ``payload`` are SHA-256 as hex.

    ``expires`` is in seconds since 1970, None for never. ``signer`` is the signer's public key in
    base64; signing fills it in.
    """

    kind: str
    format: int
    key: str
    payload: str
    versions: tuple[tuple[str, str], ...] = ()
    generation: int = 0
    expires: int | None = None
    signer: str = ""

    @staticmethod
    def of(
        key: Key,
        payload: bytes | memoryview,
        *,
        format: int,  # noqa: A002 # the field's own word, by name only
        versions: Mapping[str, str] | None = None,
        generation: int = 0,
        expires: int | None = None,
    ) -> Statement:
        """State that a payload is the entry of a key."""
        digest = hashlib.sha256(payload).hexdigest()
        pairs = tuple(sorted((versions or {}).items()))
        return Statement(key.kind, format, key.digest, digest, pairs, generation, expires)

    def to_bytes(self) -> bytes:
        """Write it as canonical JSON."""
        return canonical_json({**asdict(self), "versions": dict(self.versions)})

    @staticmethod
    def from_bytes(held: bytes) -> Statement:
        """Read what ``to_bytes`` wrote; SignatureError if it is anything else."""
        about = _object(held)
        if set(about) != {field.name for field in fields(Statement)}:
            raise SignatureError("A signed statement has other fields than this version knows.")
        texts = (about["kind"], about["key"], about["payload"], about["signer"])
        expires = 0 if about["expires"] is None else about["expires"]
        numbers = (about["format"], about["generation"], expires)
        versions = about["versions"]
        if (
            not all(isinstance(text, str) for text in texts)
            or not all(type(number) is int and 0 <= number < _MOST_NUMBER for number in numbers)
            or not all(is_sha256(about[name]) for name in ("key", "payload"))
            or not isinstance(versions, dict)
            or not all(isinstance(version, str) for version in versions.values())
        ):
            raise SignatureError("A signed statement is malformed.")
        statement = Statement(**{**about, "versions": tuple(sorted(versions.items()))})
        if statement.to_bytes() != held:
            raise SignatureError("A signed statement is not canonical JSON.")
        return statement


class Signer:
    """A private key: whoever has it may write what others use."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.id = base64.b64encode(private.public_key().public_bytes_raw()).decode()

    @staticmethod
    def generate() -> Signer:
        """Make a new key."""
        with _library():
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            return Signer(Ed25519PrivateKey.generate())

    @staticmethod
    def read(path: Path) -> Signer:
        """Read a key (PEM, PKCS8), which must belong to you and be closed to others (mode 600)."""
        held = _own_file(path, _OTHERS, _MOST_PEM, "private key")
        with _library():
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            try:
                private = load_pem_private_key(held, password=None)
            except (ValueError, TypeError, UnsupportedAlgorithm):
                private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise SignatureError(
                f"{path} is not an Ed25519 private key in PEM without a password. "
                "`fusewire store keygen` makes one."
            )
        return Signer(private)

    def write(self, path: Path) -> None:
        """Write the key to a new file that only you can read."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        held = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600)
        except OSError as error:
            raise SignatureError(
                f"The private key cannot be written to {path}: {error.strerror}. A key that "
                "exists is never replaced; name another file."
            ) from None
        with os.fdopen(fd, "wb") as file:
            file.write(held)

    def sign(self, statement: Statement) -> bytes:
        """Return the envelope of a statement, signed."""
        body = replace(statement, signer=self.id).to_bytes()
        return _envelope(body, self.id, self._private.sign(_signed_bytes(body)))


@dataclass(frozen=True)
class AllowedSigner:
    """A line of the list: a public key, whose it is, and what is still believed of it."""

    id: str
    name: str
    is_revoked: bool = False
    least_generation: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether its line is read as it was written."""
        return _allowed_signer(self.line().split()) == self

    def line(self) -> str:
        """Write it as in the file."""
        least = f"{_GENERATION}{self.least_generation}" if self.least_generation else ""
        return " ".join(filter(None, (self.id, self.name, _REVOKED * self.is_revoked, least)))


@dataclass(frozen=True)
class AllowedSigners:
    """Whom this user believes. An empty list believes nobody.

    >>> line = "0" * 43 + "= build-service generation=3"
    >>> AllowedSigners.parse(line).signers[0].least_generation
    3
    """

    signers: tuple[AllowedSigner, ...] = ()

    @staticmethod
    def read(folder: Path | None = None) -> AllowedSigners:
        """Read the list in the configuration folder; nobody is allowed if there is none."""
        path = (folder or config_path()) / ALLOWED_SIGNERS
        try:
            held = _own_file(path, _WRITERS, _MOST_ALLOWED, "list of allowed signers")
        except FileNotFoundError:
            return AllowedSigners()
        try:
            return AllowedSigners.parse(held.decode())
        except (UnicodeDecodeError, SignatureError) as error:
            raise SignatureError(f"{path}: {error}") from None

    @staticmethod
    def parse(text: str) -> AllowedSigners:
        """Read lines: public key in base64, name, then `revoked` and `generation=N` if they apply.

        A line that cannot be read makes the whole list unusable: it might revoke somebody.
        """
        signers: dict[str, AllowedSigner] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            signer = _allowed_signer(words)
            if signer is None or signer.id in signers:
                raise SignatureError(
                    f"line {number} is not a signer, or the second one of its key. A line has a "
                    f"public key (base64), a name, and possibly `revoked` and `{_GENERATION}N`."
                )
            signers[signer.id] = signer
        return AllowedSigners(tuple(signers.values()))

    @property
    def digest(self) -> str:
        """SHA-256 of the list: what was believed under another list is checked again."""
        return hashlib.sha256("\n".join(one.line() for one in self.signers).encode()).hexdigest()

    def verify(
        self,
        envelope: bytes,
        expected: Statement,
        store: Store | None = None,
        release: str | None = None,
    ) -> Statement:
        """Return the statement of an envelope if it is believed for what is expected.

        ``expected`` has the kind, format, key and payload; its other fields do not count. With a
        ``release``, it must be signed as one of that name, and none older than one seen before.
        UnknownSignerError: nobody on the list signed it, so it may be used only as data.
        SignatureError: it is forged, expired, revoked, replayed, or older than one seen before,
        as ``store`` remembers.
        """
        statement, signature = _opened(envelope)
        signer = next((one for one in self.signers if one.id == statement.signer), None)
        if signer is None:
            raise UnknownSignerError(
                f"It is signed with {statement.signer}, which is not in {ALLOWED_SIGNERS}."
            )
        # Checked before, by this user: importing the library takes longer than all the rest.
        checked = Key.of("stamp", signature=hashlib.sha256(envelope).hexdigest(), by=signer.id)
        if store is None or store.get(checked) is None:
            _check_signature(signer.id, signature, _signed_bytes(statement.to_bytes()))
            if store is not None:
                store.put(checked, b"{}")
        self._check(signer, statement, expected)
        if release is not None:
            _check_release(store, statement, release)
        if store is not None:
            key = Key.of("stamp", generation_of=statement.key, by=statement.signer)
            _check_generation(store, key, statement)
        return statement

    def _check(self, signer: AllowedSigner, statement: Statement, expected: Statement) -> None:
        """Raise SignatureError if a statement that was signed is not to be believed here."""
        if signer.is_revoked:
            raise SignatureError(f"The key of {signer.name}, who signed it, is revoked.")
        if statement.expires is not None and time.time() >= statement.expires:
            raise SignatureError(f"The signature of {signer.name} has expired.")
        if statement.generation < signer.least_generation:
            raise SignatureError(
                f"It has generation {statement.generation}; of {signer.name} only "
                f"{signer.least_generation} and later are allowed."
            )
        _check_same(statement, expected, signer.name)


def allow(signer: AllowedSigner) -> Path:
    """Add a signer to the list in the configuration folder; returns the file."""
    path = config_path()
    folder = Folder(path, "configuration folder", "FUSEWIRE_CONFIG", _WRITERS)
    signers = AllowedSigners.read().signers
    if signer.id not in {one.id for one in signers}:
        try:
            text = (path / ALLOWED_SIGNERS).read_text()
        except FileNotFoundError:
            text = ""
        line = f"{signer.line()}\n"
        AllowedSigners.parse(line)
        separator = "\n" if text and not text.endswith("\n") else ""
        folder.write(ALLOWED_SIGNERS, ((text + separator + line).encode(),), durable=True)
    return path / ALLOWED_SIGNERS


def signer_of(envelope: bytes, expected: Statement) -> str:
    """Return the public key that signed what is expected, whoever has it; SignatureError if none.

    That it is believed is for ``AllowedSigners.verify`` to say.
    """
    statement, signature = _opened(envelope)
    _check_signature(statement.signer, signature, _signed_bytes(statement.to_bytes()))
    _check_same(statement, expected, statement.signer)
    return statement.signer


def _check_same(statement: Statement, expected: Statement, signer: str) -> None:
    """Raise SignatureError if something else was signed than what is expected."""
    if statement.format != expected.format:
        raise SignatureError(
            f"It has format {statement.format}, and this version reads {expected.format}."
        )
    for name in ("kind", "key", "payload"):
        theirs, ours = getattr(statement, name), getattr(expected, name)
        if theirs != ours:
            raise SignatureError(
                f"The signature of {signer} is for something else: it has {name} {theirs[:16]}, "
                f"and {ours[:16]} is here."
            )


def _allowed_signer(words: list[str]) -> AllowedSigner | None:
    """Read the words of a line; None if they are not a signer."""
    key, name, *rest = (*words, "")[: max(len(words), 2)]
    try:
        public = base64.b64decode(key, validate=True)
        is_key = len(public) == _PUBLIC and base64.b64encode(public).decode() == key
        if is_key and bytes((*public[:-1], public[-1] & 0x7F)) in _WEAK_KEYS:
            raise SignatureError(f"{key} is a key for which anybody can sign.")
    except (ValueError, binascii.Error) as error:
        if isinstance(error, SignatureError):
            raise
        is_key = False
    if not is_key or not _NAME.fullmatch(name):
        return None
    is_revoked, least = False, 0
    for word in rest:
        number = word.removeprefix(_GENERATION)
        if word == _REVOKED:
            is_revoked = True
        elif word != number and number.isascii() and number.isdigit() and len(number) < 16:
            least = int(number)
        else:
            return None
    return AllowedSigner(key, name, is_revoked, least)


def _envelope(body: bytes, signer: str, signature: bytes) -> bytes:
    """Write an envelope as DSSE does."""
    one = {"keyid": signer, "sig": base64.b64encode(signature).decode()}
    payload = base64.b64encode(body).decode()
    return canonical_json({"payload": payload, "payloadType": _TYPE, "signatures": [one]})


def _opened(envelope: bytes) -> tuple[Statement, bytes]:
    """Return the statement and the signature of an envelope, which prove nothing yet."""
    if len(envelope) > _MOST_ENVELOPE:
        raise SignatureError(f"A signature has {len(envelope):,} bytes; it is too large.")
    about = _object(envelope)
    try:
        (one,) = about["signatures"]
        statement = Statement.from_bytes(base64.b64decode(about["payload"], validate=True))
        signature = base64.b64decode(one["sig"], validate=True)
        # Base64 and JSON have many ways to write one thing, and only one is allowed.
        if _envelope(statement.to_bytes(), statement.signer, signature) != envelope:
            raise ValueError
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, SignatureError):
            raise
        raise SignatureError("A signature is malformed.") from None
    return statement, signature


def _check_signature(public: str, signature: bytes, signed: bytes) -> None:
    """Raise SignatureError unless the key made this signature."""
    with _library():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            raw = base64.b64decode(public, validate=True)
            Ed25519PublicKey.from_public_bytes(raw).verify(signature, signed)
        except (InvalidSignature, ValueError):
            raise SignatureError(
                "Its signature is not that of the signer whom it names: it is forged, or was "
                "changed after it was signed."
            ) from None


def _check_release(store: Store | None, statement: Statement, release: str) -> None:
    """Raise SignatureError unless this is a release of that name, the newest that was seen."""
    named = dict(statement.versions).get(RELEASE)
    if named != release:
        what = "without a release" if named is None else f"as a release of {named}"
        raise SignatureError(f"It is signed {what}, and a release of {release} was asked for.")
    if store is None:
        raise SignatureError(
            f"A release of {release} was asked for, and there is no cache that knows the newest. "
            "Open it with a cache."
        )
    key = Key.of("stamp", release_of=release, by=statement.signer)
    _check_generation(store, key, statement)


def _check_generation(store: Store, key: Key, statement: Statement) -> None:
    """Raise SignatureError if this signer has signed a later generation, as was seen.

    What was seen is in the local store, under the user's own key, for each signer and key.
    """
    seen = _seen_generation(store, key)
    if statement.generation > seen:
        with store.alone(key, seconds=1.0):
            if statement.generation > (seen := _seen_generation(store, key)):
                store.put(key, canonical_json({"generation": statement.generation}))
    if statement.generation < seen:
        raise SignatureError(
            f"It has generation {statement.generation}, and {seen} was seen here before: an old "
            "one was put in the place of a newer one."
        )


def _seen_generation(store: Store, key: Key) -> int:
    held = store.get(key)
    seen = None if held is None else _object(held).get("generation")
    return seen if isinstance(seen, int) else 0


def _own_file(path: Path, others: int, most: int, what: str) -> bytes:
    """Read a file of this user to which others have no such permissions."""
    with plain_file(path.resolve()) as file:
        about = os.fstat(file.fd)
        if not is_mine(about) or is_open_to(about, others):
            raise SignatureError(
                f"The {what} {path} must belong to you and be closed to others, found owner "
                f"{about.st_uid}, mode {stat.S_IMODE(file.mode):o}. Run `chmod 600 {path}`."
            )
        if file.size > most:
            raise SignatureError(f"The {what} {path} has {file.size:,} bytes; that is too large.")
        return file.read(0, file.size)


def _object(held: bytes) -> dict[str, Any]:
    try:
        found = json.loads(held)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SignatureError("A signature, or what it signs, is not a JSON object.")
    return found


def _signed_bytes(body: bytes) -> bytes:
    """Encode type and body as DSSE does, so that a signature of other software fits nothing here.

    https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
    """
    return b"DSSEv1 %d %b %d %b" % (len(_TYPE), _TYPE.encode(), len(body), body)


@contextmanager
def _library() -> Iterator[None]:
    """Say what to install if the library is missing; nothing signed can be believed without it."""
    try:
        yield
    except ImportError as error:
        raise UnknownSignerError(
            f"Signatures need the package cryptography ({error}). {install_advice('remote')}"
        ) from None
