"""What a program takes, it gives back: buffers between steps, executables, copies."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.contract.backend import Device, Exchange
from fusewire.host_memory import aligned_empty
from fusewire.plan.execute import PlanRunner
from fusewire.plan.transfer import fits, hand_over, to_host
from fusewire.planning.planner import make_plan
from fusewire.planning.target import Target
from tests.counting import Counts
from tests.planning.test_planner import _Builder
from tests.toy import picky_backend

CPU = Device("cpu", "test")
X = np.linspace(-1, 1, 12, dtype=np.float32)


def _chain(x: Any) -> Any:
    for _ in range(6):
        x = np.exp(np.sin(x))
    return x


def _targets() -> list[Target]:
    return [Target(picky_backend("picky", ["sin"]), CPU), Target(picky_backend("rest", []), CPU)]


def test_values_are_freed_between_steps(counts: Counts) -> None:
    graph = fw.trace(_chain, fw.Spec((12,), "float32"))
    planned = make_plan(graph, _targets())
    assert len(planned.plan.steps) == 12
    runner = PlanRunner(planned.plan, _Builder(_targets()))
    for _ in range(3):
        (found,) = runner.call([X])
        np.testing.assert_allclose(found, _chain(X), rtol=1e-6)
        del found
        assert counts.live == 0
    # The output of a step, and what the step took.
    assert counts.most_live <= 2


def test_value_that_a_later_step_takes_is_kept_until_then(counts: Counts) -> None:
    def skip(x: Any) -> Any:
        early = np.exp(x)
        return np.sin(np.exp(np.sin(early))) + early

    graph = fw.trace(skip, fw.Spec((12,), "float32"))
    planned = make_plan(graph, _targets())
    runner = PlanRunner(planned.plan, _Builder(_targets()))
    (found,) = runner.call([X])
    np.testing.assert_allclose(found, skip(X), rtol=1e-6)
    freed = [place for step in planned.plan.steps for place in step.frees]
    assert len(freed) == len(set(freed)) > 0
    assert not set(freed) & {*planned.plan.outputs, *range(1)}
    del found
    assert counts.live == 0


def test_outputs_are_the_callers_alone(counts: Counts) -> None:
    program = fw.compile(
        lambda x: (x, x + 1, x + 1), fw.Spec((12,), "float32"), backend="reference"
    )
    same, one, two = program(X)
    assert same is not X
    assert not np.may_share_memory(same, X)
    assert not np.may_share_memory(one, two)


def test_closed_program_closes_what_it_loaded(counts: Counts) -> None:
    program = fw.compile(_chain, backend="reference", isolate=False)
    for size in (3, 4, 5):
        program(np.ones(size, np.float32))
    assert counts.open > 0
    program.close()
    del program
    assert counts.open == 0


def test_bodies_of_control_flow_are_closed_too(counts: Counts) -> None:
    def choice(x: Any) -> Any:
        return ops.cond(np.sum(x) > 0, x, then=lambda v: np.sin(v) * 2, otherwise=np.exp)

    graph = fw.trace(choice, fw.Spec((12,), "float32"))
    targets = [Target(picky_backend("picky", ["sin", "exp"]), CPU), *_targets()[1:]]
    # The fallback runs no control flow: the host drives it, and its bodies have plans of their own.
    runner = PlanRunner(make_plan(graph, targets, targets[-1]).plan, _Builder(targets))
    for x in (X + 2, X - 2):
        runner.call([x])
    bodies = counts.open
    assert bodies >= 3
    runner.close()
    del runner
    assert counts.open == 0


# -- hand-over


ALIGNED = Exchange(alignment=64)


def aligned(size: int, offset: int = 0) -> Any:
    """Make an array that starts at a multiple of 64 bytes, or so many bytes after it."""
    whole = aligned_empty((size + 16,), np.dtype(np.float32))
    assert whole.ctypes.data % 64 == 0
    whole[:] = 1
    return whole[offset // 4 : offset // 4 + size]


def test_aligned_array_is_handed_over_as_it_is(counts: Counts) -> None:
    array = aligned(8)
    assert hand_over(array, ALIGNED) is array
    assert counts.copies == 0


def test_array_that_is_not_aligned_is_copied_to_where_it_is(counts: Counts) -> None:
    array = aligned(8, offset=4)
    copy = hand_over(array, ALIGNED)
    assert isinstance(copy, np.ndarray)
    assert copy is not array
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, array)
    assert counts.copies == 1
    assert hand_over(array, Exchange(alignment=4)) is array
    assert hand_over(array, Exchange()) is array
    assert counts.copies == 1


@pytest.mark.parametrize("exchange", [Exchange(needs_writable=True), Exchange()])
def test_array_that_cannot_be_written_is_copied_for_those_who_write(
    counts: Counts, exchange: Exchange
) -> None:
    array = aligned(8)
    array.flags.writeable = False
    copy = hand_over(array, exchange)
    assert (copy is array) == (not exchange.needs_writable)
    assert counts.copies == exchange.needs_writable


def test_array_with_strides_is_copied_for_those_who_need_none(counts: Counts) -> None:
    array = aligned(16)[::2]
    assert not fits(array, Exchange())
    assert fits(array, Exchange(needs_contiguous=False))
    copy = hand_over(array, Exchange())
    assert isinstance(copy, np.ndarray)
    assert copy.flags.c_contiguous
    assert to_host(array) is array
    assert counts.copies == 1


def test_scalars_become_arrays() -> None:
    scalar = to_host(np.float32(3))
    assert isinstance(scalar, np.ndarray)
    assert scalar.shape == ()


def test_plan_may_be_run_by_several_threads_at_once() -> None:
    graph = fw.trace(_chain, fw.Spec((12,), "float32"))
    assert PlanRunner(make_plan(graph, _targets()).plan, _Builder(_targets())).is_reentrant
