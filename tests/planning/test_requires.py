"""What ops require of operands that are no single index: order, finite places, short lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.errors import CheckError
from fusewire.ir.graph import Graph
from fusewire.ops.table import all_ops
from fusewire.planning.guards import graph_needs
from fusewire.records.plans import read_plan, write_plan
from tests.planning.index_models import differs, outcome

ENGINES = ("onnxruntime", "openvino", "torch", "xla", "webgpu")
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
VALUES, B = np.ones(3, np.float32), np.arange(8, dtype=np.float32).reshape(4, 2)


@dataclass(frozen=True)
class Case:
    """An op, its operands, and operands of which all engines say what the reference says."""

    apply: Callable[..., Any]
    good: Sequence[Any]
    bad: Sequence[Any]
    says: str
    specs: Sequence[Any] | None = None


CONDITIONS = fw.Spec(("n",), "float32"), fw.Spec(("c",), "bool")
CASES = {
    "row starts below": Case(
        lambda p, i: ops.csr_matmul(p, i, VALUES, B),
        [np.array([0, 2, 2, 3]), np.array([1, 3, 0])],
        [np.array([3, -5, 2**40, 1]), np.array([1, 3, 0])],
        "indptr[1] is -5; it must be from 0 to 3",
    ),
    "row starts out of order": Case(
        lambda p, i: ops.csr_to_dense(p, i, VALUES, columns=4),
        [np.array([0, 2, 2, 3]), np.array([1, 3, 0])],
        [np.array([0, 3, 1, 3]), np.array([1, 3, 0])],
        "indptr[2] is 1; it must not be below the one before it",
    ),
    "rows of entries": Case(
        lambda i, v: ops.coo_to_csr(i, v, rows=3)[0],
        [np.array([[0, 1], [2, 0]]), VALUES[:2]],
        [np.array([[7, 1], [-9, 0]]), VALUES[:2]],
        "indices[0, 0] is 7; it must be from 0 to 2",
    ),
    "long condition": Case(
        lambda x, c: ops.compress(x, c, axis=0),
        [VALUES, np.array([True, False, True])],
        [VALUES, np.array([True, False, True, False, True])],
        "condition[1] is True; it must be from 0 to 0",
        CONDITIONS,
    ),
    "box that is NaN": Case(
        lambda r, b: ops.roi_align(IMAGE, r, b, sizes=(2, 2), sampling=2),
        [np.array([[0, 0, 2, 2]], np.float32), np.array([0])],
        [np.array([[0, np.nan, 2, 2]], np.float32), np.array([0])],
        "rois[0, 1] is nan; it must be finite",
    ),
    "box that is infinite": Case(
        lambda r, b: ops.roi_align(IMAGE, r, b, sizes=(2, 2), sampling=2),
        [np.array([[0, 0, 2, 2]], np.float32), np.array([0])],
        [np.array([[0, 0, np.inf, 2]], np.float32), np.array([0])],
        "rois[0, 2] is inf; it must be finite",
    ),
}


# How operands are called that select memory, or say how much of it there is.
SELECTING = re.compile(
    "(ind|places|position|lengths?|starts|limits|strides|batches|labels|k$|repeats|sizes|shape|rois|"
    "padding|most|start|stop|step|trips|mask|condition)"
)
# Operands that need no bound, and why.
UNBOUND = {
    "where condition": "it chooses between two elements that are both there",
    "check condition": "it selects nothing",
    "loop trips": "limits count the rounds",
    "loop condition": "it selects nothing",
    "attention k": "it is keys",
    "attention mask": "it is added, or chooses between elements that are there",
    "deformable_conv mask": "it is multiplied",
    "boolean_mask mask": "its type has the shape of the leading axes",
    "csr_to_coo indices": "columns are copied, and used by nobody here",
    "range start": "limits count the elements",
    "range stop": "limits count the elements",
    "range step": "limits count the elements",
    "one_hot indices": "a place outside gives a row of the value for off",
    "dynamic_update_slice starts": "a block that does not fit is moved until it does",
    "dynamic_slice starts": "ends outside are taken as the end of the axis",
    "dynamic_slice limits": "ends outside are taken as the end of the axis",
    "dynamic_slice strides": "limits count the elements",
    "dynamic_reshape shape": "engines and limits compare the elements with those that are there",
    "dynamic_broadcast_to shape": "limits count the elements",
    "dynamic_full shape": "limits count the elements",
    "dynamic_tile repeats": "limits count the elements",
    "dynamic_pad padding": "limits count the elements",
    "dynamic_resize sizes": "limits count the elements",
    "non_max_suppression most": "there are no more boxes than there are",
    "sequence_at position": "only the reference runs it, and checks",
    "sequence_insert position": "only the reference runs it, and checks",
    "sequence_erase position": "only the reference runs it, and checks",
    "split_to_sequence sizes": "only the reference runs it, and checks",
}


def test_operands_that_select_memory_have_a_bound_or_a_reason() -> None:
    unbound = {
        f"{op.name} {name}"
        for op in all_ops().values()
        for name in {*op.parameters[0], *op.index_operands}
        if SELECTING.match(name) and all(name != r.operand for r in op.requires)
    }
    assert unbound == UNBOUND.keys()


def graph_of(case: Case) -> Graph:
    return fw.trace(case.apply, *(case.specs or case.good))


def program_of(graph: Graph, backend: str) -> Any:
    return fw.compile(graph, backend=backend, isolate=False, cache=False, fallback="allow")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_computed", [False, True])
def test_engines_refuse_what_the_reference_refuses(name: str, is_computed: bool) -> None:
    case = CASES[name]

    def applied(*operands: Any) -> Any:
        # Computed to the same numbers, so that no guard on an input sees them.
        taken = list(operands)
        if is_computed and "condition" in name:
            taken[1] = ops.logical_not(ops.logical_not(taken[1]))
        elif is_computed and "box" in name:
            taken[0] = ops.multiply(ops.add(taken[0], taken[0]), np.float32(0.5))
        elif is_computed:
            taken[0] = ops.subtract(ops.add(taken[0], taken[0]), taken[0])
        return case.apply(*taken)

    graph = fw.trace(applied, *(case.specs or case.good))
    reference = program_of(graph, "reference")
    good, bad = outcome(reference, case.good), outcome(reference, case.bad)
    assert not isinstance(good, str)
    assert isinstance(bad, str)
    assert case.says in bad
    for engine in ENGINES:
        program = program_of(graph, engine)
        for inputs, expected in ((case.good, good), (case.bad, bad), (case.good, good)):
            found = outcome(program, inputs)
            if isinstance(expected, str):
                assert isinstance(found, str), engine
                assert case.says in found, engine
            else:
                assert not differs(found, expected), engine


def test_long_condition_that_holds_nowhere_beyond_is_taken() -> None:
    case = CASES["long condition"]
    graph = graph_of(case)
    condition = np.array([True, False, True, False, False])
    for engine in ("reference", *ENGINES):
        assert program_of(graph, engine)(VALUES, condition).tolist() == [1, 1], engine


def test_condition_that_is_no_longer_than_the_axis_needs_no_check() -> None:
    traced = fw.trace(lambda x, c: ops.compress(x, c, axis=0), VALUES, np.array([True, False]))
    assert graph_needs(traced) == []


@pytest.mark.parametrize("name", ["row starts out of order", "box that is NaN", "long condition"])
def test_saved_plan_has_the_same_rules(name: str) -> None:
    graph = graph_of(CASES[name])
    program = program_of(graph, "openvino")
    program(*CASES[name].good)
    blobs: list[Any] = []
    row = write_plan(program.plan, blobs)
    again = read_plan(row, iter(blobs), lambda: graph)  # type: ignore[arg-type]
    assert [x.sentence() for x in again.guards] == [x.sentence() for x in program.plan.guards]
    assert {x.rule for x in again.guards} == {x.rule for x in program.plan.guards}


def test_entries_of_a_dense_matrix_need_no_check() -> None:
    graph = fw.trace(lambda x: ops.dense_to_csr(x)[0], B)
    for engine in ("openvino", "xla"):
        program = program_of(graph, engine)
        program(B)
        assert not program.plan.guards
        assert not any(step.guards for step in program.plan.steps)


def test_checked_operands_raise_check_errors() -> None:
    case = CASES["box that is NaN"]
    with pytest.raises(CheckError, match="rois"):
        program_of(graph_of(case), "openvino")(*case.bad)
