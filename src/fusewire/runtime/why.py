"""Why a program runs as it does, as data: what each backend said of each node, and what came of it.

Plain values that become JSON. Who fills them is in placement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fusewire.errors import GraphError

# What a node works on: tensors of the model, whole bodies, or sizes of tensors.
Work = Literal["data", "control", "shape"]


@dataclass(frozen=True)
class NodeVerdict:
    """What one backend said of one node, and what came of it where it was tried.

    A refusal has a code and a reason. ``seconds`` are those of the whole region that the node
    would be in, ``error`` its worst error over the tolerance, ``cache`` where both are from.
    """

    backend: str
    is_offered: bool
    code: str = ""
    reason: str = ""
    suggestion: str = ""
    status: str = ""
    seconds: float | None = None
    error: float | None = None
    cache: str = ""


@dataclass(frozen=True)
class NodeWhy:
    """Where a node runs and what was said of it.

    ``place`` is its number in the graph of the plan; in a body, that of the node around it comes
    first: "4.then.0". ``backend`` is "host" for control flow whose bodies run by plan.
    """

    place: str
    op: str
    types: tuple[str, ...]
    source: str
    work: Work
    backend: str
    region: str
    verdicts: tuple[NodeVerdict, ...]


@dataclass(frozen=True)
class RegionWhy:
    """Nodes that run together, by plan; what first contact made of it is in ``Contacted``."""

    name: str
    backend: str
    device: str
    shapes: str
    nodes: int


@dataclass(frozen=True)
class Contacted:
    """What became of a region when it met its engine, for inputs of these types.

    ``outcome`` is "ready", or the code of what the engine did instead; then another backend runs
    it. ``metrics`` has the seconds of each phase and the bytes of memory, where a child met it.
    ``cache`` is "hit", "off", or what differs from what is remembered.
    """

    region: str
    backend: str
    inputs: tuple[str, ...]
    outcome: str
    runs_on: str
    is_isolated: bool
    reason: str = ""
    suggestion: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    cache: str = ""


@dataclass(frozen=True)
class Tried:
    """One way to run all of a graph, as it was found when ways were compared.

    ``status`` is "right", "wrong", "cannot say" or "not judged" of what ran, and "refused" of what
    did not; ``seconds`` is the median, which lies between ``low`` and ``high`` with 95%
    confidence. ``error`` is the worst error over the tolerance. ``elsewhere`` counts the nodes on
    data that another backend runs, for a reason that is given of the first. ``cache``: "hit" for
    what an earlier comparison found. ``tuned`` tells of kernels how each is cut at level 3, and how
    many times as fast that made it.
    """

    name: str
    backend: str
    device: str
    form: str
    status: str
    reason: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    unjudged: float | None = None
    judged_on: tuple[str, ...] = ()
    compile_seconds: float | None = None
    memory_bytes: int | None = None
    regions: int = 1
    elsewhere: int = 0
    elsewhere_why: str = ""
    is_software: bool = False
    is_chosen: bool = False
    cache: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tuned: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Expanded:
    """A composite that a backend refused whole and was given in parts."""

    backend: str
    op: str
    reason: str


@dataclass(frozen=True)
class Why:
    """All that was said and done for one graph; ``notes`` are decisions about all of it."""

    backend: str
    device: str
    fallback: str
    nodes: tuple[NodeWhy, ...]
    regions: tuple[RegionWhy, ...]
    expanded: tuple[Expanded, ...]
    contacts: tuple[Contacted, ...]
    notes: tuple[str, ...] = ()
    # Ways that were compared, the chosen one first; none where a backend was asked for by name.
    tried: tuple[Tried, ...] = ()

    def node(self, place: int | str) -> NodeWhy:
        """Find a node by its place; GraphError when there is none."""
        for found in self.nodes:
            if found.place == str(place):
                return found
        most = sum("." not in node.place for node in self.nodes) - 1
        raise GraphError(
            f"There is no node {place!r}. Give a place of the plan's graph, 0 to {most}, or one in "
            "a body, such as '4.then.0'."
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Count nodes by what they work on and by who runs them.

        Fallback is off when all "data" runs on one engine; the host may drive the rest.
        """
        counted = Counter((node.work, node.backend) for node in self.nodes)
        table: dict[str, dict[str, int]] = {"data": {}, "control": {}, "shape": {}}
        for (work, backend), count in counted.items():
            table[work][backend] = count
        return table

    def to_data(self) -> dict[str, Any]:
        """Give it as what JSON has."""
        return {**asdict(self), "counts": self.counts()}

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(self.to_data(), indent=1)
