"""Lower a graph and its groups to kernels: one kernel per group, or the op's own kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fusewire.errors import RefusedError
from fusewire.fusion.grouping import Fusion, Group, fuse
from fusewire.fusion.kinds import kind_of
from fusewire.ir.graph import Graph, Value
from fusewire.kernel.form import Kernel, Lowered, Repeat
from fusewire.kernel.lower.lowering import Lowering
from fusewire.kernel.lower.table import element_of, refusal, wholes
from fusewire.kernel.verify import verify_lowered
from fusewire.ops.declare import Kind


@dataclass(frozen=True)
class Stored:
    """Values of one shape that one kernel stores; it keeps rows of ``kept`` on its way."""

    values: tuple[Value, ...]
    kept: tuple[Value, ...] = ()


# Lists what is stored, in an order in which it can be; all else is computed where it is used.
Plan = Callable[[Graph], Sequence[Stored]]


def every_node(graph: Graph) -> list[Stored]:
    """Store what every node gives, but for what costs nothing to compute again."""
    nodes = [node for node in graph.nodes if kind_of(node) is not Kind.FREE]
    return [Stored((value,)) for node in nodes for value in node.outputs]


def grouped(graph: Graph) -> list[Stored]:
    """Store what groups of a graph give; it is in ops that kernels take."""
    return stored_of(fuse(graph, lambda node: None))


def stored_of(fusion: Fusion) -> list[Stored]:
    """Store what each group gives."""
    return [Stored(group.outputs, group.kept) for group in fusion.groups]


# Digests of the kernels that packages bring for their ops.
OutsideKernels = Mapping[str, str]


def lower_fusion(fusion: Fusion, outside: OutsideKernels = MappingProxyType({})) -> Lowered:
    """Make the kernels of a fused graph; bodies of scans are fused by themselves."""
    return lower(
        fusion.graph,
        lambda part: stored_of(fusion) if part is fusion.graph else grouped(part),
        outside,
    )


def kernels_by_group(
    fusion: Fusion, outside: OutsideKernels = MappingProxyType({})
) -> list[tuple[Kernel, Group | None]]:
    """Make the kernels of a fused graph, each with its group; one that only copies has none."""
    found: dict[Kernel, Group] = {}
    groups = {group.outputs: group for group in fusion.groups}

    def note(stored: Stored, steps: Sequence[Kernel | Repeat]) -> None:
        for step in steps if stored.values in groups else ():
            kernels = step.kernels if isinstance(step, Repeat) else (step,)
            found.update((kernel, groups[stored.values]) for kernel in kernels)

    lowered = lower(
        fusion.graph,
        lambda part: stored_of(fusion) if part is fusion.graph else grouped(part),
        outside,
        note,
    )
    return [(kernel, found.get(kernel)) for kernel in lowered.kernels]


# Is told the kernels that store something, as they are made.
Note = Callable[[Stored, Sequence[Kernel | Repeat]], None]


def lower(
    graph: Graph,
    plan: Plan = every_node,
    outside: OutsideKernels = MappingProxyType({}),
    note: Note | None = None,
) -> Lowered:
    """Make the kernels of a region; RefusedError where a node has none."""
    for node in graph.nodes:
        reason = None if node.op in outside else refusal(node)
        if reason is not None:
            raise RefusedError(f"{reason} Run it elsewhere, or expand it.")
    lowering = Lowering(
        graph, element_of, lambda lowering, part: _store(lowering, plan(part), outside, note)
    )
    lowering.run(graph)
    made = lowering.finish()
    # On a device, nothing else stops a kernel that reads or writes beside its memory.
    verify_lowered(made)
    return made


def _store(
    lowering: Lowering, plan: Sequence[Stored], outside: OutsideKernels, note: Note | None
) -> None:
    for stored in plan:
        before = len(lowering.steps)
        node = stored.values[0].node
        whole = None if node is None else wholes().get(node.op)
        if node is not None and node.op in outside:
            lowering.call(node, outside[node.op])
        elif node is None or whole is None:
            lowering.store(stored.values, stored.kept)
        elif lowering.find(stored.values[0]) is None:
            whole(lowering, node)
        if note is not None:
            note(stored, lowering.steps[before:])
