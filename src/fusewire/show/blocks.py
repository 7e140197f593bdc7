"""Find what repeats in a long list of nodes, so that it can be folded away.

Blocks are stretches of a list in which every node comes after what it uses. So they never depend
on each other in a circle, whichever of them are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusewire.ir.graph import Array

# Fewer nodes are not worth a block of their own.
_LEAST_NODES = 4
# Blocks inside blocks inside blocks.
_DEPTH = 3
# Longer blocks are not looked for: comparing takes time in proportion.
_LONGEST = 4096
# The most comparisons of two nodes, which take a second: a file may hold any repetitions.
_MOST_WORK = 100_000_000


@dataclass(frozen=True)
class RepeatedBlock:
    """Nodes ``start`` to ``stop``, which is not included, that occur again with the same ops.

    Blocks with the same ``number`` are equal. A ``copies`` above 1 is a row of equal blocks, which
    ``inside`` lists; otherwise ``inside`` has the blocks of which this one consists in part.
    """

    number: int
    start: int
    stop: int
    copies: int = 1
    inside: tuple[RepeatedBlock, ...] = ()

    def shifted(self, by: int) -> RepeatedBlock:
        """Return the same block elsewhere in the list."""
        inside = tuple(block.shifted(by) for block in self.inside)
        return replace(self, start=self.start + by, stop=self.stop + by, inside=inside)


def repeated_blocks(
    labels: Sequence[str], edges: Sequence[tuple[int, int]] = ()
) -> tuple[RepeatedBlock, ...]:
    """Find rows of equal blocks, and equal blocks elsewhere.

    ``edges`` go from a node to a later one; a row begins where the fewest of them are cut.
    """
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([numbers[label] for label in labels], np.int32)
    search = _BlockSearch(codes, _cuts(len(labels), edges))
    return tuple(search.blocks(0, len(labels), _DEPTH))


def _cuts(count: int, edges: Sequence[tuple[int, int]]) -> Array:
    """Count the edges that pass each place between nodes."""
    steps = np.zeros(count + 2, np.int64)
    if edges:
        starts, ends = np.array(edges, np.int64).T
        np.add.at(steps, starts + 1, 1)
        np.add.at(steps, ends + 1, -1)
    return np.cumsum(steps)


class _BlockSearch:
    """Looks for repetitions in a list of codes; equal sequences get equal numbers."""

    def __init__(self, codes: Array, cuts: Array) -> None:
        self._codes = codes
        self._cuts = cuts
        self._numbers: dict[bytes, int] = {}
        self._work = 0

    def blocks(self, start: int, stop: int, depth: int) -> list[RepeatedBlock]:
        """List the repetitions between two places, in order."""
        found: list[RepeatedBlock] = []
        stretches = [(start, stop)] if depth else []
        while stretches:
            begin, end = stretches.pop()
            row = self._longest_row(begin, end)
            if row is None:
                continue
            first, period, copies = row
            block = self._block(first, period, depth)
            equal = tuple(block.shifted(period * copy) for copy in range(copies))
            after = first + period * copies
            found.append(RepeatedBlock(block.number, first, after, copies, equal))
            for left in ((begin, first), (after, end)):
                places = list(self._places(block, *left))
                found += [block.shifted(place - first) for place in places]
                ends = [left[0], *(place + period for place in places)]
                stretches += zip(ends, [*places, left[1]], strict=True)
        return sorted(found, key=lambda block: block.start)

    def _block(self, start: int, period: int, depth: int) -> RepeatedBlock:
        pattern = self._codes[start : start + period].tobytes()
        number = self._numbers.setdefault(pattern, len(self._numbers))
        inside = tuple(self.blocks(start, start + period, depth - 1))
        return RepeatedBlock(number, start, start + period, 1, inside)

    def _places(self, block: RepeatedBlock, start: int, stop: int) -> Iterator[int]:
        """Yield where the same block stands alone between two places."""
        item = self._codes.itemsize
        codes = self._codes[start:stop].tobytes()
        wanted = self._codes[block.start : block.stop].tobytes()
        at = codes.find(wanted)
        while at >= 0:
            if at % item == 0:
                yield start + at // item
            # An element that begins in the middle of another is none.
            step = len(wanted) if at % item == 0 else 1
            at = codes.find(wanted, at + step)

    def _longest_row(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """Find the row of equal blocks that has the most nodes: begin, period and copies."""
        codes, count = self._codes[start:stop], stop - start
        best, row = 0, None
        for period in range(_LEAST_NODES, min(count // 2, _LONGEST) + 1):
            self._work += count
            if self._work > _MOST_WORK:
                break
            equal = codes[:-period] == codes[period:]
            if np.count_nonzero(equal) < period:
                continue
            begin, length = _longest_run(equal)
            nodes = (length // period + 1) * period
            # A longer period must pay: two copies of a row are a row of more copies.
            if length >= period and nodes > best * 1.1:
                best = nodes
                row = self._best_begin(start + begin, length, period)
        return row

    def _best_begin(self, begin: int, length: int, period: int) -> tuple[int, int, int]:
        """Choose where a row begins, among the places at which it may."""
        copies = length // period + 1
        slack = length % period
        ways = [
            (int(self._cuts[at : at + period * copies + 1 : period].sum()), at)
            for at in range(begin, begin + slack + 1)
        ]
        return min(ways)[1], period, copies


def _longest_run(equal: Array) -> tuple[int, int]:
    """Return where the longest run of True begins, and its length."""
    ends = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
    if not len(ends):
        return 0, 0
    begins, lengths = ends[::2], ends[1::2] - ends[::2]
    longest = int(lengths.argmax())
    return int(begins[longest]), int(lengths[longest])
