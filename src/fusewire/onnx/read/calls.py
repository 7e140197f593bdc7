"""Which functions of a model call which, and what is left of it when they are put in place.

Twenty functions that call each other ten times stand for more nodes than any memory holds, and a
function that calls itself for infinitely many. Both are counted here without being made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from fusewire.contract.frontend import Limits
from fusewire.errors import BudgetError, FormatError
from fusewire.onnx.read.shown import shown

# Domain, name and overload: what a node calls, and what a function is. The main graph has None.
Key: TypeAlias = tuple[str, str, str]


@dataclass
class _Body:
    """Nodes, the depth of graphs inside, and calls: how many, and from how deep inside."""

    nodes: int = 0
    depth: int = 0
    calls: Counter[Key] = field(default_factory=Counter)
    deepest: dict[Key, int] = field(default_factory=dict)


class Calls:
    """Collects nodes by the function that they are in."""

    def __init__(self, functions: Iterable[Key]) -> None:
        self._bodies: dict[Key | None, _Body] = {None: _Body()}
        for key in functions:
            if key in self._bodies:
                raise FormatError(f"The model has two functions called {_named(key)}. Rename one.")
            self._bodies[key] = _Body()

    def add(self, owner: Key | None, key: Key, depth: int) -> bool:
        """Count a node, and tell whether it calls a function of the model."""
        body = self._bodies[owner]
        body.nodes += 1
        body.depth = max(body.depth, depth)
        if key not in self._bodies:
            return False
        body.calls[key] += 1
        body.deepest[key] = max(depth, body.deepest.get(key, 0))
        return True

    def check(self, limits: Limits) -> None:
        """Refuse functions that call themselves, and a main graph beyond the limits."""
        nodes: dict[Key | None, int] = {}
        depths: dict[Key | None, int] = {}
        for key in self._ordered():
            body = self._bodies[key]
            called = sum(times * nodes[callee] for callee, times in body.calls.items())
            # No larger than it takes to refuse it: the count itself could fill the memory.
            nodes[key] = min(body.nodes + called, limits.nodes + 1)
            inner = (deep + 1 + depths[callee] for callee, deep in body.deepest.items())
            depths[key] = max(body.depth, max(inner, default=0))
        if nodes[None] > limits.nodes:
            raise BudgetError(
                f"The model has more than {limits.nodes:,} nodes when its functions are put where "
                "they are called, which is what Limits.nodes allows."
            )
        if depths[None] > limits.depth:
            raise BudgetError(
                f"The model has graphs and calls of functions inside each other {depths[None]:,} "
                f"deep, and {limits.depth} are allowed (Limits.depth)."
            )

    def _ordered(self) -> list[Key | None]:
        """List functions and the main graph, each after what it calls."""
        done: dict[Key | None, None] = {}
        begun: dict[Key | None, Iterator[Key]] = {}
        for root in self._bodies:
            stack = [] if root in done else [root]
            while stack:
                key = stack[-1]
                rest = begun.setdefault(key, iter(self._bodies[key].calls))
                callee = next((k for k in rest if k not in done), None)
                if callee is None:
                    done[key] = None
                    stack.pop()
                elif callee in begun:
                    raise FormatError(
                        f"The function {_named(callee)} calls itself, alone or through others, so "
                        "that the model has no end. Write it as a Loop or a Scan."
                    )
                else:
                    stack.append(callee)
        return list(done)


def _named(key: Key) -> str:
    return shown(":".join(part for part in key if part))
