"""The engine: order, reports, names, uses, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.graph import Graph, Node, Value
from fusewire.ir.parse import parse_type
from fusewire.ops.control import cond
from fusewire.ops.elementwise import add, exp, multiply, negative, sqrt, subtract
from fusewire.ops.movement import transpose
from fusewire.ops.subgraph import subgraph
from fusewire.ops.table import verify
from fusewire.rewrite.engine import simplify
from fusewire.rewrite.pattern import Anything, Number, call, match
from fusewire.rewrite.pipeline import RULES
from fusewire.rewrite.rule import Outcome, Rule, RuleTable, on
from tests.rewrite.check import rule_problems


def _input(text: str = "float32[n]", name: str = "x") -> Value:
    return Value(parse_type(text), name)


def _ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_what_a_rule_makes_is_simplified_in_turn() -> None:
    x = _input()
    # x + -(-(-x)) -> x - -(-x) -> x - x, which is refused.
    done = simplify(Graph([x], [add(x, negative(negative(negative(x))))]), RULES)
    assert _ops(done.graph) == ["subtract"]
    assert done.report.counts == {"negative-twice": 1, "add-negative": 1}
    (refused,) = done.report.refused
    assert refused.rule == "minus-itself"
    assert "NaN" in refused.reason


def test_graph_without_work_is_the_same_graph() -> None:
    x = _input()
    graph = Graph([x], [exp(x)])
    done = simplify(graph, RULES)
    assert done.graph is graph
    assert done.report.fired == ()


def test_report_counts_by_rule_and_node() -> None:
    x = _input()
    y = Node("negative", [negative(x)], {}, [x.type], name="outer").outputs[0]
    z = negative(negative(exp(y)))
    done = simplify(Graph([x], [z]), RULES)
    assert {(f.rule, f.node, f.count) for f in done.report.fired} == {
        ("negative-twice", "outer", 1),
        ("negative-twice", "negative : float32[n]", 1),
    }


def test_node_that_stands_for_another_keeps_name_and_source() -> None:
    x = _input()
    node = Node(
        "add", [x, negative(x)], {}, [x.type], names=["sum"], name="Add_7", source="model.py:3"
    )
    done = simplify(Graph([x], node.outputs), RULES)
    (found,) = done.graph.nodes
    assert (found.op, found.name, found.source) == ("subtract", "Add_7", "model.py:3")
    assert found.outputs[0].name == "sum"
    assert done.graph.output_names == ("sum",)


def test_subgraphs_are_simplified() -> None:
    x = _input()
    then = subgraph(lambda y: [negative(negative(exp(y)))], x.type)
    otherwise = subgraph(lambda y: [sqrt(y)], x.type)
    flag = Value(parse_type("bool[]"), "flag")
    graph = Graph([flag, x], cond(flag, x, then=then, otherwise=otherwise))
    done = simplify(graph, RULES)
    body = done.graph.nodes[0].attrs["then"]
    assert isinstance(body, Graph)
    assert _ops(body) == ["exp"]
    assert done.graph.nodes[0].attrs["otherwise"] is otherwise
    verify(done.graph)


def test_deep_chain_needs_no_recursion() -> None:
    x = value = _input("float32[3]")
    for _ in range(3000):
        value = negative(negative(exp(value)))
    done = simplify(Graph([x], [value]), RULES)
    assert _ops(done.graph) == ["exp"] * 3000


def test_uses_are_counted_while_rewriting() -> None:
    seen: dict[str, int] = {}

    def look(node: Node, facts: Facts) -> Outcome:
        seen[node.op] = facts.uses(node.operands[0])
        return None

    watch = Rule("watch", ("sqrt", "exp"), "Looks.", on(exp, "T[n]"), look)
    x = _input()
    y = negative(negative(x))
    # The double negation is gone and its uses are x's; the inner one was only its own.
    graph = Graph([x], [sqrt(y), exp(y), add(y, y)])
    simplify(graph, [watch, *RULES])
    assert seen == {"sqrt": 4, "exp": 4}


def test_transpose_used_twice_is_not_moved() -> None:
    x = _input("float32[n, 3]")
    y = transpose(x, perm=(1, 0))
    graph = Graph([x], [transpose(exp(y), perm=(1, 0)), y])
    done = simplify(graph, RULES)
    assert "elsewhere" in done.report.refused[0].reason
    once = Graph([x], [transpose(exp(transpose(x, perm=(1, 0))), perm=(1, 0))])
    assert _ops(simplify(once, RULES).graph) == ["exp"]


def test_rules_that_never_end_are_stopped() -> None:
    swap = Rule(
        "swap",
        ("add",),
        "Swaps.",
        on(add, "T[n]", "T[n]"),
        lambda node, facts: add(node.inputs[1], node.inputs[0]),
    )
    x, y = _input(), _input(name="y")
    done = simplify(Graph([x, y], [add(x, y)]), [swap])
    assert done.report.counts["swap"] == 64
    assert "in a row" in done.report.refused[0].reason


def test_rule_that_changes_a_type_is_an_error() -> None:
    bad = Rule(
        "bad",
        ("exp",),
        "Is wrong.",
        on(exp, "T[n]"),
        lambda node, facts: constant(np.float32(1)),
    )
    x = _input()
    with pytest.raises(AssertionError, match="the rule bad gave"):
        simplify(Graph([x], [exp(x)]), [bad])


def test_rule_that_gives_a_node_for_itself_is_an_error() -> None:
    bad = Rule(
        "bad",
        ("exp",),
        "Is wrong.",
        on(exp, "T[n]"),
        lambda node, facts: negative(negative(node.outputs[0])),
    )
    x = _input()
    with pytest.raises(AssertionError, match="for itself"):
        simplify(Graph([x], [exp(x)]), [bad])


_wrong = RuleTable("wrong")


@_wrong.rule("plus-zero", "add", because="Looks right.", example=on(lambda x: add(x, 0), "T[n]"))
def _plus_zero(node: Node, facts: Facts) -> Outcome:
    return node.operands[0]


@_wrong.rule(
    "itself-is-zero",
    "subtract",
    because="Looks right.",
    example=on(lambda x: subtract(x, x), "T[n]"),
)
def _itself(node: Node, facts: Facts) -> Outcome:
    return multiply(node.operands[0], 0)


@_wrong.rule("asleep", "exp", because="Never fires.", example=on(exp, "T[n]"))
def _asleep(node: Node, facts: Facts) -> Outcome:
    return None


@_wrong.rule("unreasoned", "exp", because="no sentence", example=on(exp, "float32[n]"))
def _unreasoned(node: Node, facts: Facts) -> Outcome:
    return exp(negative(negative(node.operands[0])))


@_wrong.rule(
    "drops-the-last",
    "transpose",
    because="Loses an element of what is long.",
    example=on(lambda x: transpose(x, perm=(1, 0)), "T[n, n]"),
)
def _not_transposed(node: Node, facts: Facts) -> Outcome:
    return node.operands[0]


@pytest.mark.parametrize("rule", _wrong.rules, ids=lambda rule: rule.name)
def test_wrong_rule_is_found(rule: Rule) -> None:
    assert rule_problems(rule)


def test_pattern_finds_a_spelled_out_composite() -> None:
    x = Anything("x")
    pattern = call("multiply", x, call("exp", call("add", x, Number("bias"))))
    a, b = _input(), _input(name="y")
    assert match(pattern, multiply(exp(add(a, 3.0)), a)) == {"x": a, "bias": 3.0}
    assert match(pattern, multiply(exp(add(a, 3.0)), b)) is None
    assert match(pattern, multiply(exp(add(a, b)), a)) is None
    assert match(call("add", x, 2.0), add(a, 2.0)) == {"x": a}
    assert match(call("add", x, 2.0), add(a, 3.0)) is None
    assert match(call("subtract", x, 2.0), subtract(constant(np.float32(2)), a)) is None


def test_number_of_a_pattern_may_be_off_by_rounding_and_no_more() -> None:
    x = Anything("x")
    a = _input("float64[n]")
    for number in (4.0, 0.25, -300.0):
        for factor, wanted in ((1 + 9e-7, True), (1 - 9e-7, True), (1 + 2e-6, False)):
            found = match(call("add", x, number), add(a, number * factor))
            assert (found is not None) == wanted, (number, factor)
    assert match(call("add", x, 0.0), add(a, 0.0)) is not None
    assert match(call("add", x, 0.0), add(a, 1e-30)) is None
