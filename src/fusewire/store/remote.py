"""What a shared store is asked for, in which order, and what is believed of its answers.

    ac/<2 hex>/<digest of the key>     a pointer: magic (8) · length (4) · header (JSON: key, size
                                       and SHA-256 of the payload, signed envelope) · payload, if
                                       it is small
    cas/<2 hex>/<SHA-256>              a larger payload
    lease/<2 hex>/<digest>/<number>    who makes an entry now; it saves work and proves nothing

Nothing here does input or output, waits, or reads a clock. A method yields what it asks for and is
sent the answer: ``perform`` does it with a transport, and a simulation in virtual time. Nothing
that is read is used before a signer of the user's list is found to have signed it, for this key.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fusewire.errors import RemoteError, StoreError
from fusewire.store.blob import Provenance
from fusewire.store.disk import LIMIT, Store
from fusewire.store.exchange import check_payload
from fusewire.store.key import CODE, DATA, Key, canonical_json, is_sha256
from fusewire.store.signing import AllowedSigners, Signer, Statement
from fusewire.store.transport import Transport

# What machines share. Faults in quarantine stay with the user who saw them.
SHARED = (CODE | DATA) - {"quarantine"}
POINTERS, BLOBS, LEASES = "ac", "cas", "lease"
MAGIC = b"FUSEWIRP"
FORMAT = 1
_LENGTH = struct.Struct(">I")
_START = len(MAGIC) + _LENGTH.size
_MOST_HEADER = 2**17
# A payload up to this size is in its pointer: one request brings both.
INLINE = 2**15
MOST_POINTER = _START + _MOST_HEADER + INLINE
# Seconds before a request that failed is repeated, by those who can wait.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
# Seconds between two looks for an entry that somebody else makes.
_POLL = 5.0
# Looks per second that a whole fleet may take: a tenth of the reads that S3 promises per prefix is
# 550, and a fleet that starts together is to stay below that.
_POLLS_PER_SECOND = 300.0


@dataclass(frozen=True)
class Get:
    """Ask for an object; the answer is its bytes, or None."""

    path: str
    most: int


@dataclass(frozen=True)
class Put:
    """Write an object; the answer is whether it was written."""

    path: str
    payload: bytes
    only_new: bool = False


@dataclass(frozen=True)
class Pause:
    """Wait for so many seconds; the answer is None."""

    seconds: float


Request: TypeAlias = Get | Put | Pause
Reply: TypeAlias = bytes | bool | None
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Request, Reply, Result]


def perform(
    steps: Steps[Result], transport: Transport, wait: Callable[[float], object] | None = None
) -> Result:
    """Carry out steps with a transport; without ``wait``, what would wait fails."""
    try:
        request = next(steps)
        while True:
            try:
                reply = _answer(request, transport, wait)
            except RemoteError as error:
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as stop:
        result: Result = stop.value
        return result


def _answer(
    request: Request, transport: Transport, wait: Callable[[float], object] | None
) -> Reply:
    match request:
        case Get(path, most):
            return transport.get(path, most)
        case Put(path, payload, only_new):
            return transport.put(path, payload, only_new=only_new)
        case Pause(seconds):
            if wait is None:
                raise RemoteError("The shared store would have to be asked again later.")
            wait(seconds)
            return None


@dataclass(frozen=True)
class Pointer:
    """What is known of an entry before its payload; ``inline`` is the payload if it is small."""

    key: Key
    size: int
    sha256: str
    envelope: bytes
    inline: bytes | None

    def to_bytes(self) -> bytes:
        """Write it as an object."""
        about = {
            **self.key.to_json(),
            "size": self.size,
            "sha256": self.sha256,
            "envelope": self.envelope.decode(),
        }
        header = canonical_json(about)
        if len(header) > _MOST_HEADER:
            raise StoreError(f"A pointer has {len(header):,} bytes; the limit is {_MOST_HEADER:,}.")
        return b"".join((MAGIC, _LENGTH.pack(len(header)), header, self.inline or b""))

    @staticmethod
    def from_bytes(held: bytes) -> Pointer:
        """Read what ``to_bytes`` wrote; StoreError if it is anything else. It proves nothing."""
        if len(held) < _START or not held.startswith(MAGIC):
            raise StoreError("It is not a pointer of this format.")
        (length,) = _LENGTH.unpack_from(held, len(MAGIC))
        if length > _MOST_HEADER or len(held) < _START + length:
            raise StoreError("Its header is truncated, or too large.")
        try:
            about = json.loads(held[_START : _START + length])
        except (ValueError, RecursionError):
            raise StoreError("Its header is not JSON.") from None
        key = Key.from_json(about)
        size, sha256, envelope = (about.get(name) for name in ("size", "sha256", "envelope"))
        if (
            type(size) is not int
            or not 0 <= size <= LIMIT
            or not is_sha256(sha256)
            or not isinstance(envelope, str)
        ):
            raise StoreError("Its header is malformed.")
        rest = held[_START + length :]
        if len(rest) != (size if size <= INLINE else 0):
            raise StoreError(f"It has {len(rest):,} bytes beside its header, which says {size:,}.")
        inline = rest if size <= INLINE else None
        return Pointer(key, size, sha256, envelope.encode("utf-8", "replace"), inline)


@dataclass(frozen=True)
class BelievedEntry:
    """A payload, and who signed it."""

    payload: bytes
    provenance: Provenance


@dataclass
class RemoteClient:
    """Fetches what ``signers`` signed, and publishes what ``signer`` signs, if there is one.

    ``seen`` is the store that remembers generations. ``hosts`` is about how many machines start at
    once: the more, the less often each of them looks for what another one makes. ``tries`` is how
    often a request is made that the store does not answer: whoever cannot wait makes it once.
    """

    signers: AllowedSigners
    signer: Signer | None = None
    seen: Store | None = None
    hosts: int = 1
    tries: int = 1
    chance: random.Random = field(default_factory=random.Random)

    def fetch(self, key: Key) -> Steps[BelievedEntry | None]:
        """Return an entry, None if there is none.

        StoreError if what is there is not to be believed, RemoteError if the store does not answer.
        """
        held = yield from self.read(pointer_path(key), MOST_POINTER)
        if held is None:
            return None
        pointer = Pointer.from_bytes(held)
        statement = self.believed(pointer, key)
        payload = pointer.inline
        if payload is None:
            payload = yield from self.read(blob_path(pointer.sha256), pointer.size)
        if payload is None:
            raise StoreError(f"Its payload {pointer.sha256[:12]} is not in the shared store.")
        check_blob(pointer, payload)
        check_payload(key, payload)
        provenance = Provenance(statement.signer, statement.generation, statement.expires)
        return BelievedEntry(payload, provenance)

    def believed(self, pointer: Pointer, key: Key) -> Statement:
        """Return what was signed; StoreError unless it is to be believed for this key."""
        if key.kind not in SHARED:
            raise StoreError(f"A {key.kind} is not shared between machines.")
        if pointer.key != key:
            raise StoreError("It belongs to another key.")
        expected = Statement(key.kind, FORMAT, key.digest, pointer.sha256)
        return self.signers.verify(pointer.envelope, expected, self.seen)

    def read(self, path: str, most: int) -> Steps[bytes | None]:
        """Return an object, None if there is none."""
        reply = yield from self._ask(Get(path, most))
        assert reply is None or isinstance(reply, bytes)
        return reply

    def _ask(self, request: Request) -> Steps[Reply]:
        """Make a request, and repeat it, later each time, if the store does not answer."""
        for attempt in range(self.tries - 1):
            try:
                return (yield request)
            except RemoteError as error:
                if error.is_lasting:
                    raise
            yield Pause(self.back_off(attempt))
        return (yield request)

    def back_off(self, attempt: int) -> float:
        """Return the seconds to wait after a failure; the chance keeps hosts from a common beat."""
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt)
        return float(longest * self.chance.uniform(0.5, 1.5))

    def publish(
        self, key: Key, payload: bytes, generation: int, expires: int | None = None
    ) -> Steps[None]:
        """Write an entry, signed: the payload first, so that a pointer never leads nowhere."""
        if self.signer is None:
            raise StoreError(
                "Only who has a private key writes to a shared store. `fusewire store keygen` "
                "makes one."
            )
        if key.kind not in SHARED:
            raise StoreError(f"A {key.kind} is not shared between machines.")
        check_payload(key, payload)
        statement = Statement.of(
            key, payload, format=FORMAT, generation=generation, expires=expires
        )
        is_small = len(payload) <= INLINE
        envelope = self.signer.sign(statement)
        inline = payload if is_small else None
        pointer = Pointer(key, len(payload), statement.payload, envelope, inline).to_bytes()
        if not is_small:
            # The name says what is in it: one that is there already is the same.
            yield from self._ask(Put(blob_path(statement.payload), payload))
        yield from self._ask(Put(pointer_path(key), pointer))

    def fetch_or_claim(self, key: Key, holder: str, seconds: float) -> Steps[BelievedEntry | None]:
        """Return an entry, or None: then this host is the one to make and publish it.

        Whoever creates the lease makes the entry, and the others look for it, rarely. If it is not
        there after ``seconds``, its maker is lost, and the lease of the next number is for the
        taking. In a store without conditional writes several hosts get a lease, and make the same.
        """
        entry = yield from self.fetch(key)
        number = 0
        while entry is None:
            lease = Put(lease_path(key, number), holder.encode(), only_new=True)
            if (yield from self._ask(lease)):
                return None
            waited = 0.0
            while entry is None and waited < seconds:
                pause = self._poll_pause()
                yield Pause(pause)
                waited += pause
                entry = yield from self.fetch(key)
            number += 1
        return entry

    def _poll_pause(self) -> float:
        return max(_POLL, self.hosts / _POLLS_PER_SECOND) * self.chance.uniform(0.5, 1.5)


def pointer_path(key: Key) -> str:
    """Return the path of the pointer of a key."""
    return f"{POINTERS}/{key.digest[:2]}/{key.digest}"


def blob_path(sha256: str) -> str:
    """Return the path of a payload."""
    return f"{BLOBS}/{sha256[:2]}/{sha256}"


def lease_path(key: Key, number: int) -> str:
    """Return the path of a lease on a key."""
    return f"{LEASES}/{key.digest[:2]}/{key.digest}/{number}"


def check_blob(pointer: Pointer, payload: bytes) -> None:
    """Raise StoreError unless this is the payload that a pointer names."""
    if len(payload) != pointer.size or hashlib.sha256(payload).hexdigest() != pointer.sha256:
        raise StoreError("Its payload does not match its digest.")
