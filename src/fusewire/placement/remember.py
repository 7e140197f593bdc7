"""What is remembered of programs: artifacts with their weights, and the outlines of plans.

All of it is in the store, under keys that name what it depends on; with no store, what this
process made is kept for this process alone. Whatever cannot be read back is a miss.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusewire.backend import Artifact, Device, Shapes
from fusewire.errors import FusewireError, StoreError
from fusewire.ir.graph import Array
from fusewire.ir.parse import parse_type
from fusewire.ir.types import Type
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.process.frames import Blobs
from fusewire.runtime.plan import Outline
from fusewire.runtime.why import Contacted
from fusewire.store.disk import Store
from fusewire.store.key import Key

_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
# Where large bytes begin after a multiple of it: the C library keeps 16, and Python 32.
_BEGIN = 48
# More than that is quicker read from where it came.
_MOST_WEIGHTS = 2**30
# With no store: what this process made last.
_HELD = 16


@dataclass(frozen=True)
class Sketch:
    """A plan of one region, as far as a call must know it; the rest is read when it is asked for.

    ``reference`` is "module:Class" of the backend, ``fields`` are what its artifacts depend on
    beside region and sizes, ``environment`` the variables that it listens to, as they were.
    ``choice`` is the form and the options of the backend, ``tried`` what was compared, ``cut_at``
    the budget in seconds that ended this early, None if none did.
    """

    inputs: tuple[tuple[str, Type], ...]
    outputs: tuple[str, ...]
    is_alone: bool
    backend: str
    device: Device
    shapes: Shapes
    region: str
    nodes: int
    reference: str
    fields: tuple[tuple[str, str], ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    choice: Mapping[str, Any] = field(default_factory=dict)
    tried: Sequence[Mapping[str, Any]] = ()
    cut_at: float | None = None


@dataclass(frozen=True)
class Made:
    """What became of a region, and the key under which its artifact is remembered, if any."""

    outline: Outline
    contacted: Contacted
    key: Key | None = None


class Memory:
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

    def artifact(self, key: Key) -> tuple[Artifact, dict[str, Array]] | None:
        """Give an artifact, and its weights by digest as far as they are kept."""
        held = self.get(key)
        if held is None:
            return None
        try:
            header, blobs = unframed(held)
            artifact = read_record(header, blobs, Artifact)
        except (FusewireError, ValueError):
            self.drop(key)
            return None
        return artifact, self._weights(key) if _needs(artifact) else {}

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
        held = self.get(_beside(key))
        if held is None:
            return {}
        try:
            header, blobs = unframed(held)
            return {digest: read_value(x, blobs) for digest, x in header.items()}
        except (FusewireError, ValueError, AttributeError):
            self.drop(_beside(key))
            return {}

    def sketch(self, key: Key) -> Sketch | None:
        """Give the sketch of a plan."""
        held = self.get(key)
        if held is None:
            return None
        try:
            return _read_sketch(json.loads(held))
        except (FusewireError, ValueError, TypeError, KeyError):
            self.drop(key)
            return None

    def keep_sketch(self, key: Key, sketch: Sketch) -> None:
        """Keep the sketch of a plan."""
        row = {
            "inputs": [[name, str(type_)] for name, type_ in sketch.inputs],
            "outputs": list(sketch.outputs), "is_alone": sketch.is_alone,
            "backend": sketch.backend, "device": write_record(sketch.device, []),
            "shapes": sketch.shapes, "region": sketch.region, "nodes": sketch.nodes,
            "reference": sketch.reference, "fields": [list(pair) for pair in sketch.fields],
            "environment": dict(sketch.environment), "choice": dict(sketch.choice),
            "tried": list(sketch.tried), "cut_at": sketch.cut_at,
        }  # fmt: skip
        self.put(key, json.dumps(row).encode())


def _read_sketch(row: Any) -> Sketch:
    shapes: Shapes = row["shapes"]
    if shapes not in ("static", "dynamic") or type(row["nodes"]) is not int:
        raise StoreError("A plan holds what is not of its kind.")
    pairs = [(name, text) for name, text in row["fields"]]
    texts = (row["backend"], row["region"], row["reference"], *row["outputs"], *sum(pairs, ()))
    if not all(isinstance(text, str) for text in texts) or not isinstance(row["choice"], dict):
        raise StoreError("A plan holds what is not of its kind.")
    return Sketch(
        tuple((str(name), parse_type(of)) for name, of in row["inputs"]),
        tuple(row["outputs"]), bool(row["is_alone"]), row["backend"],
        read_record(row["device"], iter(()), Device), shapes, row["region"], row["nodes"],
        row["reference"], tuple(pairs), dict(row["environment"]), row["choice"],
        list(row["tried"]), None if row["cut_at"] is None else float(row["cut_at"]),
    )  # fmt: skip


def framed(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs in a row, blobs where an engine can take them as they are."""
    sizes = [blob.nbytes for blob in blobs]
    head = json.dumps([header, sizes]).encode()
    parts: list[bytes | memoryview] = [_LENGTH.pack(len(head)), head]
    at = _LENGTH.size + len(head)
    for blob in blobs:
        parts += [bytes(-(at + _BEGIN) % _ALIGNED), blob.data]
        at += len(parts[-2]) + blob.nbytes
    return b"".join(parts)


def unframed(held: bytes) -> tuple[Any, Iterator[Array]]:
    """Read a header and give its blobs in order, where they lie; ValueError if it is none."""
    if len(held) < _LENGTH.size:
        raise ValueError("It is too short.")
    (length,) = _LENGTH.unpack_from(held)
    at = _LENGTH.size + length
    header, sizes = json.loads(held[_LENGTH.size : at])
    blobs = []
    for size in sizes:
        at += -(at + _BEGIN) % _ALIGNED
        blobs.append(np.frombuffer(held, np.uint8, size, at))
        at += size
    return header, iter(blobs)


def _needs(artifact: Artifact) -> list[str]:
    return [slot.digest for slot in artifact.slots if slot.digest is not None]


def _beside(key: Key) -> Key:
    fields = dict(key.fields)
    return Key.of("weights", region=fields["region"], backend=fields["backend"])
