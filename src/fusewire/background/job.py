"""What the comparer is asked, as plain data: options, backends, a model and the inputs of a call.

A model file is named by its path, and read there again. Any other source is sent as the text of its
graph with its constants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fusewire.calibration import Calibration, Sample
from fusewire.ir.graph import Constant, Graph, HostValue
from fusewire.ir.parse import parse_graph
from fusewire.ops.outside import OUTSIDE
from fusewire.options import FirstWith, ForDevice, Options
from fusewire.process.codec import read_value, write_value
from fusewire.process.frames import Blobs, Frame
from fusewire.process.pool import Seat
from fusewire.registry import REGISTRY, Registry
from fusewire.registry.plugins import Plugins
from fusewire.store.disk import Store

_POLICIES = {kind.__name__: kind for kind in (ForDevice, FirstWith)}


@dataclass(frozen=True)
class FileSource:
    """A file, and how it was read: with the inputs as example, or without any."""

    path: str
    digest: str
    has_example: bool
    is_open: bool


@dataclass(frozen=True, eq=False)
class ComparisonJob:
    """What to compare, how, and where to record the result."""

    options: Options
    store: Store
    model: FileSource | Graph
    inputs: Sequence[HostValue]
    registry: Registry = REGISTRY

    def written(self) -> Frame:
        """Write the job as a frame."""
        blobs: Blobs = []
        store = self.store
        header: dict[str, Any] = {
            "options": _option_data(self.options),
            "store": [str(store.path), store.secret.hex() if store.secret else None],
            "registry": _registry_data(self.registry),
            "inputs": [write_value(x, blobs) for x in self.inputs],
            "samples": _sample_data(self.options.calibrate, blobs),
            "ops": OUTSIDE.references(),
        }
        if isinstance(self.model, FileSource):
            header["file"] = asdict(self.model)
        else:
            header |= Seat().written(self.model, blobs)
        return Frame(header, blobs)


def read_job(frame: Frame) -> ComparisonJob:
    """Read a job that this user's own process wrote."""
    header, given = frame.header, iter(frame.blobs)
    OUTSIDE.know(header["ops"])
    path, secret = header["store"]
    store = Store(Path(path), secret=bytes.fromhex(secret) if secret else None)
    inputs = [read_value(x, given) for x in header["inputs"]]
    calibration = _calibration(header["samples"], given)
    model: FileSource | Graph
    if "file" in header:
        model = FileSource(**header["file"])
    else:
        text = next(given).tobytes().decode()
        constants = {}
        for digest, value in header["constants"].items():
            array = read_value(value, given)
            array.flags.writeable = False
            constants[digest] = Constant.of(array)
            constants[digest].is_held = digest in header["kept"]
        model = parse_graph(text, constants)
    options = replace(_options(header["options"]), calibrate=calibration)
    return ComparisonJob(options, store, model, inputs)


def can_be_sent(options: Options, registry: Registry) -> bool:
    """Tell whether another process can be given these options."""
    policy = registry.default if options.backend == "auto" else options.backend
    if not isinstance(policy, str | tuple | ForDevice | FirstWith):
        return False
    try:
        json.dumps(_option_data(options))
    except TypeError:
        return False
    return True


def _option_data(options: Options) -> dict[str, Any]:
    apart = ("progress", "calibrate")
    names = [field.name for field in fields(Options) if field.name not in apart]
    row: dict[str, Any] = {name: getattr(options, name) for name in names}
    policy = options.backend
    if isinstance(policy, ForDevice | FirstWith):
        row["backend"] = {"is": type(policy).__name__, **asdict(policy)}
    return {**row, "backend_config": dict(options.backend_config), "start": "measured"}


def _options(row: Mapping[str, Any]) -> Options:
    policy = row["backend"]
    if isinstance(policy, Mapping):
        named = {key: _tuples(value) for key, value in policy.items() if key != "is"}
        policy = _POLICIES[policy["is"]](**named)
    config = {key: _tuples(value) for key, value in row["backend_config"].items()}
    return Options(**{**row, "backend": policy, "backend_config": config})


def _sample_data(calibration: Calibration | None, blobs: Blobs) -> Any:
    """Write samples: each as names, or numbers, and arrays."""
    if calibration is None:
        return None
    samples: list[Sample] = [
        *calibration.samples,
        *([calibration.stacked] * calibration.is_stacked),
    ]
    rows = [
        [list(one), [write_value(x, blobs) for x in one.values()]]
        if isinstance(one, Mapping)
        else [None, [write_value(x, blobs) for x in one]]
        for one in samples
    ]
    return {"digest": calibration.digest, "is_stacked": calibration.is_stacked, "rows": rows}


def _calibration(data: Any, given: Iterator[Any]) -> Calibration | None:
    """Read samples."""
    if data is None:
        return None
    samples: list[Any] = []
    for names, row in data["rows"]:
        arrays = [read_value(x, given) for x in row]
        named = names is not None
        samples.append(dict(zip(names, arrays, strict=True)) if named else tuple(arrays))
    if data["is_stacked"]:
        return Calibration(data["digest"], stacked=samples[0])
    return Calibration(data["digest"], tuple(samples))


def _tuples(value: Any) -> Any:
    """Turn lists back into tuples, which JSON does not have."""
    return tuple(value) if isinstance(value, list) else value


def _groups(registry: Registry) -> dict[str, Plugins[Any]]:
    return {"backends": registry.backends, "extensions": registry.extensions}


def _registry_data(registry: Registry) -> dict[str, Any]:
    rows: dict[str, Any] = {
        name: {x: plugins.describe(x).reference for x in plugins.names()}
        for name, plugins in _groups(registry).items()
    }
    return {**rows, "default": registry.default}


def apply_registry(row: Mapping[str, Any]) -> None:
    """Have the backends and extensions that the other process has, and no others."""
    for name, plugins in _groups(REGISTRY).items():
        wanted: Mapping[str, str] = row[name]
        for known in plugins.names():
            if plugins.describe(known).reference != wanted.get(known):
                plugins.unregister(known)
        for missing in wanted.keys() - set(plugins.names()):
            plugins.register(missing, wanted[missing])
    if row["default"] != "auto":
        REGISTRY.set_default(row["default"])
