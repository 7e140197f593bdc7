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

import numpy as np

from fusewire.contract.backend import Backend, Config, Device
from fusewire.ir.graph import Graph
from fusewire.ir.hash import exact_hash
from fusewire.options import FALLBACK, Options
from fusewire.process.machine import kernels_for
from fusewire.runtime.plan import Region
from fusewire.store.key import Key


def artifact_key(
    region: Region, shapes: Sequence[tuple[int, ...]], backend: Backend, config: Config
) -> Key:
    """Name what an artifact depends on; one that takes any size is kept once."""
    fields = backend_fields(backend, region.device, config)
    return Key("artifact", artifact_fields(region, shapes, fields))


def backend_fields(backend: Backend, device: Device, config: Config) -> tuple[tuple[str, str], ...]:
    """Name what artifacts depend on beside region and sizes."""
    its = {f"its_{name}": text for name, text in backend.fingerprint(device).items()}
    fields: dict[str, object] = {**settings(config), **its, **code_of(backend)}
    return tuple((name, str(value)) for name, value in fields.items())


def artifact_fields(
    region: Region, shapes: Sequence[tuple[int, ...]], fields: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Put the fields of an artifact's key together."""
    sizes = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    own = (
        ("region", region.digest),
        ("shapes", "any" if region.shapes == "dynamic" else sizes),
        ("backend", region.backend),
        ("device", region.device.id),
    )
    return (*own, *fields)


def file_key(digest: str, example: Sequence[Any], is_open: bool, options: Options) -> Key | None:
    """Name the plan of a model file; None where it has no name.

    ``is_open``: of the example it took only those sizes that it cannot do without.
    """
    registry = sys.modules.get("fusewire.registry")
    is_changed = registry is not None and registry.REGISTRY.default != "auto"
    if not isinstance(options.backend, str) or is_changed:
        return None
    return Key.of(
        "plan",
        file=digest,
        example=" ".join(map(_type_name, example)),
        open=is_open,
        backend=options.backend,
        device=options.device or "any",
        level=options.level,
        fallback=options.fallback,
        max_crossings=options.max_crossings,
        canary=options.canary,
        **settings(options.config),
        packages=_packages(),
        **code_fields(options.backend),
        **dict(host_fields()),
    )


def decision_fields(options: Options, level: int) -> dict[str, object] | None:
    """Name what a decision depends on beside the graph; None for what has no name."""
    from fusewire.registry import REGISTRY

    if not isinstance(options.backend, str):
        return None
    policy = REGISTRY.default if options.backend == "auto" else options.backend
    if not isinstance(policy, str):
        return None
    names = REGISTRY.backends.names() if policy == "auto" else [policy]
    return {
        "backend": policy,
        "device": options.device or "any",
        "level": level,
        "fallback": options.fallback,
        "max_crossings": options.max_crossings,
        **settings(options.config),
        "engines": ", ".join(map(_engine_version, names)),
        **code_fields(policy),
        **dict(host_fields()),
    }


def _engine_version(name: str) -> str:
    """Name a backend with the version of what it drives."""
    from fusewire.registry import REGISTRY

    plugin = REGISTRY.backends.describe(name)
    if plugin.distribution != "fusewire":
        return f"{name} {plugin.version}"
    return f"{name} {REGISTRY.backends.get(name).info.version}"


def _type_name(example: Any) -> str:
    """Name the type of an example: what a graph is specialised to."""
    if isinstance(example, np.ndarray | np.generic):
        return f"{example.dtype}{list(example.shape)}"
    return repr(example)


def _packages() -> str:
    """Tell whether anything was installed, replaced or removed since."""
    folders = [Path(path) for path in sys.path if path.endswith("-packages")]
    states = [f"{path} {path.stat().st_mtime_ns}" for path in folders if path.is_dir()]
    return hashlib.sha256("\n".join(states).encode()).hexdigest()[:16]


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
# Each of them is a field of its own; or compiles nothing.
_BACKENDS = f"{_PACKAGE}/backends"
_APART = (_BACKENDS, f"{_PACKAGE}/cli", f"{_PACKAGE}/testing")


def code_fields(policy: str) -> dict[str, str]:
    """Give as fields the state of our code: what all share, and the backends that are meant."""
    own = f"{_BACKENDS}/{policy}"
    named = [own, f"{_BACKENDS}/{FALLBACK}"] if Path(own).is_dir() else [_BACKENDS]
    return {"code": state_of_code(), "backends": " ".join(map(state_of, named))}


def state_of_code() -> str:
    """Tell the code that all backends share from other versions of it."""
    return state_of(_PACKAGE, _APART)


@cache
def state_of(folder: str, without: tuple[str, ...] = ()) -> str:
    """Tell code from other code: names, sizes and times of its files."""
    told, folders = [], [folder]
    for path in folders:
        with os.scandir(path) as found:
            for entry in found:
                if entry.name.endswith((".py", ".json", ".wgsl")):
                    state = entry.stat()
                    told.append(f"{entry.path} {state.st_size} {state.st_mtime_ns}")
                elif "." in entry.name or entry.name == "__pycache__" or entry.path in without:
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return hashlib.sha256("\n".join(sorted(told)).encode()).hexdigest()[:16]


@cache
def host_fields() -> tuple[tuple[str, str], ...]:
    """Name what timings depend on beside the engine."""
    about = kernels_for()
    features: Any = about["features"]
    named = {"processor": about["processor"], "cores": about["compute_units"]}
    named["features"] = " ".join(features)
    return tuple((name, str(text)) for name, text in named.items())
