"""Scatter trials over the machines of a Ray cluster, or run them here one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fusewire.errors import JobError
from fusewire.options import Options
from fusewire.ray.cluster import connected
from fusewire.ray.host import machine_kind
from fusewire.ray.shared_model import SharedModel
from fusewire.ray.trials import AUTO, FleetTrial, run_trial, shapes_text
from fusewire.registry import REGISTRY

# The resource of a raylet that says which kind of machine it is on: "kind:c7i.large".
KIND = "kind:"
# Tasks that wait in the cluster at a time; all others wait here.
_MOST_WAITING = 256
# How often a trial is begun again whose worker or machine died.
_RETRIES = 20

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class TunedModel:
    """A model file, and the inputs of one choice of sizes, by name and in order."""

    path: str | os.PathLike[str]
    inputs: Mapping[str, Any]


def tune(
    models: Sequence[TunedModel],
    *,
    engines: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    ray: str | None = None,
    options: Options | None = None,
    report: Report = lambda record: None,
) -> list[dict[str, Any]]:
    """Run one trial for each model and sizes, engine, and kind of machine; return the records.

    ``engines`` are by default those that are installed here, and "auto", which compares them and
    records the plan that ``fw.compile`` recalls. A trial that is recorded is not run again. Without
    ``ray``, all run in this process, for this kind of machine.
    """
    engines = [*(engines or [*REGISTRY.backends.names(), AUTO])]
    for name in engines:
        if name != AUTO:
            REGISTRY.backends.describe(name)
    chosen = options or Options()
    if ray is None:
        if kinds not in (None, [machine_kind()]):
            raise JobError(f"This machine is of the kind {machine_kind()}. Give --ray for others.")
        given = _trials(models, engines, [machine_kind()], chosen, None)
        found = (run_trial(trial, inputs) for trial, inputs in given)
        return _reported(found, report)
    with connected(ray, resources={f"{KIND}{machine_kind()}": 1}) as cluster:
        present = kinds_of(cluster)
        if missing := sorted(set(kinds or ()) - set(present)):
            raise JobError(
                f"No machine of the cluster is of the kind {missing[0]}. Kinds: "
                f"{', '.join(present) or 'none'}. Start a raylet with --resources="
                f"'{{\"{KIND}{missing[0]}\": 1}}'."
            )
        given = _trials(models, engines, list(kinds or present or [""]), chosen, cluster.put)
        return _reported(_scattered(cluster, given), report)


def kinds_of(cluster: Any) -> list[str]:
    """List the kinds of machines of a cluster, by the resources of their raylets."""
    names = {name for node in cluster.nodes() if node["Alive"] for name in node["Resources"]}
    return sorted(name.removeprefix(KIND) for name in names if name.startswith(KIND))


def _trials(
    models: Sequence[TunedModel],
    engines: Sequence[str],
    kinds: Sequence[str],
    options: Options,
    put: Callable[[Any], Any] | None,
) -> Iterator[tuple[FleetTrial, Any]]:
    """Yield every trial and its inputs; a model is stored once for all of its trials."""
    shared: dict[str, SharedModel] = {}
    for model in models:
        path = str(Path(model.path).resolve())
        if path not in shared:
            shared[path] = SharedModel.of(path, put)
        inputs = put(dict(model.inputs)) if put else model.inputs
        for engine in engines:
            for kind in kinds:
                name, shapes = Path(path).stem, shapes_text(model.inputs)
                yield FleetTrial(shared[path], name, shapes, engine, kind, options), inputs


def _scattered(cluster: Any, trials: Iterator[tuple[FleetTrial, Any]]) -> Iterator[dict[str, Any]]:
    """Run trials as tasks; each takes a machine's whole kind, so that one runs at a time."""
    task = cluster.remote(num_cpus=1, max_retries=_RETRIES)(run_trial)
    waiting: dict[Any, FleetTrial] = {}
    for trial, inputs in trials:
        resources = {f"{KIND}{trial.kind}": 1} if trial.kind else {}
        local = replace(trial, kind=trial.kind or "any")
        waiting[task.options(resources=resources).remote(local, inputs)] = local
        if len(waiting) >= _MOST_WAITING:
            yield _next_record(cluster, waiting)
    while waiting:
        yield _next_record(cluster, waiting)


def _next_record(cluster: Any, waiting: dict[Any, FleetTrial]) -> dict[str, Any]:
    """Wait for one trial; one whose worker died too often has no record, and says so."""
    (done,), _ = cluster.wait(list(waiting))
    trial = waiting.pop(done)
    try:
        record: dict[str, Any] = cluster.get(done)
    except cluster.exceptions.RayError as error:
        return trial.about(host="") | {
            "status": "killed",
            "reason": f"Its worker died {_RETRIES + 1} times: {error}",
            "is_recalled": False,
            "unpublished": None,
        }
    return record


def _reported(records: Iterator[dict[str, Any]], report: Report) -> list[dict[str, Any]]:
    found = []
    for record in records:
        report(record)
        found.append(record)
    return found
