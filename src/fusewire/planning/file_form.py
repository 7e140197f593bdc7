"""The plan of a model file that an engine reads by itself, and why there may be none.

The engine runs what is in the file, node for node, and nothing of ours is in between. So all that
our own forms would check or bound inside must be proven, or be checked of the inputs. That is asked
of the graph as it was read: rewriting may have removed what the engine still runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewire.contract.backend import Shapes
from fusewire.contract.model_file import FileReader, ModelFile
from fusewire.facts.bounds import unbounded
from fusewire.facts.steady import steady_places
from fusewire.ir.graph import Graph, Value
from fusewire.ops.requires import label_of
from fusewire.plan.guards import Guard
from fusewire.plan.plan import Plan, Region, Step
from fusewire.planning.guards import Need, guarding, needy_nodes
from fusewire.planning.planner import Planned
from fusewire.planning.target import Target
from fusewire.process.guard import described, guarded


def plan_file(file: ModelFile, target: Target, planned: Planned) -> Planned | str:
    """Plan a file as one region; a sentence says why the engine must not read it by itself.

    ``planned`` is the plan of its rewritten graph on the same target.
    """
    backend, graph = target.backend, planned.plan.graph
    if not isinstance(backend, FileReader) or file.format not in backend.file_formats:
        return f"{target.name} does not read {file.format} files."
    claimed = planned.claims[target.name]
    if not claimed.takes_all():
        reason = next(iter(claimed.refusals.values())).reason
        return f"{target.name} does not take all of it: {reason}"
    if [v.type for v in file.graph.inputs] != [v.type for v in graph.inputs]:
        return "Its inputs are no longer those of the file."
    entry = _entry_guards(file.graph)
    if isinstance(entry, str):
        return entry
    what = described(graph)
    refused = guarded(target.name, "claim", what, backend.refuses_file, file, graph, target.device)
    if refused is not None:
        return str(refused)
    loses_nan = guarded(target.name, "claim", what, _may_lose_nan, target, file.graph, graph)
    plan = _plan(file, target, planned, entry, loses_nan)
    return Planned(plan, planned.claims, dict.fromkeys(graph.nodes, 0), {})


def _shapes(planned: Planned, target: Target) -> Shapes:
    """Compile for each size where the backend does so for the graph."""
    shapes = planned.claims[target.name].shapes.values()
    return "dynamic" if all(found == "dynamic" for found in shapes) else "static"


@dataclass(frozen=True)
class _AsRead:
    """A graph that an engine takes as it is."""

    graph: Graph
    needs: Sequence[Need] = ()

    def value(self, given: Value) -> Value:
        return given


def _entry_guards(graph: Graph) -> tuple[tuple[Guard, ...], tuple[Value, ...]] | str:
    """List what must be checked of the inputs; a sentence if more must be checked inside."""
    for node in unbounded(graph):
        return f"Only values decide how much {node.op} takes ({node.source}), without a bound."
    # No engine is asked whether it checks: in a file it may be another node that does the work.
    guards = guarding(graph, _AsRead(graph), lambda node, need: False)
    needy = [need.label for need in guards.computed]
    needy += [label_of(node) for node in guards.declined]
    needy += [label_of(inner) for node in graph.nodes for inner in needy_nodes(node)]
    if needy:
        return f"What {needy[0]} requires is computed inside, so that it must be checked there."
    return guards.entry, guards.constants


def _may_lose_nan(target: Target, *graphs: Graph) -> bool:
    """Tell whether the engine's own form of a node may lose NaN, as it was read or rewritten."""
    parts = (part for graph in graphs for part in graph.walk())
    asked = target.backend.loses_nan
    return any(asked(node, target.device) for part in parts for node in part.nodes)


def _plan(
    file: ModelFile,
    target: Target,
    planned: Planned,
    entry: tuple[tuple[Guard, ...], tuple[Value, ...]],
    loses_nan: bool,
) -> Plan:
    """Make a plan of one region, which takes and makes all that the graph does."""
    graph, (guards, constants) = planned.plan.graph, entry
    takes, shapes = len(graph.inputs), _shapes(planned, target)
    arrays = tuple(value.constant.array for value in constants if value.constant is not None)
    first = takes + len(arrays)
    outputs = tuple(range(first, first + len(graph.outputs)))
    names = graph.output_names
    whole = Graph(graph.inputs, graph.outputs, graph.nodes, name="region0", output_names=names)
    region = Region.of(whole, target.name, target.device, shapes, file, loses_nan=loses_nan)
    step = Step(region, tuple(range(takes)), outputs, ())
    places = first + len(outputs)
    # The engine may run either: what it reads by itself, or our graph where that keeps each NaN.
    steady = tuple(sorted({*planned.plan.steady, *steady_places(file.graph)}))
    return Plan(takes, (step,), arrays, outputs, places, lambda: graph, guards, steady)
