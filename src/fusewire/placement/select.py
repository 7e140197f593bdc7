"""Which backend comes first: a name, a device, a capability, a function of the user's, or auto.

Each policy gives homes in the order of preference. ``auto`` takes the backend that runs the graph
in the fewest regions; measuring takes its place when there is something to measure with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusewire.backend import Device, Offer, Unavailable
from fusewire.errors import FusewireError, RegistryError
from fusewire.ir.graph import Graph
from fusewire.placement.planner import Home, make_plan
from fusewire.registry import Registry


@dataclass(frozen=True)
class ForDevice:
    """Prefer backends that run on a device: ``ForDevice("webgpu:0")`` or a kind of device."""

    device: str


@dataclass(frozen=True)
class FirstWith:
    """Prefer the first backend that takes every one of these ops whole."""

    ops: tuple[str, ...]


# A name, "auto", one of the policies above, or a function from homes and graph to the chosen home.
Chooser: TypeAlias = Callable[[Sequence[Home], Graph], Home]
Policy: TypeAlias = "str | ForDevice | FirstWith | Chooser"


def choose(policy: Policy, device: str | None, graph: Graph, registry: Registry) -> Home:
    """Find the home that a policy wants for a graph; RegistryError says why there is none."""
    policy = registry.default if policy == "auto" else policy
    if isinstance(policy, str) and policy != "auto":
        return _named(registry, policy, device)
    homes = available(registry)
    if device is not None or isinstance(policy, ForDevice):
        wanted = policy.device if isinstance(policy, ForDevice) else device
        homes = [home for home in homes if wanted in (home.device.id, home.device.kind)]
    if isinstance(policy, FirstWith):
        homes = [home for home in homes if _takes(home, graph, policy.ops)]
    if not homes:
        raise RegistryError(f"No backend here fits {policy!r}. `fusewire devices` lists all.")
    if callable(policy):
        return policy(homes, graph)
    return _fewest_regions(homes, graph)


def _named(registry: Registry, name: str, device: str | None) -> Home:
    backend = registry.backends.get(name)
    found = backend.probe()
    for item in found:
        if isinstance(item, Device) and device in (None, item.id, item.kind):
            return Home(backend, item)
    reasons = " ".join(f"{x.reason} {x.fix}" for x in found if isinstance(x, Unavailable))
    have = ", ".join(x.id for x in found if isinstance(x, Device)) or "none"
    raise RegistryError(
        f"{name} was asked to run on {device or 'any device'} and has {have}. {reasons}".rstrip()
    )


def available(registry: Registry) -> list[Home]:
    """List every backend with each of its devices, the most preferred first."""
    return [Home(backend, x) for backend, x in registry.devices() if isinstance(x, Device)]


def _takes(home: Home, graph: Graph, ops: Iterable[str]) -> bool:
    """Tell whether a backend offers all nodes of these ops."""
    answers = home.backend.claim(graph, home.device)
    offered = {place for x in answers if isinstance(x, Offer) for place in x.nodes}
    wanted = set(ops)
    return all(place in offered for place, node in enumerate(graph.nodes) if node.op in wanted)


def _fewest_regions(homes: Sequence[Home], graph: Graph) -> Home:
    best, fewest = homes[-1], None
    for home in homes:
        try:
            count = len(make_plan(graph, [home, homes[-1]]).plan.steps)
        except FusewireError:
            continue
        if fewest is None or count < fewest:
            best, fewest = home, count
        if count == 1:
            break
    return best
