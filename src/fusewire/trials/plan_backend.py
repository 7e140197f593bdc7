"""A whole plan as a backend, so that a child can run it like a region.

A plan of several regions is timed and judged as a whole, transfers included, in a child that loads
the engines concerned. It exists for trials alone: the parent builds the chosen plan itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from fusewire.contract.backend import (
    Artifact,
    Backend,
    BackendInfo,
    Config,
    Device,
    Exchange,
    Executable,
    Fact,
    Gap,
    Held,
    Into,
    Offer,
    Refusal,
    Unavailable,
)
from fusewire.contract.region import claim_by_table, edge_slots, first_device, weight_slots
from fusewire.ir.graph import Array, Constant, Graph
from fusewire.ir.text import INLINE_BYTES, parse_graph, print_graph
from fusewire.options import FALLBACK
from fusewire.plan.execute import PlanRunner
from fusewire.plan.plan import Plan
from fusewire.planning.candidates import Candidate, allowed
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from fusewire.process.trial import backend_of
from fusewire.trials.build import BuildTarget, PlanBuilder

REFERENCE = "fusewire.trials.plan_backend:PlanBackend"
# Options of this backend itself: the references of backends, in order, and the ids of their
# devices. All other options are for the first backend of the plan.
_BACKENDS, _DEVICES = "plan_backends", "plan_devices"
# Whether to measure how much of its time a plan spends outside of its backends, and the metric.
_MEASURED, OUTSIDE_SHARE = "plan_measured", "outside_share"
# The runs that measure it, and the seconds after which no further one begins.
_RUNS, _SECONDS = 5, 1.0


def plan_config(
    config: Config,
    candidate: Candidate,
    reference_of: Callable[[str], str],
    *,
    measures_outside: bool = False,
) -> Config:
    """Add the references of the plan's backends, the fallback last, to a configuration.

    With ``measures_outside``, ``OUTSIDE_SHARE`` of the loaded plan is the share of its time that
    other backends than those of its targets take.
    """
    targets = candidate.targets
    names = [*(target.name for target in targets), FALLBACK]
    own: dict[str, Fact] = {
        _BACKENDS: tuple(map(reference_of, names)),
        _DEVICES: tuple(target.device.id for target in targets),
        _MEASURED: measures_outside,
    }
    return replace(config, options={**config.options, **own})


@final
class PlanBackend(Backend):
    """Plans a graph for the backends that its configuration names, and runs the plan."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}

    @property
    def info(self) -> BackendInfo:
        """A backend for trials of plans; its engines read their variables."""
        names = (name for x in self._backends.values() for name in x.info.environment)
        return BackendInfo(
            "rehearsal", "1", "A plan in a child.", "fusewire", environment=tuple(names)
        )

    @property
    def gaps(self) -> Sequence[Gap]:
        """None of its own."""
        return ()

    @property
    def exchange(self) -> Exchange:
        """Arrays of the host."""
        return Exchange(needs_contiguous=False)

    def probe(self) -> list[Device | Unavailable]:
        """The host."""
        return [Device("cpu", "the host")]

    def claim(self, graph: Graph, device: Device) -> list[Offer | Refusal]:
        """Take all of it."""
        return claim_by_table(graph, lambda node: None, shapes="dynamic")

    def prepare(self, config: Config) -> None:
        """Import the backends of the plan, and have them prepare."""
        references: Any = config.options.get(_BACKENDS, ())
        for reference in dict.fromkeys(references):
            self._backend(reference).prepare(config)

    def _backend(self, reference: str) -> Backend:
        if reference not in self._backends:
            self._backends[reference] = backend_of(reference)
        return self._backends[reference]

    def compile(self, region: Graph, device: Device, config: Config) -> Artifact:
        """Print the graph; the engines compile when it is loaded."""
        text = print_graph(region).encode()
        weights = weight_slots(region, INLINE_BYTES + 1)
        launch: dict[str, Fact] = {**config.options, "deterministic": config.deterministic}
        if config.threads is not None:
            launch["threads"] = config.threads
        return Artifact("rebuild", text, (*edge_slots(region), *weights), launch=launch)

    def load(self, artifact: Artifact, device: Device, weights: Mapping[str, Array]) -> Executable:
        """Plan the graph, and make a runner of the plan."""
        constants = {digest: Constant.of(array) for digest, array in weights.items()}
        graph = parse_graph(artifact.payload.decode(), constants)
        launch: dict[str, Any] = dict(artifact.launch)
        *engines, last = map(self._backend, launch.pop(_BACKENDS))
        fallback = _target(last, None)
        devices = launch.pop(_DEVICES)
        targets = [_target(*pair) for pair in zip(engines, devices, strict=True)]
        is_measured = launch.pop(_MEASURED)
        threads, deterministic = launch.pop("threads", None), launch.pop("deterministic")
        config = Config(threads, None, deterministic)

        def plan(part: Graph) -> Plan:
            return make_plan(part, allowed(targets, fallback, True), fallback).plan

        builder = PlanBuilder(
            BuildTarget.of(targets[0], replace(config, options=launch)),
            BuildTarget.of(fallback, Config()),
            "allow",
            targets[0].limits.seconds,
            plan_body=plan,
            others=tuple(BuildTarget.of(target, config) for target in targets[1:]),
        )
        whole = plan(graph)
        runner = PlanRunner(whole, builder)
        names = [target.name for target in targets]
        return _MeasuredPlan(runner, whole.outside(names)) if is_measured else runner


@final
class _MeasuredPlan(Executable):
    """Runs a plan; its metrics say which share of the time some of its steps take."""

    def __init__(self, runner: PlanRunner, outside: Sequence[int]) -> None:
        self._runner, self._outside = runner, outside
        self._inputs: Sequence[Held] | None = None

    @property
    def is_reentrant(self) -> bool:
        """As the plan itself."""
        return True

    def run(self, inputs: Sequence[Held], into: Into = ()) -> list[Held]:
        """Run the plan; the first inputs serve to measure it, too."""
        if self._inputs is None:
            self._inputs = list(inputs)
        return self._runner.run(inputs, into)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The share of the time outside, after a first run."""
        if self._inputs is None:
            return {}
        end = time.monotonic() + _SECONDS
        shares: list[float] = []
        while len(shares) < _RUNS and (not shares or time.monotonic() < end):
            shares.append(self._measured(self._inputs))
        return {OUTSIDE_SHARE: statistics.median(shares)}

    def _measured(self, inputs: Sequence[Held]) -> float:
        taken: dict[int, float] = {}

        def note(number: int, start: float, end: float) -> None:
            taken[number] = end - start

        self._runner.timed(inputs, note)
        total = sum(taken.values())
        return sum(taken[number] for number in self._outside) / total if total else 0.0


def _target(backend: Backend, device: str | None) -> Target:
    devices = [x for x in backend.probe() if isinstance(x, Device) and x.id == device]
    return Target(backend, devices[0] if devices else first_device(backend))
