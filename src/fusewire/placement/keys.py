"""Keys of what is remembered: they name all that it depends on, and tell when that changed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fusewire.backend import Backend, Config, Device
from fusewire.ir.graph import Graph
from fusewire.ir.hash import exact_hash
from fusewire.process.machine import machine
from fusewire.runtime.plan import Outline
from fusewire.store.key import Key


def artifact_key(
    outline: Outline, shapes: Sequence[tuple[int, ...]], backend: Backend, config: Config
) -> Key:
    """Name what an artifact depends on; one that takes any size is kept once."""
    fields = backend_fields(backend, outline.device, config)
    return Key("artifact", artifact_fields(outline, shapes, fields))


def backend_fields(backend: Backend, device: Device, config: Config) -> tuple[tuple[str, str], ...]:
    """Name what artifacts depend on beside region and sizes."""
    its = {f"its_{name}": text for name, text in backend.fingerprint(device).items()}
    fields: dict[str, object] = {**settings(config), **its, **code_of(backend)}
    return tuple((name, str(value)) for name, value in fields.items())


def artifact_fields(
    outline: Outline, shapes: Sequence[tuple[int, ...]], fields: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Put the fields of an artifact's key together."""
    sizes = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    own = (
        ("region", outline.digest),
        ("shapes", "any" if outline.shapes == "dynamic" else sizes),
        ("backend", outline.backend),
        ("device", outline.device.id),
    )
    return (*own, *fields)


def body_key(plan: Key, body: Graph) -> Key:
    """Name the plan of a body, within that of the graph around it."""
    return Key(plan.kind, (*plan.fields, ("body", exact_hash(body))))


def settings(config: Config) -> dict[str, object]:
    """Give as fields what a backend is told."""
    return {
        "threads": config.threads or "default",
        "memory_limit": config.memory_limit or "none",
        "deterministic": config.deterministic,
        "options": json.dumps(dict(config.options), sort_keys=True),
    }


def code_of(backend: Backend) -> dict[str, str]:
    """Give as fields who translates: the state of our code, and of the backend's."""
    found = getattr(sys.modules.get(type(backend).__module__), "__file__", None)
    own = _PACKAGE if found is None else str(Path(found).parent)
    return {"code": state_of_code(), "lowering": state_of(own)}


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
