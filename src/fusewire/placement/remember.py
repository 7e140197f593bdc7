"""What is remembered of programs: artifacts with their weights, and the outlines of plans.

All of it is in the store, under keys that name what it depends on; with no store, what this
process made is kept for this process alone. Whatever cannot be read back is a miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fusewire.backend import Artifact, Backend, Config, Device, Shapes
from fusewire.errors import FusewireError, StoreError
from fusewire.ir.graph import Array
from fusewire.ir.parse import parse_type
from fusewire.ir.types import Type
from fusewire.process.codec import read_record, read_value, write_record, write_value
from fusewire.process.frames import Blobs
from fusewire.process.machine import machine
from fusewire.runtime.plan import Outline
from fusewire.store.disk import Store
from fusewire.store.key import Key

_LENGTH = struct.Struct("<Q")
_ALIGNED = 64
# More than that is quicker read from where it came.
_MOST_WEIGHTS = 2**30
# With no store: what this process made last.
_HELD = 16


@dataclass(frozen=True)
class Sketch:
    """A plan of one region, as far as a call must know it; the rest is read when it is asked for.

    ``choice`` is what level 1 chose: a form and options of the backend.
    """

    inputs: tuple[tuple[str, Type], ...]
    outputs: tuple[str, ...]
    is_alone: bool
    backend: str
    device: Device
    shapes: Shapes
    region: str
    nodes: int
    choice: Mapping[str, Any] = field(default_factory=dict)


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
            "choice": dict(sketch.choice),
        }  # fmt: skip
        self.put(key, json.dumps(row).encode())


def _read_sketch(row: Any) -> Sketch:
    shapes: Shapes = row["shapes"]
    if shapes not in ("static", "dynamic") or type(row["nodes"]) is not int:
        raise StoreError("A plan holds what is not of its kind.")
    texts = (row["backend"], row["region"], *row["outputs"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(row["choice"], dict):
        raise StoreError("A plan holds what is not of its kind.")
    return Sketch(
        tuple((str(name), parse_type(of)) for name, of in row["inputs"]),
        tuple(row["outputs"]), bool(row["is_alone"]), row["backend"],
        read_record(row["device"], iter(()), Device), shapes, row["region"], row["nodes"],
        row["choice"],
    )  # fmt: skip


def framed(header: Any, blobs: Sequence[Array]) -> bytes:
    """Write a header and blobs in a row, blobs where an engine can take them as they are."""
    sizes = [blob.nbytes for blob in blobs]
    head = json.dumps([header, sizes]).encode()
    parts = [_LENGTH.pack(len(head)), head]
    at = _LENGTH.size + len(head)
    for blob in blobs:
        parts += [bytes(-at % _ALIGNED), blob.tobytes()]
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
        at += -at % _ALIGNED
        blobs.append(np.frombuffer(held, np.uint8, size, at))
        at += size
    return header, iter(blobs)


def _needs(artifact: Artifact) -> list[str]:
    return [slot.digest for slot in artifact.slots if slot.digest is not None]


def _beside(key: Key) -> Key:
    fields = dict(key.fields)
    return Key.of("weights", region=fields["region"], backend=fields["backend"])


def artifact_key(
    outline: Outline, shapes: Sequence[tuple[int, ...]], backend: Backend, config: Config
) -> Key:
    """Name what an artifact depends on; one that takes any size is kept once."""
    sizes = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    return Key.of(
        "artifact",
        region=outline.digest,
        shapes="any" if outline.shapes == "dynamic" else sizes,
        backend=backend.info.name,
        device=outline.device.id,
        **settings(config),
        **{f"its_{name}": text for name, text in backend.fingerprint(outline.device).items()},
        **code_of(backend),
    )


def settings(config: Config) -> dict[str, object]:
    """Give as fields what a backend is told."""
    return {
        "threads": config.threads or "default",
        "memory_limit": config.memory_limit or "none",
        "deterministic": config.deterministic,
        "options": json.dumps(dict(config.options), sort_keys=True),
    }


def code_of(backend: Backend) -> dict[str, str]:
    """Give as fields who translates: our version and the state of the code, and the backend's."""
    found = getattr(sys.modules.get(type(backend).__module__), "__file__", None)
    own = _PACKAGE if found is None else str(Path(found).parent)
    return {"fusewire": version("fusewire"), "code": state_of_code(), "lowering": state_of(own)}


_PACKAGE = str(Path(__file__).parent.parent)


def state_of_code() -> str:
    """Tell our own code from other versions of it, also where it is worked on."""
    return state_of(_PACKAGE)


@cache
def state_of(folder: str) -> str:
    """Tell code from other code: names, sizes and times of its files."""
    sha = hashlib.sha256()
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.name.startswith(("__pycache__", ".")):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith((".py", ".json", ".wgsl")):
                    state = entry.stat()
                    sha.update(f"{entry.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return sha.hexdigest()[:16]


@cache
def host_fields() -> tuple[tuple[str, str], ...]:
    """Name what timings depend on beside the engine."""
    about = machine()
    features: Any = about.get("features", ())
    named = {"processor": about.get("processor"), "cores": about.get("compute_units")}
    named["features"] = " ".join(features)
    return tuple((name, str(text)) for name, text in named.items())
