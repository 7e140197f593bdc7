"""Patterns, limits and costs of the user's: which groups they make, and what is refused."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.errors import OptionsError
from fusewire.fusing.fuse import Fusion, KernelLimits, Pattern, Work
from fusewire.numerics.judge import judge_op
from fusewire.ops.interpret import interpret
from fusewire.ops.table import verify


def fused(function: Any, *shapes: tuple[int, ...], **options: Any) -> Fusion:
    """Fuse what a function computes; the fused graph must mean the same."""
    graph = fw.trace(function, *(fw.Spec(shape, "float32") for shape in shapes))
    fusion = fw.fuse(graph, **options)
    verify(fusion.fused)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    verdict = judge_op(fusion.given, inputs, interpret(fusion.fused, inputs))
    assert verdict.status == "right", verdict.reason
    return fusion


def groups(fusion: Fusion) -> list[tuple[str, list[str]]]:
    return [(group.pattern, [node.op for node in group.nodes]) for group in fusion.groups]


def reasons(fusion: Fusion) -> str:
    return "; ".join(f"{found.node.op}: {found.reason}" for found in fusion.refused)


SCALED = Pattern("scaled exp", ("multiply", "exp"))


def test_a_pattern_of_the_users_makes_its_group_and_no_more() -> None:
    found = fused(lambda x: np.exp(x * 2) + x, (4, 5), patterns=[SCALED])
    assert groups(found) == [("scaled exp", ["multiply", "exp"]), ("single", ["add"])]
    assert dict(found.patterns) == {"scaled exp": 1, "single": 1}


def test_patterns_of_ours_go_on_beside_it() -> None:
    every = (*fw.fuse(fw.trace(np.exp, fw.Spec((3,), "float32"))).known, SCALED)
    found = fused(lambda x: np.sqrt(np.abs(np.exp(x * 2)) + 1), (4, 5), patterns=every)
    assert groups(found) == [
        ("scaled exp", ["multiply", "exp"]),
        ("elementwise", ["abs", "add", "sqrt"]),
    ]
    assert "'scaled exp' begins after it" not in reasons(found)


def test_only_patterns_that_are_given_make_groups() -> None:
    found = fused(lambda x: ops.softmax(x * 2), (4, 5), patterns=["elementwise"])
    assert {pattern for pattern, _ in groups(found)} == {"single"}
    assert "'softmax' is not among the patterns that were given" in reasons(found)
    assert groups(fused(lambda x: ops.softmax(x), (4, 5), patterns=["softmax"]))[0][0] == "softmax"


def test_kinds_stand_for_nodes_and_elementwise_for_several() -> None:
    chain = Pattern("sum of a chain", ("elementwise", "reduction"), strategy="rows")
    found = fused(lambda x: np.exp(np.sum(np.sqrt(np.abs(x + 1)), -1)), (4, 5), patterns=[chain])
    assert groups(found) == [
        ("sum of a chain", ["add", "abs", "sqrt", "reduce_sum"]),
        ("single", ["exp"]),
    ]


def test_composites_are_matched_by_name_and_views_are_looked_through() -> None:
    dense = Pattern("dense", ("linear", "gelu"), strategy="tiles")
    found = fused(
        lambda x, w: ops.gelu(np.reshape(ops.linear(x, w), (10,))), (5, 4), (2, 4), patterns=[dense]
    )
    assert [group.pattern for group in found.groups] == ["dense"]


def test_the_lower_priority_comes_first() -> None:
    later = Pattern("all of it", ("elementwise",), priority=9)
    found = fused(lambda x: np.exp(x * 2) + 1, (4, 5), patterns=[later, SCALED])
    assert groups(found) == [("scaled exp", ["multiply", "exp"]), ("all of it", ["add"])]


def test_what_is_needed_elsewhere_is_in_no_pattern() -> None:
    found = fused(lambda x: (np.exp(x * 2), x * 2 + 1), (4, 5), patterns=[SCALED])
    assert ("scaled exp", ["multiply", "exp"]) in groups(found)

    def shared(x: Any) -> Any:
        doubled = x * 2
        return np.exp(doubled), doubled + 1

    assert "scaled exp" not in dict(fused(shared, (4, 5), patterns=[SCALED]).patterns)


def test_a_pattern_that_one_kernel_cannot_hold_is_refused_with_the_reason() -> None:
    product = Pattern("exp of a factor", ("exp", "matmul"))
    found = fused(lambda x, w: np.exp(x) @ w, (4, 5), (5, 6), patterns=[product])
    assert {pattern for pattern, _ in groups(found)} == {"single"}
    assert "would compute exp many times" in reasons(found)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("nothing like it", "There is no pattern 'nothing like it'. There are attention"),
        (Pattern("softmax", ("exp",)), "is a pattern of ours"),
        (Pattern("mine", ("exq",)), "'exq', which is neither an op nor a kind"),
        (Pattern("mine", ()), "has nothing"),
    ],
)
def test_a_pattern_that_says_nothing_is_an_error(pattern: Pattern | str, says: str) -> None:
    with pytest.raises(OptionsError, match=says):
        fused(lambda x: np.exp(x), (3,), patterns=[pattern])


def test_limits_bound_a_kernel() -> None:
    found = fused(lambda x: np.exp(x * 2 + 1), (8,), limits=KernelLimits(nodes=2))
    assert [len(group.nodes) for group in found.groups] == [1, 2]
    assert "one kernel holds 2 nodes at most" in reasons(found)


def test_a_cost_of_the_users_decides_what_pays() -> None:
    def launches_are_free(work: Work) -> float:
        return float(-work.launches)

    found = fused(lambda x: np.exp(x * 2 + 1), (8,), cost=launches_are_free)
    assert found.after.launches == 3
    assert "one kernel would cost" in reasons(found)
