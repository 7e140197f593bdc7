"""Find what must be checked before an engine sees it: requirements that the graph does not prove.

An op declares what it requires of its integers (``fusewire.ops.requires``). What constants, ranges,
places and earlier checks prove costs nothing. An operand that is an input of the graph, or a part
of one, is checked at the start of a run; one that is computed is checked by an engine that says so
(``checks_indices``), or between two regions: never after an engine has narrowed it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fusewire.contract.backend import Held
from fusewire.dtypes import DType
from fusewire.facts.proof import Prover
from fusewire.facts.steady import steady_places
from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import Dim, Shape, Symbol, is_at_most, lone_symbol, symbols
from fusewire.ir.graph import Array, Graph, Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.intervals import Rule, Samples
from fusewire.ops.requires import Interval, Operands, Requirement, label_of
from fusewire.ops.table import get_op
from fusewire.plan.guards import EntryChecks, Guard, ViewStep
from fusewire.plan.plan import is_truth


@dataclass(frozen=True, eq=False)
class Need:
    """A requirement of a node that is not proven; ``value`` is its operand."""

    value: Value
    intervals: tuple[Interval, ...]
    ignored: int | None
    label: str
    operand: str
    # None for a composite that was expanded: the expansion has no node that checks.
    node: Node | None = None
    rule: Rule = "within"
    # The place along the last axis from which on it holds.
    start: Dim = 0
    samples: Samples | None = None

    @property
    def is_usual(self) -> bool:
        """Whether all elements are to lie within intervals: what provers and engines know."""
        return self.rule == "within" and self.start == 0

    def moved(self, rebuild: Rebuild) -> Need:
        """Follow the operand to a graph with some nodes replaced."""
        return replace(self, value=rebuild.value(self.value))


def needs_of(node: Node) -> Iterator[Need]:
    """List what a node requires."""
    op = get_op(node.op)
    operands = Operands(node, op.parameters[0])
    for requirement in op.requires:
        need = _need(node, requirement, operands)
        if need is not None:
            yield need


def _need(node: Node, requirement: Requirement, operands: Operands) -> Need | None:
    value = operands.value(requirement.operand)
    if value is None:
        return None
    start: Dim = 0
    if requirement.start is not None:
        start = requirement.start(operands)
        if is_at_most(value.tensor.shape[-1], start):
            return None
    samples = None if requirement.samples is None else requirement.samples(node.attrs)
    if requirement.rule == "sampled" and samples is None:
        return None
    intervals, ignored = requirement.intervals(operands), requirement.ignored_by(node.attrs)
    names = label_of(node), requirement.operand
    return Need(value, intervals, ignored, *names, node, requirement.rule, start, samples)


def expanded_needs(nodes: Sequence[Node]) -> list[Need]:
    """List what composites require that are about to be expanded."""
    composites = (node for node in nodes if get_op(node.op).is_composite)
    return [replace(need, node=None) for node in composites for need in needs_of(node)]


def graph_needs(
    graph: Graph,
    expanded: Sequence[Need] = (),
    checked: Sequence[Need] = (),
    settles: Callable[[Need], bool] = lambda need: True,
) -> list[Need]:
    """List all that is required and not proven; first what expanded composites required.

    What was ``checked`` before counts as proven, and so does from then on what ``settles`` tells to
    be checked before any node uses the value, in whatever order the nodes run.
    """
    prover = Prover(graph)
    for need in checked:
        if need.ignored is None and need.is_usual:
            prover.assume(need.value, need.intervals)
    needs = []
    for need in itertools.chain(expanded, *map(needs_of, graph.nodes)):
        if need.rule == "within" and prover.proves(need.value, need.intervals):
            continue
        needs.append(need)
        if settles(need) and need.ignored is None and need.is_usual:
            prover.assume(need.value, need.intervals)
    return needs


def needy_nodes(node: Node) -> Iterator[Node]:
    """List the nodes in the bodies of a control node that require what is not proven there."""
    for _, body in node.graphs():
        needs = graph_needs(body, settles=lambda need: False)
        for need in needs:
            assert need.node is not None, "only expanded composites have none"
            yield need.node
        for inner in body.nodes:
            yield from needy_nodes(inner)


@dataclass(frozen=True, eq=False)
class Viewed:
    """A value as a part of another: an input of the graph, a constant, or what a node computes."""

    root: Value
    view: tuple[ViewStep, ...] = ()


# Ops that keep all elements of their only operand, in another order.
_REORDERING = ("flip", "roll", "sort")


def viewed(value: Value, *, is_ordered: bool) -> Viewed:
    """Go back over ops that move elements, and stop at the first that computes.

    With ``is_ordered`` the view has the elements where the value has them; otherwise steps at its
    end that keep all elements are left out.
    """
    steps: list[ViewStep] = []
    places_count = is_ordered
    while value.node is not None:
        step = _step(value.node, value)
        if step is None or (not step and places_count):
            break
        places_count |= bool(step) and step[0] in ("slice", "take")
        steps.insert(0, step)
        value = value.node.operands[0]
    if not is_ordered:
        while steps and (not steps[-1] or steps[-1][0] not in ("slice", "take", "cast")):
            steps.pop()
    return Viewed(value, tuple(step for step in steps if step))


def _step(node: Node, output: Value) -> ViewStep | None:
    """Return how a node moves elements: () where in another order, None where it computes."""
    attrs = node.attrs
    if node.op in ("reshape", "expand_dims", "squeeze"):
        return "reshape", output.tensor.shape
    if node.op == "broadcast_to":
        return "broadcast", output.tensor.shape
    if node.op == "transpose":
        return "transpose", attrs["perm"]
    if node.op == "slice":
        return "slice", attrs["starts"], attrs["limits"], attrs["strides"]
    if node.op == "cast":
        return _converted(node.operands[0].tensor, output.tensor.dtype)
    if node.op == "gather":
        return _taken(node)
    is_sorted = node.op == "top_k" and output.index == 0 and node.operands[0].type == output.type
    return () if is_sorted or node.op in _REORDERING else None


def _converted(source: TensorType, to: DType) -> ViewStep | None:
    """Convert integers to integers, which changes nothing if all of them fit."""
    if not (source.dtype.is_integer and to.is_integer):
        return None
    low, high = source.dtype.range
    room = to.range
    is_lossless = room[0] <= low and high <= room[1]
    return ("reshape", source.shape) if is_lossless else ("cast", to.name)


def _taken(node: Node) -> ViewStep | None:
    """Take one slice of an axis, if its index is a constant that exists."""
    index, axis = node.operands[1], node.attrs["axis"]
    assert isinstance(axis, int)
    source = node.operands[0].tensor
    dim = source.shape[axis]
    if index.constant is None or index.constant.array.ndim:
        return None
    place = int(index.constant.array)
    if not isinstance(dim, int) or not -dim <= place < dim:
        return None
    return "take", place, axis % source.rank


def _symbols_of(need: Need, view: Sequence[ViewStep]) -> list[Symbol]:
    """List the sizes that a guard must know."""
    dims = [need.start, *need.value.tensor.shape, *(end for ends in need.intervals for end in ends)]
    for step in view:
        for argument in step:
            dims += argument if isinstance(argument, tuple) else ()
    return list(dict.fromkeys(found for dim in dims for found in symbols(dim)))


def sizes_in(values: Mapping[Value, int]) -> dict[Symbol, tuple[int, int]]:
    """Map symbols to the place and the axis of the value whose shape tells them."""
    found: dict[Symbol, tuple[int, int]] = {}
    for value, place in values.items():
        shape: Shape = value.type.shape if isinstance(value.type, TensorType) else ()
        for axis, dim in enumerate(shape):
            if (lone := lone_symbol(dim)) is not None:
                found.setdefault(lone, (place, axis))
    return found


def guard_of(
    need: Need, view: Viewed, place: int, sizes: Mapping[Symbol, tuple[int, int]]
) -> Guard | None:
    """Make the guard of a need on the value at a place; None if a size it needs is not known."""
    steps, wanted = view.view, _symbols_of(need, view.view)
    if need.start != 0:
        shape = need.value.tensor.shape
        starts = (*[0] * (len(shape) - 1), need.start)
        steps = (*steps, ("slice", starts, shape, (1,) * len(shape)))
    if any(found not in sizes for found in wanted):
        return None
    is_input = view.root.node is None and view.root.constant is None
    return Guard(
        place,
        steps,
        need.value.tensor.shape,
        need.intervals,
        need.ignored,
        tuple((found, *sizes[found]) for found in wanted),
        need.label,
        need.operand,
        view.root.name if is_input else None,
        need.rule,
        need.samples,
    )


class Claims(Protocol):
    """A graph as an engine takes it, and how its values follow from those of another graph."""

    @property
    def graph(self) -> Graph: ...

    @property
    def needs(self) -> Sequence[Need]: ...

    def value(self, given: Value) -> Value: ...


@dataclass(frozen=True, eq=False)
class Guarding:
    """What a plan checks: at its start, and before the steps that use what others computed.

    ``entry`` guards are on inputs, and on ``constants`` whose axis only a run knows. The regions
    are cut at ``boundaries``. No engine without checks may run a node of ``declined``.
    """

    entry: tuple[Guard, ...]
    constants: tuple[Value, ...]
    computed: tuple[Need, ...]
    boundaries: frozenset[Value]
    declined: frozenset[Node]


def guarding(given: Graph, claimed: Claims, checks: Callable[[Node, Need], bool]) -> Guarding:
    """Say what a plan must check of a graph as it was given, and as its engines take it.

    ``checks`` tells whether the engine of a node raises by itself for what it needs.
    """
    entry = _Entry(given)
    checked: list[Need] = []
    if claimed.graph is not given:
        needs = graph_needs(given, settles=entry.takes)
        moved = [replace(need, value=claimed.value(need.value)) for need in needs]
        checked = [at for at, need in zip(moved, needs, strict=True) if entry.takes(need)]
    computed: list[Need] = []
    boundaries: set[Value] = set()
    declined: set[Node] = set()

    def settles(need: Need) -> bool:
        if entry.takes(need):
            return True
        if need.node is not None and checks(need.node, need):
            # It checks when it runs, which may be after others have used the value.
            return False
        carriers = _carriers(need, entry.sizes)
        if carriers is None:
            declined.update([need.node] if need.node is not None else [])
            return False
        computed.append(need)
        boundaries.update([need.value, *carriers])
        entry.keep(need.value)
        # Otherwise it is checked only where those values exist.
        return all(value is need.value for value in carriers)

    graph_needs(claimed.graph, claimed.needs, checked, settles)
    return Guarding(
        tuple(entry.guards),
        tuple(entry.constants),
        tuple(computed),
        frozenset(boundaries),
        frozenset(declined),
    )


def checked_inputs(
    graph: Graph, inputs: Sequence[Held], most_bytes: int | None = None
) -> list[Held]:
    """Check inputs of a graph that no plan has been chosen for yet; raises CheckError.

    Returns what was checked, which its owner cannot change any more.
    """
    entry = _Entry(graph)
    for need in graph_needs(graph):
        entry.takes(need)
    constants = [_array(value) for value in entry.constants]
    places = [guard.place for guard in entry.guards if guard.place < len(inputs)]
    steady = steady_places(graph)
    truths = [place for place in steady if is_truth(graph.inputs[place])]
    checks = EntryChecks(entry.guards, constants, (*places, *steady), truths, most_bytes)
    return checks.admitted(inputs)


def _array(value: Value) -> Array:
    assert value.constant is not None, "it is kept as a constant"
    return value.constant.array


class _Entry:
    """The guards at the start of a run."""

    def __init__(self, graph: Graph) -> None:
        self.guards: list[Guard] = []
        self.constants: list[Value] = []
        self.sizes = sizes_in({value: place for place, value in enumerate(graph.inputs)})
        self._inputs = graph.inputs

    def takes(self, need: Need) -> bool:
        """Add the guard of a need about an input or a constant, if the inputs give its sizes."""
        is_ordered = len(need.intervals) > 1 or not need.is_usual
        view = viewed(need.value, is_ordered=is_ordered)
        if view.root.node is not None:
            return False
        guard = guard_of(need, view, self._place(view.root), self.sizes)
        if guard is None:
            return False
        if not any(_covers(other, guard) for other in self.guards):
            self.guards.append(guard)
            self.keep(view.root)
        return True

    def keep(self, value: Value) -> None:
        """Have a constant among the values of a run."""
        if value.constant is not None and value not in self.constants:
            self.constants.append(value)

    def _place(self, root: Value) -> int:
        if root.constant is None:
            return self._inputs.index(root)
        known = [*self.constants, root]
        return len(self._inputs) + known.index(root)


def _carriers(need: Need, sizes: Mapping[Symbol, tuple[int, int]]) -> Sequence[Value] | None:
    """List operands of the node whose shapes give the sizes that a need lacks; None if none do."""
    missing = [found for found in _symbols_of(need, ()) if found not in sizes]
    operands = need.node.operands if need.node is not None else (need.value,)
    given = {value: sizes_in({value: 0}) for value in operands}
    if any(all(found not in axes for axes in given.values()) for found in missing):
        return None
    return [value for value, axes in given.items() if any(found in axes for found in missing)]


def _covers(first: Guard, second: Guard) -> bool:
    """Tell whether the first fails whenever the second would."""
    return _asked(first) == _asked(second) and _open(first) <= _open(second)


def _asked(guard: Guard) -> tuple[object, ...]:
    return guard.place, guard.view, guard.intervals, guard.ignored, guard.rule, guard.samples


def _open(guard: Guard) -> set[Dim]:
    """List the dims that may be 0, where nothing is asked; none is 0 in every call."""
    return {dim for dim in guard.shape if not isinstance(dim, int)}
