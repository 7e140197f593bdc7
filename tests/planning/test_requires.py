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
from fusewire.errors import BudgetError, CheckError
from fusewire.ir.graph import Graph
from fusewire.ops.intervals import Samples
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


def _boxes(is_computed: bool) -> Graph:
    def pooled(rois: Any, batches: Any) -> Any:
        if is_computed:
            rois = ops.multiply(ops.add(rois, rois), np.float32(0.5))
        return ops.roi_align(IMAGE, rois, batches, sizes=(2, 2), scale=0.5)

    return fw.trace(pooled, fw.Spec(("n", 4), "float32"), fw.Spec(("n",), "int64"))


def _box(*corners: float) -> list[Any]:
    return [np.array([corners], np.float32), np.zeros(1, np.int64)]


@pytest.mark.parametrize("engine", ["reference", "onnxruntime", "openvino"])
@pytest.mark.parametrize("is_computed", [False, True])
def test_boxes_whose_samples_are_too_many_reach_no_engine(engine: str, is_computed: bool) -> None:
    graph = _boxes(is_computed)
    options: Any = {"isolate": False, "cache": False, "fallback": "allow"}
    small, large = _box(0, 0, 3, 2), [np.tile(_box(0, 0, 900, 900)[0], (9, 1)), np.zeros(9, int)]
    limited = fw.compile(graph, backend=engine, memory_limit=2**26, **options)
    expected = limited(*small)
    for boxes in (_box(0, 0, 5000, 5000), _box(0, 0, -5000, -5000), large):
        # The reference has no more samples than those of one box, and counts them itself.
        if engine != "reference" or not is_computed:
            with pytest.raises(BudgetError, match=r"samples of rois .* memory_limit"):
                limited(*boxes)
    # Products of these leave 64 bits.
    program = fw.compile(graph, backend=engine, **options)
    for size in (2.0**33, 1e38):
        with pytest.raises(BudgetError, match="memory_limit"):
            program(*_box(0, 0, size, size))
    assert np.array_equal(limited(*small), expected)
    assert np.array_equal(program(*small), expected)


def test_boxes_of_a_first_call_reach_no_engine() -> None:
    program = fw.compile(_boxes(False), cache=False, start="measured", memory_limit=2**26)
    with pytest.raises(BudgetError, match=r"samples of rois .* memory_limit"):
        program(*_box(0, 0, 5000, 5000))


@pytest.mark.parametrize("start", [2.0**30, 2.0**40, 3e12])
def test_samples_are_counted_as_engines_round(start: float) -> None:
    end = start
    for _ in range(3):
        end = float(np.nextafter(np.float32(end), np.float32(np.inf)))
        boxes, scale = _box(start, start, end, end)[0], 0.3
        corners = boxes[0] * np.float32(scale) - np.float32(0.5)
        taken = (float(corners[2]) - float(corners[0])) ** 2
        assert Samples((2, 2), scale).count(boxes) >= taken


def test_samples_of_boxes_beyond_all_numbers_are_too_many() -> None:
    boxes = np.array([[-1e300, -1e300, 1e300, 1e300]])
    with pytest.raises(BudgetError, match="samples of rois"):
        Samples((2, 2), 1e10).check(boxes, "roi_align", "rois", None)


def test_boxes_with_so_many_samples_each_may_have_any_size() -> None:
    boxes = _box(0, 0, 1e9, 1e9)
    graph = fw.trace(lambda r, b: ops.roi_align(IMAGE, r, b, sizes=(2, 2), sampling=2), *boxes)
    assert all(need.rule != "sampled" for need in graph_needs(graph))
    assert program_of(graph, "onnxruntime")(*boxes).shape == (1, 1, 2, 2)


def test_saved_plan_asks_for_the_same_samples() -> None:
    graph = _boxes(False)
    program = program_of(graph, "onnxruntime")
    program(*_box(0, 0, 3, 2))
    blobs: list[Any] = []
    row = write_plan(program.plan, blobs)
    again = read_plan(row, iter(blobs), lambda: graph)  # type: ignore[arg-type]
    asked = [x.samples for x in program.plan.guards if x.samples is not None]
    assert asked == [x.samples for x in again.guards if x.samples is not None]
    assert [x.bins for x in asked] == [(2, 2)]


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
