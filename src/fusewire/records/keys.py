"""Keys of records: they name all that a record depends on, so that any change is a miss."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire.contract.backend import SIZES, Backend, Config, Device
from fusewire.errors import FormatError
from fusewire.ir.graph import Graph
from fusewire.ir.hash import exact_hash
from fusewire.ops.outside import OUTSIDE
from fusewire.options import FALLBACK, Accuracy, Options
from fusewire.plan.plan import Region
from fusewire.process.machine import accelerators, kernels_for, processor
from fusewire.process.wheels import wheels_digest
from fusewire.store.code_state import UNKNOWN, module_state, state_of
from fusewire.store.disk import shared_store
from fusewire.store.key import Key

if TYPE_CHECKING:
    from fusewire.registry import Registry


def artifact_key(
    region: Region, shapes: Sequence[tuple[int, ...]], backend: Backend, config: Config
) -> Key:
    """Name what an artifact depends on; one that takes any size is recorded once."""
    fields = backend_fields(backend, region.device, config)
    return Key("artifact", artifact_fields(region, shapes, fields))


def backend_fields(backend: Backend, device: Device, config: Config) -> tuple[tuple[str, str], ...]:
    """Name what artifacts depend on besides region and sizes."""
    its = {f"its_{name}": text for name, text in backend.fingerprint(device).items()}
    more = extension_states(backend.info.name)
    # An artifact is for known sizes or for any, which its key says; the engine is not told why.
    told = {name: value for name, value in config.options.items() if name != SIZES}
    fields: dict[str, object] = {
        **settings(replace(config, options=told)),
        **its,
        **code_of(backend),
    }
    fields |= {"extensions": more} if more else {}
    return tuple((name, str(value)) for name, value in fields.items())


def extension_states(name: str) -> str:
    """Fingerprint what extends a backend; whoever has not asked for backends has none extended."""
    module = sys.modules.get("fusewire.registry")
    if module is None:
        return ""
    plugins = module.REGISTRY.extensions
    labels = [label for label in plugins.names() if label.partition(".")[0] == name]
    return " ".join(_module_state(plugins.describe(label).reference) for label in labels)


def artifact_fields(
    region: Region, shapes: Sequence[tuple[int, ...]], fields: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return the fields of an artifact's key."""
    sizes = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
    own = (
        ("region", region.digest),
        ("shapes", "any" if region.shapes == "dynamic" else sizes),
        ("backend", region.backend),
        ("device", region.device.id),
    )
    return (*own, *fields)


def file_key(digest: str, example: Sequence[Any], is_open: bool, options: Options) -> Key | None:
    """Return the key of a model file's plan; None if the plan cannot be recorded.

    ``is_open``: the example fixed only the sizes that must be known.
    """
    registry = sys.modules.get("fusewire.registry")
    is_changed = registry is not None and registry.REGISTRY.default != "auto"
    accuracy = accuracy_name(options.accuracy)
    if not isinstance(options.backend, str | tuple) or is_changed or accuracy is None:
        return None
    return Key.of(
        "plan",
        file=digest,
        example=" ".join(map(_type_name, example)),
        open=is_open,
        backend=_policy_name(options.backend),
        device=options.device or "any",
        # A plan that is recalled is one that the default level has recorded.
        level=None if options.level == "recall" else options.level,
        fallback=options.fallback,
        slow_engines=options.compares_slow_engines,
        max_crossings=options.max_crossings,
        max_fallback_share=options.max_fallback_share,
        accuracy=accuracy,
        nan=options.nan,
        canary=options.canary,
        **_calibration(options),
        **settings(options.config),
        packages=_engines(),
        **code_fields(options.backend),
        **dict(host_fields()),
    )


def accuracy_name(accuracy: Accuracy) -> str | None:
    """Name the accuracy that is asked for; None for a function that cannot be imported."""
    if isinstance(accuracy, str | int | float):
        return str(accuracy)
    # It costs a warm start more than it takes to name a number.
    from fusewire.records.function_code import function_digest, importable_name

    function, *least = accuracy if isinstance(accuracy, tuple) else (accuracy,)
    if (name := importable_name(function)) is None:
        return None
    return " ".join([name, str(function_digest(function)), *map(str, least)])


def _calibration(options: Options) -> dict[str, object]:
    """Name the samples that less precision is calibrated and judged with, if there are any."""
    return {} if options.calibrate is None else {"calibration": options.calibrate.digest}


def _policy_name(policy: str | tuple[str, ...]) -> str:
    """Name a policy: backends in order, or the only one."""
    return policy if isinstance(policy, str) else ",".join(policy)


def bundle_key(digest: str, options: Options) -> Key:
    """Return the key of the plan of a saved graph: equal where it can be used as it is.

    What was calibrated is part of the plan, and whoever opens it needs no samples.
    """
    key = file_key(digest, (), False, replace(options, calibrate=None))
    if key is None:
        raise FormatError(
            'Bundles are saved and opened with names of backends, or "auto", and while '
            'fw.set_default is "auto".'
        )
    return key


