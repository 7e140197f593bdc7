"""The named patterns of groups: what is in one, and how its kernel runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fusewire.fusion.growth import Growing
from fusewire.ir.graph import Node
from fusewire.ops.declare import Kind

Strategy = Literal["points", "rows", "tiles", "serial", "copy"]


@dataclass(frozen=True)
class Pattern:
    """A kind of group; of several that fit, the one with the lowest ``priority`` makes it.

    ``sequence`` is a chain of nodes, each used by the next alone, by names of ops or by kinds:
    "elementwise" (one or more nodes), "reduction", "product", "convolution", "anything". Views
    between them do not count. ``strategy`` says how its kernel runs.
    """

    name: str
    sequence: tuple[str, ...]
    strategy: Strategy = "points"
    priority: int = 0


_ROWS: tuple[tuple[str, tuple[str, ...], Strategy], ...] = (
    ("attention", ("product", "softmax", "product"), "rows"),
    ("softmax", ("reduction", "elementwise", "reduction", "elementwise"), "rows"),
    ("layer norm", ("reduction", "elementwise", "reduction", "elementwise"), "rows"),
    ("rms norm", ("elementwise", "reduction", "elementwise"), "rows"),
    ("convolution + batch norm", ("convolution", "batch norm", "elementwise"), "tiles"),
    ("convolution + activation", ("convolution", "elementwise"), "tiles"),
    ("linear + activation", ("product", "elementwise"), "tiles"),
    ("reduction + elementwise", ("elementwise", "reduction", "elementwise"), "rows"),
    ("elementwise", ("elementwise",), "points"),
    ("mixed", ("elementwise", "window or loop", "elementwise"), "serial"),
    ("single", ("anything",), "points"),
    ("copy", ("view",), "copy"),
)
PATTERNS = {
    name: Pattern(name, sequence, strategy, priority)
    for priority, (name, sequence, strategy) in enumerate(_ROWS)
}
# Composites that give a group of reductions its name.
_NAMED = {
    "softmax": "softmax",
    "log_softmax": "softmax",
    "layer_norm": "layer norm",
    "rms_norm": "rms norm",
}


def pattern_of(group: Growing, origins: Iterable[Node]) -> str:
    """Name what a group is."""
    ops = [node.op for node in origins]
    if group.pattern:
        return group.pattern
    if group.kept:
        return "attention"
    if len(group.nodes) == 1:
        return "single"
    if group.has(Kind.FOLD):
        named = [_NAMED[op] for op in ops if op in _NAMED]
        return named[0] if named else "reduction + elementwise"
    if group.has(Kind.CONTRACT):
        if not any(node.op == "conv" for node in group.nodes):
            return "linear + activation"
        norm = "batch_norm" in ops
        return "convolution + batch norm" if norm else "convolution + activation"
    return "mixed" if group.has(Kind.WINDOW, Kind.WHOLE) else "elementwise"
