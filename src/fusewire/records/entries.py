"""Read and write records: artifacts with their weights, saved plans, and other payloads.

They are in the store, under keys that name what they depend on. Without a store, this process keeps
the last few for itself. A record that cannot be read is a miss.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from fusewire.contract.backend import Artifact
from fusewire.errors import FusewireError
from fusewire.events import EVENTS
from fusewire.ir.graph import Array
from fusewire.plan.plan import Plan, Region
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.records.framing import framed, unframed
from fusewire.records.plans import (
    GraphSource,
    SavedPlan,
    read_plan,
    read_saved,
    write_plan,
    write_saved,
)
from fusewire.store.ahead import LARGE, is_large
from fusewire.store.disk import Store
from fusewire.store.key import Key

if TYPE_CHECKING:
    from fusewire.process.frames import Blobs
    from fusewire.records.bundles import Bundle
    from fusewire.show.contact import Contacted

Read = TypeVar("Read")
# An artifact, and those of its weights that are recorded, by digest.
StoredArtifact: TypeAlias = tuple[Artifact, dict[str, Array]]
# More bytes of weights are read faster from the model file.
_MOST_WEIGHTS = 2**30
# Payloads that are kept without a store.
_MOST_PAYLOADS = 16


@dataclass(frozen=True)
class BuiltRegion:
    """The outcome of building a region, and the key of its artifact, if it is recorded."""

    region: Region
    contacted: Contacted
    key: Key | None = None


class Records:
    """Reads and writes records; safe to share between threads.

    With ``recalls``, only records of these kinds are read; all kinds are written. What ``bundle``
    has is read from there first: whoever gives one has made sure that it may be used. Without a
    store, at most ``most`` payloads are kept. ``model`` is the name of the model that they are
    about, for people to read.
    """

    def __init__(
        self,
        store: Store | None,
        recalls: Collection[str] | None = None,
        bundle: Bundle | None = None,
        most: int | None = _MOST_PAYLOADS,
    ) -> None:
        self.store = store
        self.bundle = bundle
        self._recalls = recalls
        self.model = ""
        self._payloads: dict[str, bytes] = {}
        self._keys: dict[str, Key] = {}
        self._most = most
        # Entries of the bundle that turned out to be useless here.
        self._dropped: set[str] = set()

    def get(self, key: Key) -> bytes | None:
        """Return the payload under a key; None if there is none."""
        if self._recalls is not None and key.kind not in self._recalls:
            return None
        if (bundled := self._bundled(key)) is not None:
            return bytes(bundled)
        if self.store is None:
            return self._payloads.get(key.digest)
        return self.store.get(key)

    def _block(self, key: Key) -> bytes | memoryview | None:
        """Return a payload in place, so that engines can use it without a copy."""
        is_there = self._recalls is None or key.kind in self._recalls
        if is_there and (bundled := self._bundled(key)) is not None:
            return bundled
        return self.store.block(key) if self.store is not None and is_there else self.get(key)

    def _bundled(self, key: Key) -> memoryview | None:
        if self.bundle is None or key.digest in self._dropped:
            return None
        return self.bundle.entry(key)

    def put(self, key: Key, payload: bytes) -> None:
        """Write a payload under a key."""
        if self.store is not None:
            with EVENTS.span("cache", f"write {key.kind}", bytes=len(payload)):
                self.store.put(key, payload)
            return
        while self._most is not None and len(self._payloads) >= self._most:
            self._payloads.pop(next(iter(self._payloads)), None)
        self._payloads[key.digest], self._keys[key.digest] = payload, key

    def kept(self) -> list[tuple[Key, bytes]]:
        """List what is kept without a store."""
        return [(self._keys[digest], payload) for digest, payload in self._payloads.items()]

    def drop(self, key: Key) -> None:
        """Delete a record that turned out to be useless."""
        self._payloads.pop(key.digest, None)
        if self.bundle is not None and self.bundle.has(key):
            self._dropped.add(key.digest)
        if self.store is not None:
            self.store.drop(key)

    def alone(self, key: Key) -> contextlib.AbstractContextManager[None]:
        """Lock a key, so that one process at a time does what takes long."""
        return contextlib.nullcontext() if self.store is None else self.store.alone(key)

    def why_missed(self, key: Key) -> str:
        """Say how a key differs from the nearest one that is recorded."""
        return "The cache is off." if self.store is None else self.store.why_missed(key)

    def artifact(self, key: Key) -> StoredArtifact | None:
        """Return an artifact, and those of its weights that are recorded, by digest."""
        artifact = self._read(key, _read_artifact, is_data=False)
        if artifact is None:
            return None
        needed = needs(artifact)
        if self.bundle is not None and self.bundle.has(key):
            constants = self.bundle.constants if needed else {}
            return artifact, {x: constants[x] for x in needed if x in constants}
        return artifact, self._weights(key) if needed else {}

    def is_large(self, key: Key) -> bool:
        """Tell whether an artifact is so large that reading it should begin early."""
        store = self.store
        if self.bundle is not None and self.bundle.has(key):
            return self.bundle.size(key) + self.bundle.constants_size >= LARGE
        return store is not None and any(is_large(store, x) for x in (key, _weights_key(key)))

    def keep_artifact(self, key: Key, artifact: Artifact, weights: Mapping[str, Array]) -> None:
        """Write an artifact; its weights get a record of their own, once for all sizes."""
        self.put(key, artifact_payload(artifact))
        needed = {digest: weights[digest] for digest in needs(artifact) if digest in weights}
        weights_key = _weights_key(key)
        if not needed or sum(x.nbytes for x in needed.values()) > _MOST_WEIGHTS:
            return
        if self.get(weights_key) is None:
            blobs: Blobs = []
            written = {digest: write_value(array, blobs) for digest, array in needed.items()}
            self.put(weights_key, framed(written, blobs))

    def _weights(self, key: Key) -> dict[str, Array]:
        return self._read(_weights_key(key), _read_weights, is_data=False) or {}

    def saved_plan(self, key: Key, source: GraphSource) -> SavedPlan | None:
        """Read the plan of a model; ``source`` loads graphs when they are needed."""
        return self._read(key, partial(read_saved, source=source))

    def keep_saved_plan(self, key: Key, saved: SavedPlan) -> None:
        """Write the plan of a model."""
        self.put(key, saved_payload(saved))

    def plan(self, key: Key, source: GraphSource) -> Plan | None:
        """Read the plan of a body of control flow."""
        return self._read(key, partial(read_plan, source=source))

    def keep_plan(self, key: Key, plan: Plan) -> None:
        """Write the plan of a body of control flow."""
        blobs: Blobs = []
        header = write_plan(plan, blobs)
        self.put(key, _to_json(header, blobs))

    def _read(
        self, key: Key, read: Callable[[Any, Iterator[Array]], Read], is_data: bool = True
    ) -> Read | None:
        with EVENTS.span("cache", f"read {key.kind}") as details:
            payload = self.get(key) if is_data else self._block(key)
            is_hit = payload is not None
            details |= {"outcome": "hit" if is_hit else "miss", "bytes": len(payload or b"")}
        if payload is None:
            return None
        try:
            return read(*(_from_json(payload) if is_data else unframed(payload)))
        except (FusewireError, ValueError, TypeError, KeyError, AttributeError):
            self.drop(key)
            return None


def saved_payload(saved: SavedPlan) -> bytes:
    """Write a saved plan as JSON."""
    blobs: Blobs = []
    header = write_saved(saved, blobs)
    return _to_json(header, blobs)


def artifact_payload(artifact: Artifact) -> bytes:
    """Write an artifact without its weights."""
    blobs: Blobs = []
    header = write_record(artifact, blobs)
    return framed(header, blobs)


def artifact_of(payload: bytes | memoryview) -> Artifact:
    """Read an artifact without its weights; FusewireError, ValueError or TypeError if invalid."""
    return _read_artifact(*unframed(payload))


def _to_json(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs, which are few and small, as JSON."""
    return json.dumps({"row": header, "blobs": [blob.tobytes().hex() for blob in blobs]}).encode()


def _from_json(payload: bytes | memoryview) -> tuple[Any, Iterator[Array]]:
    data = json.loads(bytes(payload))
    return data["row"], (np.frombuffer(bytes.fromhex(x), np.uint8) for x in data["blobs"])


def _read_artifact(header: Any, blobs: Iterator[Array]) -> Artifact:
    artifact: Artifact = read_record(header, blobs, Artifact)
    return artifact


def _read_weights(header: Any, blobs: Iterator[Array]) -> dict[str, Array]:
    return {digest: read_value(x, blobs) for digest, x in header.items()}


def needs(artifact: Artifact) -> list[str]:
    """List the digests of the weights that an artifact is loaded with."""
    return [slot.digest for slot in artifact.slots if slot.digest is not None]


def _weights_key(key: Key) -> Key:
    fields = dict(key.fields)
    # Devices of one backend are given other weights: some of them hold their own.
    return Key.of(
        "weights", region=fields["region"], backend=fields["backend"], device=fields["device"]
    )