def decision_fields(options: Options, level: int, registry: Registry) -> dict[str, object] | None:
    """Name what a decision depends on besides the graph; None if it cannot be recorded."""
    policy = registry.default if options.backend == "auto" else options.backend
    accuracy = accuracy_name(options.accuracy)
    if not isinstance(policy, str | tuple) or accuracy is None:
        return None
    named = [policy] if isinstance(policy, str) else list(policy)
    names = registry.backends.names() if policy == "auto" else named
    return {
        "backend": _policy_name(policy),
        "device": options.device or "any",
        "level": level,
        "fallback": options.fallback,
        "slow_engines": options.compares_slow_engines,
        "max_crossings": options.max_crossings,
        "max_fallback_share": options.max_fallback_share,
        "accuracy": accuracy,
        "nan": options.nan,
        **_calibration(options),
        **settings(options.config),
        "engines": ", ".join(_engine_version(registry, name) for name in names),
        **_outside_fields(),
        **code_fields(policy),
        **dict(host_fields()),
    }


def decision_key(graph_hash: str, inputs: Sequence[Any], fields: Mapping[str, object]) -> Key:
    """Return the key of what was decided for inputs of these sizes."""
    sizes = " ".join(str(getattr(x, "shape", "")) for x in inputs)
    return Key.of("plan", graph=graph_hash, sizes=sizes, **fields)


def _engine_version(registry: Registry, name: str) -> str:
    """Name a backend with the version of its engine, and of what else belongs to that."""
    plugin = registry.backends.describe(name)
    labels = [x for x in registry.extensions.names() if x.partition(".")[0] == name]
    more = [_module_state(registry.extensions.describe(x).reference) for x in labels]
    if plugin.distribution != "fusewire":
        return " ".join([name, plugin.version, *more])
    info = registry.backends.get(name).info
    return " ".join([name, info.version, *sorted(info.metadata.values()), *more])


def _outside_fields() -> dict[str, object]:
    """Fingerprint the packages whose ops this process uses: an op's meaning is in their code."""
    states = {name: _module_state(name) for name in OUTSIDE.modules()}
    return {"ops": json.dumps(states)} if states else {}


@cache
def _module_state(reference: str) -> str:
    """Fingerprint the code of a package; what has none is another in every process."""
    return module_state(reference.partition(":")[0]) or UNKNOWN


def _type_name(example: Any) -> str:
    """Name the type of an example, which a graph is specialised to."""
    if isinstance(example, np.ndarray | np.generic):
        return f"{example.dtype}{list(example.shape)}"
    return repr(example)


@cache
def _engines() -> str:
    """Fingerprint the installed engines: the same wheels are the same on every machine.

    That takes a while, so it is kept until a package is added, replaced or removed.
    """
    store, key = shared_store(), Key.of("stamp", packages=_packages())
    if store is not None and (known := store.get(key)) is not None:
        return known.decode("ascii", "replace")
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("fusewire") or []
    except PackageNotFoundError:
        required = []
    names = {re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in required}
    found = wheels_digest(names)
    if store is not None:
        store.put(key, found.encode())
    return found


def _packages() -> str:
    """Fingerprint the installed packages: it changes when one is added, replaced or removed."""
    folders = [Path(path) for path in sys.path if path.endswith("-packages")]
    states = [f"{path} {path.stat().st_mtime_ns}" for path in folders if path.is_dir()]
    return hashlib.sha256("\n".join(states).encode()).hexdigest()[:16]


def body_key(plan: Key, body: Graph) -> Key:
    """Return the key of a body's plan, within that of the graph around it."""
    return Key(plan.kind, (*plan.fields, ("body", exact_hash(body))))


def settings(config: Config) -> dict[str, object]:
    """Return the settings of a backend as fields."""
    return {
        "threads": config.threads or "default",
        "memory_limit": config.memory_limit or "none",
        "deterministic": config.deterministic,
        "options": json.dumps(dict(config.options), sort_keys=True),
    }


def code_of(backend: Backend) -> dict[str, str]:
    """Return the state of the translating code as fields: ours, and the backend's."""
    file = getattr(sys.modules.get(type(backend).__module__), "__file__", None)
    own = _PACKAGE if file is None else str(Path(file).parent)
    return {"code": state_of_code(), "lowering": state_of(own)}


_PACKAGE = str(Path(__file__).parent.parent)
# Backends have fields of their own; commands and suites compile nothing.
_BACKENDS = f"{_PACKAGE}/backends"
_APART = (_BACKENDS, *(f"{_PACKAGE}/{name}" for name in ("cli", "ray", "testing")))


def code_fields(policy: str | tuple[str, ...]) -> dict[str, str]:
    """Return the state of our code as fields: shared code, and the backends concerned."""
    names = [policy] if isinstance(policy, str) else policy
    own = [f"{_BACKENDS}/{name}" for name in names]
    is_known = all(Path(folder).is_dir() for folder in own)
    named = [*own, f"{_BACKENDS}/{FALLBACK}"] if is_known else [_BACKENDS]
    return {"code": state_of_code(), "backends": " ".join(map(state_of, named))}


def state_of_code() -> str:
    """Fingerprint the code that all backends share."""
    return state_of(_PACKAGE, _APART)


@cache
def host_fields() -> tuple[tuple[str, str], ...]:
    """Name what timings depend on besides the engine."""
    machine = kernels_for()
    features: Any = machine["features"]
    fields = {"processor": machine["processor"], "cores": machine["compute_units"]}
    fields["features"] = " ".join(features)
    fields["accelerators"] = " ".join(accelerators()) or "none"
    return tuple((name, str(value)) for name, value in fields.items())


def fits_this_host(key: Key) -> bool:
    """Tell whether a key names no other processor, features or devices than those of this host."""
    here = {**dict(host_fields()), "its_cpu": processor()}
    return all(here.get(name, value) == value for name, value in key.fields)
