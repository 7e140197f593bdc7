"""The records of programs: artifacts with their weights, and saved plans.

All of them are in the store, under keys that name what they depend on; with no store, what this
process made is kept for this process alone. Whatever cannot be read back is a miss.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fusewire.contract.backend import Artifact
from fusewire.errors import FusewireError
from fusewire.ir.graph import Array
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.process.frames import Blobs
from fusewire.records.plans import (
    GraphSource,
    SavedPlan,
    read_plan,
    read_saved,
    write_plan,
    write_saved,
)
from fusewire.runtime.plan import Plan, Region
from fusewire.runtime.why import Contacted
from fusewire.store.ahead import is_large
from fusewire.store.disk import Store
from fusewire.store.key import Key

Read = TypeVar("Read")
# An artifact, and its weights by digest as far as they are kept.
StoredArtifact: TypeAlias = tuple[Artifact, dict[str, Array]]
_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
# More than that is quicker read from where it came.
_MOST_WEIGHTS = 2**30
# With no store: what this process made last.
_HELD = 16


@dataclass(frozen=True)
class BuiltRegion:
    """What became of a region, and the key under which its artifact is remembered, if any."""

    region: Region
    contacted: Contacted
    key: Key | None = None


class Records:
    """Keeps artifacts and plans; safe to share between threads.

    With ``recalls`` only entries of these kinds are given back: what is new is kept all the same.
    """

    def __init__(self, store: Store | None, recalls: Collection[str] | None = None) -> None:
        self.store = store
        self._recalls = recalls
        self._held: dict[str, bytes] = {}

    def get(self, key: Key) -> bytes | None:
        """Give what was kept under a key."""
        if self._recalls is not None and key.kind not in self._recalls:
            return None
        if self.store is None:
            return self._held.get(key.digest)
        return self.store.get(key)

    def _block(self, key: Key) -> bytes | memoryview | None:
        """Give what was kept where engines take it as it lies."""
        is_there = self._recalls is None or key.kind in self._recalls
        return self.store.block(key) if self.store is not None and is_there else self.get(key)

    def put(self, key: Key, payload: bytes) -> None:
        """Keep something."""
        if self.store is not None:
            self.store.put(key, payload)
            return
        while len(self._held) >= _HELD:
            self._held.pop(next(iter(self._held)), None)
        self._held[key.digest] = payload

    def drop(self, key: Key) -> None:
        """Forget what turned out to be of no use."""
        self._held.pop(key.digest, None)
        if self.store is not None:
            self.store.drop(key)

    def alone(self, key: Key) -> contextlib.AbstractContextManager[None]:
        """Hold the turn of a key, so that what takes long is done by one process at a time."""
        return contextlib.nullcontext() if self.store is None else self.store.alone(key)

    def why_missed(self, key: Key) -> str:
        """Say what differs from the nearest that is kept."""
        return "The cache is off." if self.store is None else self.store.why_missed(key)

    def artifact(self, key: Key) -> StoredArtifact | None:
        """Give an artifact, and its weights by digest as far as they are kept."""
        artifact = self._read(key, _read_artifact, is_data=False)
        if artifact is None:
            return None
        return artifact, self._weights(key) if _needs(artifact) else {}

    def is_large(self, key: Key) -> bool:
        """Tell whether reading an artifact takes so long that it should begin early."""
        store = self.store
        return store is not None and any(is_large(store, x) for x in (key, _beside(key)))

    def keep_artifact(self, key: Key, artifact: Artifact, weights: Mapping[str, Array]) -> None:
        """Keep an artifact; its weights lie beside it, once for all sizes."""
        blobs: Blobs = []
        header = write_record(artifact, blobs)
        self.put(key, framed(header, blobs))
        needed = {digest: weights[digest] for digest in _needs(artifact) if digest in weights}
        beside = _beside(key)
        if not needed or sum(x.nbytes for x in needed.values()) > _MOST_WEIGHTS:
            return
        if self.get(beside) is None:
            blobs = []
            written = {digest: write_value(array, blobs) for digest, array in needed.items()}
            self.put(beside, framed(written, blobs))

    def _weights(self, key: Key) -> dict[str, Array]:
        return self._read(_beside(key), _read_weights, is_data=False) or {}

    def saved_plan(self, key: Key, source: GraphSource) -> SavedPlan | None:
        """Give the plan of a model; ``source`` finds graphs that somebody asks for."""
        return self._read(key, partial(read_saved, source=source))

    def keep_saved_plan(self, key: Key, saved: SavedPlan) -> None:
        """Keep the plan of a model."""
        blobs: Blobs = []
        header = write_saved(saved, blobs)
        self.put(key, _lined(header, blobs))

    def plan(self, key: Key, source: GraphSource) -> Plan | None:
        """Give the plan of a body of control flow."""
        return self._read(key, partial(read_plan, source=source))

    def keep_plan(self, key: Key, plan: Plan) -> None:
        """Keep the plan of a body of control flow."""
        blobs: Blobs = []
        header = write_plan(plan, blobs)
        self.put(key, _lined(header, blobs))

    def _read(
        self, key: Key, read: Callable[[Any, Iterator[Array]], Read], is_data: bool = True
    ) -> Read | None:
        held = self.get(key) if is_data else self._block(key)
        if held is None:
            return None
        try:
            return read(*(_unlined(held) if is_data else unframed(held)))
        except (FusewireError, ValueError, TypeError, KeyError, AttributeError):
            self.drop(key)
            return None


def _lined(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs, which are few and small, as JSON, as all data is."""
    return json.dumps({"row": header, "blobs": [blob.tobytes().hex() for blob in blobs]}).encode()


def _unlined(held: bytes | memoryview) -> tuple[Any, Iterator[Array]]:
    found = json.loads(bytes(held))
    return found["row"], (np.frombuffer(bytes.fromhex(x), np.uint8) for x in found["blobs"])


def framed(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs in a row, blobs where an engine can take them as they are."""
    sizes = [blob.nbytes for blob in blobs]
    head = json.dumps([header, sizes]).encode()
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head]
    at = _LENGTH.size + len(head)
    for blob in blobs:
        parts += [bytes(-at % _ALIGNED), blob.data]
        at += len(parts[-2]) + blob.nbytes
    return b"".join(parts)


def unframed(held: bytes | memoryview) -> tuple[Any, Iterator[Array]]:
    """Read a header and give its blobs in order, where they lie; ValueError if it is none."""
    if len(held) < _LENGTH.size:
        raise ValueError("It is too short.")
    (length,) = _LENGTH.unpack_from(held)
    at = _LENGTH.size + length
    header, sizes = json.loads(bytes(held[_LENGTH.size : at]))
    blobs = []
    for size in sizes:
        at += -at % _ALIGNED
        blobs.append(np.frombuffer(held, np.uint8, size, at))
        at += size
    return header, iter(blobs)


def _read_artifact(header: Any, blobs: Iterator[Array]) -> Artifact:
    artifact: Artifact = read_record(header, blobs, Artifact)
    return artifact


def _read_weights(header: Any, blobs: Iterator[Array]) -> dict[str, Array]:
    return {digest: read_value(x, blobs) for digest, x in header.items()}


def _needs(artifact: Artifact) -> list[str]:
    return [slot.digest for slot in artifact.slots if slot.digest is not None]


def _beside(key: Key) -> Key:
    fields = dict(key.fields)
    return Key.of("weights", region=fields["region"], backend=fields["backend"])
