"""One trial: a model at some sizes on one engine, timed on one host and recorded by itself.

A trial may be run again by whoever scatters it, after a death that came before or after its record
was written. It runs while no other trial of this host does, looks first for its record, and writes
it last: a host has at most one record of a trial.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fusewire.compiler import Session
from fusewire.errors import (
    EngineError,
    FusewireError,
    NoneRightError,
    StoreError,
    UnavailableError,
)
from fusewire.options import Options
from fusewire.ray.host import host_id, one_at_a_time
from fusewire.ray.shared_model import SharedModel
from fusewire.records.entries import Records
from fusewire.records.keys import code_fields
from fusewire.registry import REGISTRY
from fusewire.session.context import CompileContext
from fusewire.session.model_source import ModelSource
from fusewire.show.why import Tried
from fusewire.store.disk import Store, remote_address
from fusewire.store.key import Key
from fusewire.store.secret import config_path

# Compares all engines, and records the plan that ``fw.compile`` recalls.
AUTO = "auto"
# How often a request to the shared store is made before the trial goes on without it.
_TRIES = 3
_FIGURES = ("seconds", "low", "high", "error", "compile_seconds", "memory_bytes")


@dataclass(frozen=True)
class FleetTrial:
    """A model at some sizes on one engine, for one kind of machine."""

    model: SharedModel
    name: str
    shapes: str
    engine: str
    kind: str
    options: Options = field(default_factory=Options)

    @property
    def id(self) -> str:
        """What identifies the trial to people."""
        return f"{self.name} {self.shapes} {self.engine} {self.kind}"

    def about(self, host: str) -> dict[str, Any]:
        """Describe the trial on a host, as records do."""
        return {
            "trial": self.id,
            "model": self.name,
            "shapes": self.shapes,
            "engine": self.engine,
            "kind": self.kind,
            "host": host,
        }

    def key(self, host: str | None = None) -> Key:
        """Name the record of this trial on a host; without one, that it was done at all."""
        # A comparison is another one with other versions of any engine.
        engines = REGISTRY.backends.names() if self.engine == AUTO else [self.engine]
        versions = [REGISTRY.backends.get(name).info.version for name in engines]
        return Key.of(
            "measurement",
            trial=self.model.digest,
            shapes=self.shapes,
            engine=self.engine,
            versions=", ".join(f"{x} {y}" for x, y in zip(engines, versions, strict=True)),
            machine=self.kind,
            budget=self.options.budget_seconds,
            threads=self.options.threads or "default",
            seed=self.options.seed,
            options=_options_text(self.options),
            **code_fields(self.engine),
            host=host or "any",
        )


def _options_text(options: Options) -> str:
    """Write the options that change what is measured, besides those that are fields."""
    names = ("device", "level", "fallback", "isolate", "deterministic", "memory_limit")
    return ", ".join(f"{name}={getattr(options, name)}" for name in names)


def shapes_text(inputs: Mapping[str, Any]) -> str:
    """Name the types of inputs, in their order."""
    shown = (f"{name}={_type_text(value)}" for name, value in inputs.items())
    return " ".join(shown)


def _type_text(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def run_trial(trial: FleetTrial, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Measure on this host and record it, or return what is recorded."""
    options = replace(trial.options, backend=trial.engine, start="measured")
    if trial.engine != AUTO:
        options = replace(options, level=1)
    records = CompileContext(options).records
    start = time.time()
    record = _recorded(trial, options, records, inputs)
    address = options.remote or remote_address()
    # After the turn of this host: a store that is slow keeps no other trial waiting.
    return {**record, "unpublished": _publish(records.store, address, start)}


def _recorded(
    trial: FleetTrial, options: Options, records: Records, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Recall the record of a trial, or measure and write it, while no other trial runs here."""
    with one_at_a_time():
        if (known := _known(records, trial)) is not None:
            return {**known, "is_recalled": True}
        began = time.time()
        record = {
            **trial.about(host_id()),
            **_measured(trial, options, inputs),
            "began": began,
            "ended": time.time(),
        }
        if record["status"] not in ("not started", "killed"):
            _keep(records, trial, record)
        return {**record, "is_recalled": False}


def _known(records: Records, trial: FleetTrial) -> dict[str, Any] | None:
    """Return the record of this host, or of another host of the same kind."""
    held = records.get(trial.key(host_id()))
    if held is None and (other := records.get(trial.key())) is not None:
        held = records.get(trial.key(str(json.loads(other).get("host"))))
    try:
        known = None if held is None else json.loads(held)
    except ValueError:
        return None
    return known if isinstance(known, dict) and "status" in known else None


def _keep(records: Records, trial: FleetTrial, record: Mapping[str, Any]) -> None:
    records.put(trial.key(host_id()), json.dumps(record).encode())
    # Says which host to ask for; a later one of the same trial replaces it.
    records.put(trial.key(), json.dumps({"host": host_id()}).encode())


def _publish(store: Store | None, address: str | None, since: float) -> str | None:
    """Sign what a trial used and recorded for the shared store; a sentence says why it is not."""
    if store is None or address is None:
        return None
    from fusewire.store.remote import RemoteClient
    from fusewire.store.sharing import Release, SharedStore
    from fusewire.store.signing import PRIVATE, AllowedSigners, Signer
    from fusewire.store.transport import open_transport

    path = config_path() / PRIVATE
    if not path.exists():
        return f"This host has no key {path} to sign with."
    try:
        client = RemoteClient(AllowedSigners.read(), Signer.read(path), store, tries=_TRIES)
        shared = SharedStore(open_transport(address), client)
        # Some file systems keep times in whole seconds.
        moved = shared.push(store, Release.now(), since=since - 1.0)
    except (StoreError, OSError) as error:
        return str(error)
    return moved.refused[0] if moved.refused else None


def _measured(trial: FleetTrial, options: Options, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Time the engine, and say how it did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session, path = Session(options), trial.model.path()
            values = tuple(inputs.values())
            if trial.engine == AUTO:
                # Records the plan for open sizes, unless other sizes have done so.
                with closing(session.program(ModelSource(path))) as program:
                    program(*values)
            # As an example, so that the plan of other sizes is not recalled for these.
            with closing(session.program(ModelSource(path), values)) as program:
                program(*values)
                rows = [row for row in program.why().tried if _is_of(row, trial.engine)]
    except NoneRightError as error:
        rows = [row for row in error.tried if _is_of(row, trial.engine)]
        if not rows:
            return {"status": "refused", "reason": str(error)}
    except UnavailableError as error:
        status = "not started" if error.is_momentary else "unavailable"
        return {"status": status, "reason": str(error)}
    except EngineError as error:
        return {"status": "failed", "reason": str(error)}
    except FusewireError as error:
        return {"status": "refused", "reason": str(error)}
    return _best(rows)


def _is_of(row: Tried, engine: str) -> bool:
    return row.is_chosen if engine == AUTO else row.backend == engine


def _best(rows: list[Tried]) -> dict[str, Any]:
    """Describe the row that is chosen, or else the fastest, or else the first."""
    timed = sorted(
        (row for row in rows if row.seconds is not None),
        key=lambda row: (not row.is_chosen, row.status != "right", row.seconds or 0.0),
    )
    if not rows:
        return {"status": "not tried", "reason": "No candidate of this engine was tried."}
    row = timed[0] if timed else rows[0]
    figures = {name: getattr(row, name) for name in _FIGURES}
    about = {"name": row.name, "backend": row.backend, "device": row.device, "form": row.form}
    return {"status": row.status, "reason": row.reason, **about, **figures}
