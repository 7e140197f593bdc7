"""Why a program runs as it does, as data: claims, verdicts and outcomes by node and by region.

Plain values that become JSON; choosing/explain.py fills them in.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fusewire.errors import GraphError
from fusewire.show.contact import Contacted

# What a node works on: tensors of the model, whole bodies, or sizes of tensors.
Work = Literal["data", "control", "shape"]


@dataclass(frozen=True)
class NodeVerdict:
    """The claim of one backend about one node, and the outcome if the backend was tried.

    A refusal has a code and a reason. ``seconds`` and ``error``, the worst error divided by the
    tolerance, are those of the backend's fastest candidate; ``cache`` is "hit" if they were
    recalled.
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
    """Where a node runs, and what each backend says about it.

    ``place`` is its number in the graph of the plan; in a body, that of the node around it comes
    first: "4.then.0". ``backend`` is "host" for control flow whose bodies have plans. ``operands``
    says where each operand comes from: the place of the node that computes it ("3", or "3:1" for
    its second output), "input x" for an input of the graph or body, "constant", or "" if absent.
    """

    place: str
    op: str
    types: tuple[str, ...]
    source: str
    work: Work
    backend: str
    region: str
    verdicts: tuple[NodeVerdict, ...]
    operands: tuple[str, ...] = ()


@dataclass(frozen=True)
class PortWhy:
    """An input or output of the graph; ``operand`` says where an output comes from."""

    name: str
    type: str
    operand: str = ""


@dataclass(frozen=True)
class RegionWhy:
    """A region of the plan; ``Contacted`` has the outcome of its first contact."""

    name: str
    backend: str
    device: str
    shapes: str
    nodes: int


@dataclass(frozen=True)
class FailedCalls:
    """Calls of a region that its engine failed after it was ready.

    The fallback decided each: ``by_caller`` counts those that it failed too, for values that the
    program does not allow, and ``by_engine`` the others, which it answered if that is allowed. An
    engine that fails nearly every call rests for a while: ``rests`` counts how often, and
    ``is_resting`` tells whether the fallback runs the region now. ``recoveries`` counts how often
    it then answered again. ``reason`` is that of the latest failure of the engine.
    """

    region: str
    backend: str
    by_caller: int
    by_engine: int
    rests: int
    recoveries: int
    is_resting: bool
    reason: str = ""


@dataclass(frozen=True)
class Tried:
    """A candidate of a race, with its result.

    ``status`` is "right", "inaccurate", "doubtful", "wrong", "cannot say" or "not judged" if it
    ran; otherwise
    "refused", "killed", "not started", "quarantined", "not tried", or "left out" if its engine
    compiles for longer than a quick search takes. ``seconds`` is the median of the race, in a
    child, which lies between ``low`` and ``high`` with 95% confidence; they are None after one
    sample. ``here`` is that of the latest duel, in the process of the program: the user's own
    function has no other. Only times of one kind are compared. ``error`` is the worst error divided
    by the tolerance. ``backend`` is that of its first engine, and ``engines`` names
    all. ``elsewhere`` counts the nodes on data that the fallback runs;
    ``elsewhere_why`` is the reason of the first. ``cache`` is "hit" for a recalled result.
    ``tuned`` lists the kernels of level 3, with their configurations and speedups. One that
    ``is_reduced`` computes in less than the model's own dtypes, and is right if that is accurate
    enough for the user: ``deviations`` has its largest error on each set of inputs, and 99.9% of
    other inputs stay within ``expected_error``; see ``fusewire.numerics.deviation``. One that
    ``is_barred`` cannot be chosen, whatever its time and status: it holds more than
    ``memory_limit``, is not right at other sizes, or a backend was asked for by name.
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
    engines: tuple[str, ...] = ()
    crossings: int = 0
    is_reduced: bool = False
    deviations: Sequence[Mapping[str, Any]] = ()
    expected_error: float | None = None
    is_barred: bool = False
    here: float | None = None
    here_low: float | None = None
    here_high: float | None = None


@dataclass(frozen=True)
class Expanded:
    """An op that a backend refused whole and got expanded."""

    backend: str
    op: str
    reason: str


@dataclass(frozen=True, repr=False)
class Why:
    """The explanation of one graph; ``notes`` are about the graph as a whole.

    ``backend`` names the engines that run it, joined by " + ", and ``device`` that of the first.
    """

    backend: str
    device: str
    fallback: str
    nodes: tuple[NodeWhy, ...]
    regions: tuple[RegionWhy, ...]
    expanded: tuple[Expanded, ...]
    contacts: tuple[Contacted, ...]
    notes: tuple[str, ...] = ()
    # The candidates of the race, the chosen one first; empty if there was no race.
    tried: tuple[Tried, ...] = ()
    # The calls that engines failed, by region; empty if they failed none.
    failures: tuple[FailedCalls, ...] = ()
    # What is checked of indices and lengths before engines see them.
    guards: tuple[str, ...] = ()
    # The tensors that one backend hands over to another in a run.
    crossings: int = 0
    # What the graph takes and returns, in order.
    inputs: tuple[PortWhy, ...] = ()
    outputs: tuple[PortWhy, ...] = ()
    # The bytes that a run with arrays copies between the host and devices; None if sizes are open.
    host_bytes: int | None = 0

    def node(self, place: int | str) -> NodeWhy:
        """Find a node by its place; raises GraphError if there is none."""
        for node in self.nodes:
            if node.place == str(place):
                return node
        most = sum("." not in node.place for node in self.nodes) - 1
        raise GraphError(
            f"There is no node {place!r}. Give a place of the plan's graph, 0 to {most}, or one in "
            "a body, such as '4.then.0'."
        )

    def __repr__(self) -> str:
        from fusewire.show.report import summary

        compared = f", {len(self.tried)} candidates" if self.tried else ""
        return f"<Why {summary(self)}{compared}>"

    def __str__(self) -> str:
        from fusewire.show.report import text

        return text(self)

    def _repr_html_(self) -> str:
        """Show tables in a notebook."""
        from fusewire.show.report import html

        return html(self)

    def counts(self) -> dict[str, dict[str, int]]:
        """Count nodes by what they work on and by the backend that runs them.

        Nothing falls back if all "data" runs on one engine; the host may drive the rest.
        """
        counted = Counter((node.work, node.backend) for node in self.nodes)
        table: dict[str, dict[str, int]] = {"data": {}, "control": {}, "shape": {}}
        for (work, backend), count in counted.items():
            table[work][backend] = count
        return table

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data for JSON."""
        return {**asdict(self), "counts": self.counts()}

    def to_json(self) -> str:
        """Convert to JSON text."""
        return json.dumps(self.to_data(), indent=1)
