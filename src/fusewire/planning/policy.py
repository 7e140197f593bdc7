"""Which backend comes first: names, a device, a capability, a function of the user, or auto.

Each policy yields targets in order of preference. At level 0, ``auto`` takes the backend that runs
the graph in the fewest regions; higher levels race the targets instead. Of several names, all have
a part in one plan.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fusewire.contract.backend import BackendInfo, Offer
from fusewire.contract.devices import answers_to, is_alike, on_device
from fusewire.errors import EngineError, RegistryError, UnavailableError
from fusewire.ir.graph import Graph, Node
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op
from fusewire.options import LONG_BUDGET, FirstWith, ForDevice, Policy
from fusewire.planning.claims import Claimed, ask_safely
from fusewire.planning.partition import partition
from fusewire.planning.target import Target
from fusewire.process.limits import ChildLimits
from fusewire.registry import Registry


@dataclass(frozen=True)
class TargetFinder:
    """Finds targets; backends are probed in children unless ``isolate`` is off.

    With ``is_ahead``, the next backends are probed while the caller is busy with the one it got.
    Unless ``has_slow``, those that compile for long are left out where none is named.
    """

    registry: Registry
    isolate: bool = True
    limits: ChildLimits = field(default_factory=ChildLimits)
    is_ahead: bool = False
    has_slow: bool = False

    def reference_of(self, name: str) -> str:
        """Return "module:Class" of a backend, with its extensions, for a child to load."""
        return self.registry.meet(name, isolate=self.isolate, limits=self.limits).reference

    def targets(self, name: str) -> list[Target]:
        """List the targets of a backend; UnavailableError says why there is none."""
        met = self.registry.meet(name, isolate=self.isolate, limits=self.limits)
        if not met.devices:
            is_said = met.is_momentary or met.is_missing
            lacks = "" if is_said else f"{name} has no device here. "
            raise UnavailableError(f"{lacks}{met.reasons}".rstrip(), met.is_momentary)
        backend = self.registry.get(name, isolate=self.isolate, limits=self.limits)
        reference = met.reference if self.isolate and not backend.info.trusted else None
        return [Target(backend, device, reference, self.limits) for device in met.devices]

    def all_targets(self) -> Iterator[Target]:
        """Yield every target, the most preferred first, as its backend is probed."""
        names = self._searched()
        if self.is_ahead and self.isolate:
            self.registry.meet_in_thread(names, self.limits)
        for name in names:
            with contextlib.suppress(RegistryError):
                yield from self.targets(name)

    def expected(self) -> list[str]:
        """List backends that "auto" chooses from here, or may: they are not probed yet."""
        return [name for name in self._searched() if self._may_be_chosen(name)]

    def _searched(self) -> list[str]:
        names = self.registry.ranked(isolate=self.isolate, limits=self.limits)
        left_out = self.left_out()
        return [name for name in names if name not in left_out]

    def left_out(self) -> dict[str, str]:
        """List the backends that compile for long and are left out of a search, and say why."""
        found = {}
        for name in self.registry.backends.names():
            with contextlib.suppress(RegistryError):
                info = self.registry.get(name, isolate=self.isolate, limits=self.limits).info
                if not (info.is_slow and info.is_installed):
                    continue
                if (program := _missing_program(info)) is not None:
                    found[name] = f"It is left out: it compiles with {program}, which is not here."
                elif not self.has_slow:
                    found[name] = why_left_out(info)
        return found

    def is_missing(self, name: str) -> bool:
        """Tell whether nothing but a package is missing of a backend."""
        return self.registry.meet(name, isolate=self.isolate, limits=self.limits).is_missing

    def _may_be_chosen(self, name: str) -> bool:
        met = self.registry.known(name)
        if met is None:
            return self.registry.backends.get(name).info.is_installed
        return not all(device.facts.get("interprets") for device in met.devices)


def _missing_program(info: BackendInfo) -> str | None:
    """Name a program that a backend compiles with and that is not on the PATH."""
    named = (program for program in info.programs if not program.startswith("/"))
    return next((program for program in named if shutil.which(program) is None), None)


def why_left_out(info: BackendInfo) -> str:
    """Say why a search leaves a backend out that compiles for long, and what would include it."""
    return (
        f"It is left out: compiling takes about {info.compile_seconds:.0f} s. Give it a budget of "
        f'{LONG_BUDGET:.0f} s or more, ask for level=2, or ask for backend="{info.name}".'
    )


def listed(
    names: Sequence[str], device: str | None, finder: TargetFinder, absent: list[str] | None = None
) -> list[Target]:
    """Find the targets of several backends, in order; the first has the device, if one is given.

    The others take the device where they have it, and otherwise their own first. Sentences about
    those that have no device here go to ``absent``, if there is such a list and a backend is left;
    UnavailableError if there is none. A backend that is not installed is always an error: its name
    says that it is wanted.
    """
    targets: list[Target] = []
    for name in names:
        try:
            its = finder.targets(name)
        except UnavailableError as error:
            if absent is None or finder.is_missing(name):
                raise UnavailableError(_in_list(error, name, names), error.is_momentary) from error
            absent.append(str(error))
            continue
        has_it = device is not None and any(answers_to(x.device, device) for x in its)
        targets.append(_named(its, name, device if has_it or name == names[0] else None))
    if not targets:
        raise UnavailableError(" ".join(absent or ()))
    return targets


def _in_list(error: UnavailableError, name: str, names: Sequence[str]) -> str:
    rest = ", ".join(repr(other) for other in names if other != name)
    return f"{error} Or leave {name} out: backend=[{rest}]."


def soonest(policy: Policy, device: str | None, graph: Graph, finder: TargetFinder) -> Target:
    """Find a target that can answer soon: one engine that runs most of a graph is good enough.

    No other is started to see whether it runs more, unless the policy wants one.
    """
    name = finder.registry.first_of_ours()
    is_free = policy == finder.registry.default == "auto" and device is None
    if is_free and name is not None:
        with contextlib.suppress(RegistryError):
            for target in finder.targets(name):
                if interprets(target):
                    continue
                claimed = ask_safely(target, graph)
                if claimed.fault is None and 2 * len(claimed.shapes) >= len(claimed.graph.nodes):
                    return target
    return choose(policy, device, graph, finder)


def choose(policy: Policy, device: str | None, graph: Graph, finder: TargetFinder) -> Target:
    """Find the target that a policy wants for a graph; RegistryError says why there is none."""
    policy = finder.registry.default if policy == "auto" else policy
    targets = fitting(policy, device, graph, finder)
    if callable(policy):
        offered = list(targets)
        chosen: Target | None = policy(offered, graph) if offered else None
    elif isinstance(policy, tuple) or (isinstance(policy, str) and policy != "auto"):
        chosen = next(targets)
    else:
        chosen = _fewest_regions(targets, graph)
    if chosen is None:
        raise RegistryError(f"No backend here fits {policy!r}. `fusewire devices` lists all.")
    return chosen


def fitting(
    policy: Policy, device: str | None, graph: Graph, finder: TargetFinder
) -> Iterator[Target]:
    """Yield the targets that a policy allows, the most preferred first; of several names, one."""
    if isinstance(policy, tuple):
        return iter(listed(policy, device, finder)[:1])
    if isinstance(policy, str) and policy != "auto":
        return iter([_named(finder.targets(policy), policy, device)])
    targets = finder.all_targets()
    if device is not None or isinstance(policy, ForDevice):
        wanted = policy.device if isinstance(policy, ForDevice) else device
        targets = _on_device(targets, str(wanted))
    else:
        targets = unlike(target for target in targets if not interprets(target))
    if isinstance(policy, FirstWith):
        ops, flags, holds = policy.ops, policy.capabilities, finder.registry.holds
        targets = (x for x in targets if holds(x.name, *flags) and _takes(x, graph, ops))
    return targets


def _on_device(targets: Iterable[Target], wanted: str) -> Iterator[Target]:
    """Yield the targets on a device; RegistryError if there is none: no other takes its place."""
    seen: list[Target] = []
    is_found = False
    for target in on_device(_noted(targets, seen), wanted, lambda target: target.device):
        is_found = True
        yield target
    if not is_found:
        others: dict[str, list[str]] = {}
        for target in seen:
            others.setdefault(target.device.id, []).append(target.name)
        have = "; ".join(f"{device} ({', '.join(names)})" for device, names in others.items())
        raise RegistryError(
            f"No backend here runs on {wanted!r}. Devices: {have or 'none'}. "
            "`fusewire doctor` says what the others lack."
        )


def unlike(targets: Iterable[Target]) -> Iterator[Target]:
    """Yield the first of the devices of a backend that are alike: another is not faster."""
    seen: list[Target] = []
    for target in targets:
        if not any(x.name == target.name and is_alike(x.device, target.device) for x in seen):
            seen.append(target)
            yield target


def _noted(targets: Iterable[Target], seen: list[Target]) -> Iterator[Target]:
    for target in targets:
        seen.append(target)
        yield target


def interprets(target: Target) -> bool:
    """Tell whether a device interprets kernels: it is for debugging, and too slow to choose."""
    return bool(target.device.facts.get("interprets"))


def _named(targets: Sequence[Target], name: str, device: str | None) -> Target:
    for target in targets:
        if answers_to(target.device, device):
            return target
    have = ", ".join(target.device.id for target in targets)
    raise RegistryError(
        f"{name} was asked to run on {device} and has {have}. `fusewire backends` says what "
        "other devices lack."
    )


def _takes(target: Target, graph: Graph, ops: Iterable[str]) -> bool:
    """Tell whether a backend offers all nodes of these ops."""
    try:
        answers = target.claim(graph)
    except EngineError:
        return False
    offered = {place for x in answers if isinstance(x, Offer) for place in x.nodes}
    wanted = set(ops)
    return all(place in offered for place, node in enumerate(graph.nodes) if node.op in wanted)


def _fewest_regions(targets: Iterable[Target], graph: Graph) -> Target | None:
    """Return the first target that runs the whole graph, or the one with the fewest regions."""
    best, fewest = None, 0
    for target in targets:
        claimed = ask_safely(target, graph)
        if claimed.fault is not None:
            continue
        count = _regions(target, claimed)
        if best is None or count < fewest:
            best, fewest = target, count
        if count == 1:
            break
    return best


def _is_control(node: Node) -> bool:
    return get_op(node.op).is_(Trait.CONTROL)


def _regions(target: Target, claimed: Claimed) -> int:
    """Count the regions that claims lead to."""
    # Refused control flow is a region of its own, as in a plan.
    targets = {
        node: target.name if node in claimed.shapes else None if _is_control(node) else ""
        for node in claimed.graph.nodes
    }
    if targets and target.name not in targets.values():
        # One region too, but all of it runs elsewhere: any other target is better.
        return len(targets) + 1
    return len(partition(claimed.graph, targets))
