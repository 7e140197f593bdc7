"""Groups of nodes that a viewer can fold: repeated blocks, regions, and bodies of control flow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fusewire.show.blocks import RepeatedBlock, repeated_blocks
from fusewire.show.texts import sources_of
from fusewire.show.why import NodeWhy

Kind = Literal["row", "block", "region", "control", "body"]


@dataclass(frozen=True)
class NodeGroup:
    """A group; ``parent`` is the number of the group around it, or -1."""

    label: str
    kind: Kind
    parent: int


@dataclass(frozen=True)
class Grouping:
    """All groups, and the number of the innermost group of each node, or -1.

    A group comes after its parent.
    """

    groups: tuple[NodeGroup, ...]
    of_node: tuple[int, ...]


def grouping(nodes: Sequence[NodeWhy], *, by_region: bool) -> Grouping:
    """Group nodes by repeated block, or by region first."""
    made = _Groups(nodes, by_region)
    made.add_segment("", -1)
    return Grouping(tuple(made.groups), tuple(made.of_node))


def paths(grouped: Grouping) -> list[tuple[str, ...]]:
    """List the labels of the groups around each node, the outermost first.

    Groups in the same group with the same label are numbered, so that no two paths are the same.
    """
    of_group: list[tuple[str, ...]] = []
    counts: Counter[tuple[str, ...]] = Counter()
    for group in grouped.groups:
        path = (*(of_group[group.parent] if group.parent >= 0 else ()), group.label)
        counts[path] += 1
        of_group.append(path if counts[path] == 1 else (*path[:-1], f"{path[-1]} {counts[path]}"))
    return [of_group[number] if number >= 0 else () for number in grouped.of_node]


class _Groups:
    def __init__(self, nodes: Sequence[NodeWhy], by_region: bool) -> None:
        self._nodes = nodes
        self._by_region = by_region
        self.groups: list[NodeGroup] = []
        self.of_node = [-1] * len(nodes)
        # The nodes of the graph and of each body, and the bodies of each control-flow node.
        self._segments: dict[str, list[int]] = defaultdict(list)
        self._bodies: dict[str, list[str]] = defaultdict(list)
        for place, node in enumerate(nodes):
            self._segments[node.place.rpartition(".")[0]].append(place)
        for prefix in self._segments:
            if prefix:
                self._bodies[prefix.rpartition(".")[0]].append(prefix)

    def add_segment(self, prefix: str, parent: int) -> None:
        """Group the nodes of the graph, or of a body."""
        places = self._segments[prefix]
        around = dict.fromkeys(places, parent)
        if self._by_region:
            around |= self._regions(places, parent)
        self.of_node = [around.get(place, group) for place, group in enumerate(self.of_node)]
        for block in self._blocks(places):
            self._add_block(block, places)
        for place in places:
            if bodies := self._bodies.get(self._nodes[place].place):
                self._add_control(place, bodies)

    def _add(self, label: str, kind: Kind, parent: int) -> int:
        self.groups.append(NodeGroup(label, kind, parent))
        return len(self.groups) - 1

    def _regions(self, places: Sequence[int], parent: int) -> dict[int, int]:
        counts = Counter(self._nodes[place].region for place in places)
        if len(counts) == 1:
            return {}
        numbers = {
            region: self._add(region, "region", parent)
            for region, count in counts.items()
            if count > 1
        }
        return {
            place: numbers[region]
            for place in places
            if (region := self._nodes[place].region) in numbers
        }

    def _blocks(self, places: Sequence[int]) -> tuple[RepeatedBlock, ...]:
        nodes = [self._nodes[place] for place in places]
        numbers = {node.place: number for number, node in enumerate(nodes)}
        edges = [
            (numbers[source], number)
            for number, node in enumerate(nodes)
            for source in sources_of(node)
            if source in numbers
        ]
        return repeated_blocks([f"{node.op} {node.backend}" for node in nodes], edges)

    def _add_block(self, block: RepeatedBlock, places: Sequence[int]) -> None:
        inside = places[block.start : block.stop]
        parents = {self.of_node[place] for place in inside}
        if len(parents) > 1:
            # It spans several regions; what it consists of may not.
            for inner in block.inside:
                self._add_block(inner, places)
            return
        name, parent = f"block {_letters(block.number)}", parents.pop()
        is_row = block.copies > 1
        group = (
            self._add(f"{block.copies} × {name}", "row", parent)
            if is_row
            else self._add(name, "block", parent)
        )
        for place in inside:
            self.of_node[place] = group
        for inner in block.inside:
            self._add_block(inner, places)

    def _add_control(self, place: int, bodies: Sequence[str]) -> None:
        node = self._nodes[place]
        group = self._add(f"{node.op} {node.place}", "control", self.of_node[place])
        self.of_node[place] = group
        for prefix in bodies:
            self.add_segment(prefix, self._add(prefix.rpartition(".")[2], "body", group))


def _letters(number: int) -> str:
    """Name blocks like columns of a spreadsheet: A to Z, then AA."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters
