"""What a rewrite rule is, and what rewriting reports: data, never printed text.

A rule must keep types exactly and values bit for bit, also for NaN, infinities, -0.0, empty
tensors, ints that wrap and dims that are symbols. ``exact=False`` marks a rule whose replacement
may round differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from fusewire.facts.known import Facts
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.parse import parse_type
from fusewire.ops.declare import Op
from fusewire.ops.table import get_op

# What replaces the outputs of a node; or a sentence that says why a tempting rewrite would be wrong
# here; or None if the rule does not apply.
Outcome: TypeAlias = "Value | tuple[Value, ...] | str | None"
Apply: TypeAlias = Callable[[Node, Facts], Outcome]


@dataclass(frozen=True)
class Example:
    """A small graph on which a rule fires.

    In a type such as ``T[n, 3]``, ``T`` stands for any dtype: the suite builds the example in each
    dtype that its ops take. ``n`` is a symbol.
    """

    build: Callable[..., Any]
    types: tuple[str, ...]

    @property
    def is_generic(self) -> bool:
        """Whether it can be built in several dtypes."""
        return any(text.startswith("T[") for text in self.types)

    def __call__(self, dtype: str = "float32") -> Graph:
        texts = [dtype + text[1:] if text.startswith("T[") else text for text in self.types]
        inputs = [Value(parse_type(text), f"x{i}") for i, text in enumerate(texts)]
        result = self.build(*inputs)
        outputs = list(result) if isinstance(result, tuple) else [result]
        names = [f"output{i}" for i in range(len(outputs))]
        return Graph(inputs, outputs, output_names=names)


def on(build: Callable[..., Any], *types: str) -> Example:
    """Make an example: the graph of ``build`` on inputs of these types.

    >>> from fusewire.ops.elementwise import negative
    >>> print(on(negative, "T[n]")())
    graph main(%x0: float32[n]) {
      %0 = negative(%x0) : float32[n]
      return %0 as output0
    }
    """
    return Example(build, types)


@dataclass(frozen=True)
class Rule:
    """One rewrite.

    It is applied to nodes of ``ops``. If ``ops`` is empty, it is applied to nodes of every op for
    which ``when`` is true, and without ``when`` to all nodes.
    """

    name: str
    ops: tuple[str, ...]
    because: str
    example: Example
    apply: Apply
    exact: bool = True
    when: Callable[[Op[Any]], bool] | None = None

    def starts_from(self, op: str) -> bool:
        """Tell whether the rule is applied to nodes of an op."""
        if self.ops:
            return op in self.ops
        return self.when is None or self.when(get_op(op))


class RuleTable:
    """The rules of one module, in the order in which they are tried."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rules: list[Rule] = []

    def rule(
        self,
        name: str,
        *ops: str,
        because: str,
        example: Example,
        exact: bool = True,
        when: Callable[[Op[Any]], bool] | None = None,
    ) -> Callable[[Apply], Apply]:
        """Add the decorated function as a rule."""

        def add(apply: Apply) -> Apply:
            self.rules.append(Rule(name, ops, because, example, apply, exact, when))
            return apply

        return add


@dataclass(frozen=True)
class Fired:
    """How often a rule changed nodes of one label."""

    rule: str
    node: str
    count: int = 1


@dataclass(frozen=True)
class RuleRefusal:
    """Why a rule that looked applicable left a node alone."""

    rule: str
    node: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What a rewrite did and what it refused to do."""

    fired: tuple[Fired, ...] = ()
    refused: tuple[RuleRefusal, ...] = ()

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each rule fired."""
        total: Counter[str] = Counter()
        for item in self.fired:
            total[item.rule] += item.count
        return total


class Rewritten(NamedTuple):
    """A rewritten graph, and the report of what happened."""

    graph: Graph
    report: Report = Report()


@dataclass
class Log:
    """Collects a report."""

    _fired: Counter[tuple[str, str]] = field(default_factory=Counter)
    _refused: dict[RuleRefusal, None] = field(default_factory=dict)

    def fired(self, rule: str, node: Node | str, count: int = 1) -> None:
        self._fired[rule, node if isinstance(node, str) else label(node)] += count

    def refused(self, rule: str, node: Node, reason: str) -> None:
        self._refused[RuleRefusal(rule, label(node), reason)] = None

    def add(self, report: Report) -> None:
        for item in report.fired:
            self.fired(item.rule, item.node, item.count)
        self._refused.update(dict.fromkeys(report.refused))

    @staticmethod
    def joined(first: Log, second: Log) -> Log:
        """Keep all that fired in both, and what was refused in the second."""
        return Log(first._fired + second._fired, second._refused)

    def report(self) -> Report:
        fired = (Fired(rule, node, count) for (rule, node), count in self._fired.items())
        return Report(tuple(fired), tuple(self._refused))


def label(node: Node) -> str:
    """Name a node: by its own name or that of an output, else by its op and types."""
    named = node.name or next((v.name for v in node.outputs if v.name), None)
    return named or f"{node.op} : {', '.join(str(v.type) for v in node.outputs)}"


def as_outputs(outcome: Value | tuple[Value, ...]) -> tuple[Value, ...]:
    return outcome if isinstance(outcome, tuple) else (outcome,)


def rules_by_op(rules: Iterable[Rule]) -> Callable[[str], Sequence[Rule]]:
    """Index rules by the ops they start from, keeping their order."""
    listed = tuple(rules)
    by_op: dict[str, Sequence[Rule]] = {}

    def rules_of(op: str) -> Sequence[Rule]:
        if op not in by_op:
            by_op[op] = [rule for rule in listed if rule.starts_from(op)]
        return by_op[op]

    return rules_of
