"""Apply rules to a graph: one sweep from the inputs to the outputs.

A sweep visits a node once its operands are final, and applies the first rule that fires. It then
visits the nodes that replace it, so the rules of one sweep follow from one another. A sweep does
not go back: a rule that could fire on a node only because of a change nearer to the outputs fires
in the next round of the pipeline. The time is linear in the number of nodes, and only bodies
recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fusewire.facts.known import Facts
from fusewire.ir.builder import Rebuild
from fusewire.ir.dims import is_equal
from fusewire.ir.graph import Attr, Graph, Node, Value, order
from fusewire.ir.types import tensor_of
from fusewire.ops.subgraph import alike
from fusewire.ops.table import untold
from fusewire.rewrite.rule import Log, Rewritten, Rule, as_outputs, rules_by_op

# Rewrites that follow from one another before a node is left as it is.
LONGEST_CHAIN = 64


def simplify(graph: Graph, rules: Iterable[Rule]) -> Rewritten:
    """Apply rules wherever they fire, in bodies too; return the same graph if none did."""
    log = Log()
    return Rewritten(_Sweep(graph, rules_by_op(rules), log).run(), log.report())


@dataclass(frozen=True)
class _Origin:
    """Where a node that a rule created comes from.

    ``node`` is the node that the rule replaced, ``chain`` counts the rewrites that led here, and
    ``stands`` says whether the new node itself, and not one of its operands, replaces ``node``.
    """

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
        self._origins: dict[Node, _Origin] = {}
        self._changed = False

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._settle(node)
        return self._rebuild.finish() if self._changed else self._graph

    def _settle(self, node: Node) -> None:
        """Make a node final, after everything that it or its replacement uses."""
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
            elif not self._fire(node, self._update(node)):
                continue
            else:
                stack.append(node)

    def _update(self, node: Node) -> Node:
        """Copy a node onto its final operands, with simplified bodies and its final name."""
        new = self._rebuild.copied(node)
        bodies: dict[str, Attr] = {
            key: _Sweep(body, self._rules, self._log).run() for key, body in node.graphs()
        }
        if any(body is not node.attrs[key] for key, body in bodies.items()):
            new = new.copy(new.inputs, {**new.attrs, **bodies})
        origin = self._origins.get(node)
        if origin is not None:
            new = _copy_names(new, origin)
        if new is not node:
            self._changed = True
            for old, value in zip(node.outputs, new.outputs, strict=True):
                self._facts.transfer(old, value)
        return new

    def _fire(self, node: Node, current: Node) -> bool:
        """Apply the first rule that fires; if none does, the node is final."""
        values = self._apply_rules(current, self._origins.get(node))
        if values is None:
            self._rebuild.replace(node, current.outputs)
            self._done.update((node, current))
            self._facts.learn(current)
            return False
        self._adopt(current, values, self._origins.get(node))
        self._waiting[node] = values
        self._changed = True
        return True

    def _apply_rules(self, node: Node, origin: _Origin | None) -> tuple[Value, ...] | None:
        """Return what the first rule that fires puts in place of a node's outputs."""
        refusals: list[tuple[str, str]] = []
        for rule in self._rules(node.op):
            outcome = rule.apply(node, self._facts)
            if isinstance(outcome, str):
                refusals.append((rule.name, outcome))
            elif outcome is not None:
                values = as_outputs(outcome)
                chain = 0 if origin is None else origin.chain
                refusal = _refuse(rule, node, values, chain) or self._refuse_unknown_sizes(values)
                if refusal is None:
                    self._log.fired(rule.name, node)
                    return values
                refusals.append((rule.name, refusal))
        for name, reason in refusals:
            self._log.refused(name, node, reason)
        return None

    def _refuse_unknown_sizes(self, values: Sequence[Value]) -> str | None:
        """Refuse new nodes that name an unbacked symbol which none of their operands has."""
        symbols = {s.key for node in order(values, self._done) for s in untold(node)}
        names = ", ".join(sorted(symbols))
        return f"the operands of the new nodes would not determine {names}." if names else None

    def _adopt(self, node: Node, values: Sequence[Value], origin: _Origin | None) -> None:
        """Add the nodes that a rule created, and let ``values`` replace the node's outputs."""
        chain = 1 if origin is None else origin.chain + 1
        first = values[0].node
        whole = first is not None and first.outputs == tuple(values)
        for new in order(values, self._done):
            assert new is not node, f"a rule gave {node!r} for itself"
            self._origins[new] = _Origin(node, chain, whole and new is first)
            self._facts.acquire(new)
        for old, value in zip(node.outputs, values, strict=True):
            self._facts.transfer(old, value)
        self._facts.release(node)


def _copy_names(node: Node, origin: _Origin) -> Node:
    """Copy the source of the replaced node, and its names if this node stands for it."""
    old = origin.node
    names = [v.name for v in (old if origin.stands else node).outputs]
    name = old.name if origin.stands else node.name
    if node.name == name and node.source == old.source and not any(names):
        return node
    return Node(
        node.op, node.inputs, node.attrs, node.types, names=names, name=name, source=old.source
    )


def _refuse(rule: Rule, node: Node, values: Sequence[Value], chain: int) -> str | None:
    """Say why values do not replace a node's outputs, or return None.

    Types that cannot be equal are an error of the rule; types that may be equal at run time are a
    refusal.
    """
    if chain >= LONGEST_CHAIN:
        return f"{LONGEST_CHAIN} rewrites in a row started from this node."
    types = tuple(v.type for v in values)
    if types == node.types:
        return None
    named = ", ".join(map(str, types))
    pairs = list(zip(types, node.types, strict=False))
    dims = [d for a, b in pairs for d in zip(tensor_of(a).shape, tensor_of(b).shape, strict=False)]
    possible = all(alike(a, b) for a, b in pairs) and len(types) == len(node.types)
    possible = possible and all(is_equal(a, b) is not False for a, b in dims)
    assert possible, f"the rule {rule.name} gave {named} for {node!r}"
    return f"its type would be {named}, and only a run can show whether that is the same type."
