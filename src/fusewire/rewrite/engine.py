"""Apply rules to a graph: one sweep from the inputs to the outputs.

A node is looked at once its operands are final. What a rule puts in its place is looked at in
turn, so a sweep leaves no node that a rule would still change, short of what a change below it
makes possible above it. Linear in the number of nodes, and without recursion but for subgraphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import is_equal
from fusewire.ir.graph import Attr, Graph, Node, Value, order
from fusewire.ir.types import tensor_of
from fusewire.ops.subgraph import alike
from fusewire.ops.table import untold
from fusewire.rewrite.facts import Facts
from fusewire.rewrite.rule import Log, Rewritten, Rule, as_outputs, rules_by_op

# Rewrites that follow from one another before a node is left as it is.
LONGEST_CHAIN = 64


def simplify(graph: Graph, rules: Iterable[Rule]) -> Rewritten:
    """Apply rules wherever they fire, in subgraphs too; the same graph when none did."""
    log = Log()
    return Rewritten(_Sweep(graph, rules_by_op(rules), log).run(), log.report())


@dataclass(frozen=True)
class _Origin:
    """Which node a rule-made node comes from, how many rewrites ago, and if it stands for it."""

    node: Node
    chain: int
    stands: bool


class _Sweep:
    def __init__(self, graph: Graph, rules: Callable[[str], Sequence[Rule]], log: Log) -> None:
        self._graph = graph
        self._rules = rules
        self._log = log
        self._rebuild = Rebuild(graph)
        self._facts = Facts(graph)
        self._done: set[Node] = set()
        self._waiting: dict[Node, tuple[Value, ...]] = {}
        self._made: dict[Node, _Origin] = {}
        self._changed = False

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._settle(node)
        return self._rebuild.finish() if self._changed else self._graph

    def _settle(self, node: Node) -> None:
        """Make a node final, and before it whatever it or its replacement uses."""
        stack = [node]
        while stack:
            node = stack[-1]
            needed = self._waiting.get(node, node.operands)
            pending = [v.node for v in needed if v.node is not None and v.node not in self._done]
            if pending:
                stack.extend(pending)
                continue
            stack.pop()
            if node in self._done:
                continue
            if node in self._waiting:
                values = self._waiting.pop(node)
                self._rebuild.replace(node, [self._rebuild.value(v) for v in values])
                self._done.add(node)
            elif not self._fire(node, self._over(node)):
                continue
            else:
                stack.append(node)

    def _over(self, node: Node) -> Node:
        """Give the node over its final operands, subgraphs simplified, with its name."""
        new = self._rebuild.copied(node)
        bodies: dict[str, Attr] = {
            key: _Sweep(body, self._rules, self._log).run() for key, body in node.graphs()
        }
        if any(body is not node.attrs[key] for key, body in bodies.items()):
            new = new.copy(new.inputs, {**new.attrs, **bodies})
        origin = self._made.get(node)
        if origin is not None:
            new = _named(new, origin)
        if new is not node:
            self._changed = True
            for old, value in zip(node.outputs, new.outputs, strict=True):
                self._facts.transfer(old, value)
        return new

    def _fire(self, node: Node, current: Node) -> bool:
        """Apply the first rule that fires; without one the node is final as it is."""
        outcome = self._outcome(current, self._made.get(node))
        if outcome is None:
            self._rebuild.replace(node, current.outputs)
            self._done.update((node, current))
            self._facts.learn(current)
            return False
        self._adopt(current, outcome, self._made.get(node))
        self._waiting[node] = outcome
        self._changed = True
        return True

    def _outcome(self, node: Node, origin: _Origin | None) -> tuple[Value, ...] | None:
        refusals: list[tuple[str, str]] = []
        for rule in self._rules(node.op):
            found = rule.apply(node, self._facts)
            if isinstance(found, str):
                refusals.append((rule.name, found))
            elif found is not None:
                values = as_outputs(found)
                chain = 0 if origin is None else origin.chain
                refusal = _refusal(rule, node, values, chain) or self._untold(values)
                if refusal is None:
                    self._log.fired(rule.name, node)
                    return values
                refusals.append((rule.name, refusal))
        for name, reason in refusals:
            self._log.refused(name, node, reason)
        return None

    def _untold(self, values: Sequence[Value]) -> str | None:
        """Refuse new nodes that name sizes which nothing before them tells."""
        names = {s.key for node in order(values, self._done) for s in untold(node)}
        found = ", ".join(sorted(names))
        return f"{found} would have to be known without what tells it." if names else None

    def _adopt(self, node: Node, values: Sequence[Value], origin: _Origin | None) -> None:
        """Take nodes that a rule made into the sweep, and let values stand for the node's."""
        chain = 1 if origin is None else origin.chain + 1
        first = values[0].node
        whole = first is not None and first.outputs == tuple(values)
        for new in order(values, self._done):
            assert new is not node, f"a rule gave {node!r} for itself"
            self._made[new] = _Origin(node, chain, whole and new is first)
            self._facts.acquire(new)
        for old, value in zip(node.outputs, values, strict=True):
            self._facts.transfer(old, value)
        self._facts.release(node)


def _named(node: Node, origin: _Origin) -> Node:
    """Give a node the source of the one it comes from, and the names if it stands for it."""
    old = origin.node
    names = [v.name for v in (old if origin.stands else node).outputs]
    name = old.name if origin.stands else node.name
    if node.name == name and node.source == old.source and not any(names):
        return node
    return Node(
        node.op, node.inputs, node.attrs, node.types, names=names, name=name, source=old.source
    )


def _refusal(rule: Rule, node: Node, values: Sequence[Value], chain: int) -> str | None:
    """Say why what a rule gave does not take the node's place; a wrong type is its mistake."""
    if chain >= LONGEST_CHAIN:
        return f"{LONGEST_CHAIN} rewrites in a row started from this node."
    found = tuple(v.type for v in values)
    if found == node.types:
        return None
    named = ", ".join(map(str, found))
    pairs = list(zip(found, node.types, strict=False))
    dims = [d for a, b in pairs for d in zip(tensor_of(a).shape, tensor_of(b).shape, strict=False)]
    possible = all(alike(a, b) for a, b in pairs) and len(found) == len(node.types)
    possible = possible and all(is_equal(a, b) is not False for a, b in dims)
    assert possible, f"the rule {rule.name} gave {named} for {node!r}"
    return f"its type would be {named}, which only the run can tell to be the same."
