"""What a guard sees of an array, which guards are merged, and what is asked only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fusewire.contract.buffer import HostBuffer
from fusewire.errors import CheckError
from fusewire.events import EVENTS, EventList
from fusewire.host_memory import LARGE
from fusewire.ir.dims import Dim, evaluate, symbol, symbols
from fusewire.ops.intervals import Rule, check_elements
from fusewire.plan import guards
from fusewire.plan.guards import Checks, EntryChecks, Guard, ViewStep, seen

N = symbol("n")
(KEY,) = symbols(N)


def guard(
    *intervals: tuple[Dim, Dim],
    place: int = 0,
    view: Sequence[ViewStep] = (),
    shape: Sequence[Dim] = (2,),
    sized: bool = False,
    label: str = "gather",
    source: str | None = None,
    rule: Rule = "within",
) -> Guard:
    """Make a guard; one that is ``sized`` finds n in the first axis of the value at 0."""
    sizes = ((KEY, 0, 0),) if sized else ()
    operand = "indices"
    return Guard(
        place, tuple(view), tuple(shape), intervals, None, sizes, label, operand, source, rule
    )


def allows(checks: Checks, *values: Any) -> bool:
    try:
        checks.check([*values])
    except CheckError:
        return False
    return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes whose guards were asked on their own."""
    labels: list[str] = []

    def noted(array: Any, intervals: Any, ignored: Any, label: str, *more: Any) -> None:
        labels.append(label)
        check_elements(array, intervals, ignored, label, *more)

    monkeypatch.setattr(guards, "check_elements", noted)
    return labels


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Dim]:
    """The dims that were computed."""
    dims: list[Dim] = []

    def noted(dim: Dim, sizes: Any) -> int:
        dims.append(dim)
        return evaluate(dim, sizes)

    monkeypatch.setattr(guards, "evaluate", noted)
    return dims


def test_sentence_says_what_is_checked() -> None:
    said = guard((0, 3), (-1, N), source="ids").sentence()
    assert said == "gather: indices (from the input ids) must be from 0 to 3, -1 to n."
    assert guard((0, 3)).sentence() == "gather: indices (computed) must be from 0 to 3."
    ordered = guard(rule="ordered").sentence()
    assert ordered == "gather: indices (computed) must be in order."


# -- what a guard sees

BLOCK = np.arange(12).reshape(3, 4)
SEEN: dict[str, tuple[ViewStep, np.ndarray]] = {
    "take": (("take", 1, 1), BLOCK[:, 1]),
    "slice": (("slice", (1, 0), (N, 4), (1, 2)), BLOCK[1:3, ::2]),
    "to the first": (("slice", (2, 0), (-1, 4), (-1, 1)), BLOCK[::-1]),
    "before the first": (("slice", (2, 0), (0, 4), (-1, 1)), BLOCK[2:0:-1]),
    "only the first": (("slice", (0, 0), (-1, 4), (-1, 1)), BLOCK[:1]),
    "none, backwards": (("slice", (-1, 0), (-1, 4), (-1, 1)), BLOCK[:0]),
    "none at the start": (("slice", (0, 0), (0, 4), (1, 1)), BLOCK[:0]),
    "reshape": (("reshape", (2, N, 2)), BLOCK.reshape(2, 3, 2)),
    "broadcast": (("broadcast", (2, N, 4)), np.stack([BLOCK, BLOCK])),
    "transpose": (("transpose", (1, 0)), BLOCK.T),
    "cast": (("cast", "uint8"), BLOCK.astype(np.uint8)),
}


@pytest.mark.parametrize("name", SEEN)
def test_guard_sees_what_its_node_uses(name: str) -> None:
    step, expected = SEEN[name]
    found = seen(BLOCK, [step], {KEY: 3})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("interval", "good", "bad"),
    [((-1, 200), [256 + 200, 0], [-1]), ((1, 256), [257, 255], [256]), ((-1, 256), [-1, 256], [])],
)
def test_cast_that_may_change_a_number_is_made_before_the_check(
    interval: tuple[int, int], good: list[int], bad: list[int]
) -> None:
    """What lies in the interval before it becomes another number of 8 bits."""
    seen_cast = guard(interval, view=[("cast", "uint8")])
    assert allows(Checks([seen_cast]), np.array(good))
    for number in bad:
        assert not allows(Checks([seen_cast]), np.array([number]))


@pytest.mark.parametrize(("low", "high"), [(0, 255), (1, 7)])
def test_cast_that_changes_no_number_is_left_out(low: int, high: int, asked: list[str]) -> None:
    step: ViewStep = ("cast", "uint8")
    checks = Checks([guard((low, high), view=[("transpose", (0,)), step])])
    assert allows(checks, np.array([low, high]))
    assert asked == []


# -- which guards are merged


def test_guards_on_one_array_are_asked_together(asked: list[str]) -> None:
    pair = [guard((-9, 9), label="wide"), guard((-2, 2), label="narrow")]
    checks = Checks(pair)
    assert allows(checks, np.array([-2, 2]))
    assert asked == []
    assert not allows(checks, np.array([0, 3]))
    assert asked == ["wide", "narrow"]


@pytest.mark.parametrize("count", [2, 65])
def test_both_ends_are_allowed_and_nothing_beyond(count: int, asked: list[str]) -> None:
    array = np.zeros(count, np.int64)
    for first, last, is_allowed in ((-2, 2, True), (-3, 0, False), (0, 3, False), (-3, 3, False)):
        asked.clear()
        array[0], array[-1] = first, last
        assert allows(Checks([guard((-2, 2), shape=(count,))]), array) == is_allowed
        # All elements are looked at at once.
        assert (asked == []) == is_allowed


def test_array_without_elements_is_within() -> None:
    assert allows(Checks([guard((3, 2))]), np.zeros(0, np.int64))


def test_operand_without_elements_asks_nothing(asked: list[str]) -> None:
    repeated = guard((0, 3), place=1, shape=(2, N), sized=True, label="repeated")
    pairs = guard((0, 3), (0, 3), place=1, shape=(N, 2), sized=True, label="pairs")
    other = guard((0, 99), place=1, label="other")
    none, one = np.zeros(0), np.zeros(1)
    checks = Checks([repeated, pairs, other])
    assert allows(checks, none, np.array([77, 77]))
    assert asked == []
    assert not allows(checks, none, np.array([77, 100]))
    for each in (repeated, pairs):
        assert not allows(Checks([each]), one, np.array([77, 77]))


def test_intervals_of_columns_are_asked_apart() -> None:
    checks = Checks([guard((0, 3), (-5, -4), shape=(2, 2))])
    assert allows(checks, np.array([[0, -4], [3, -5]]))
    assert not allows(checks, np.array([[0, -4], [3, 0]]))


@pytest.mark.parametrize(("rule", "bad"), [("ordered", [1.0, 0.0]), ("finite", [0.0, np.inf])])
def test_other_rules_are_asked_of_every_array(rule: Rule, bad: list[float]) -> None:
    checks = Checks([guard(rule=rule)])
    for _ in range(2):
        assert allows(checks, np.array([0.0, 1.0]))
        assert not allows(checks, np.array(bad))


def test_part_of_an_array_may_be_within(asked: list[str]) -> None:
    part: ViewStep = ("slice", (0,), (1,), (1,))
    checks = Checks([guard((0, 3), view=[part], shape=(1,)), guard((0, 9), label="whole")])
    assert allows(checks, np.array([3, 9]))
    assert asked == ["gather", "whole"]
    assert not allows(checks, np.array([4, 9]))
    assert not allows(checks, np.array([3, 10]))


def test_constants_follow_the_values() -> None:
    constants = [np.array([0]), np.array([2])]
    first, second = (guard((0, N), place=1 + k, sized=True, label=f"{k}") for k in (0, 1))
    checks = Checks([first, second, guard((0, 9))], constants)
    assert allows(checks, np.array([9, 9]))
    # With one element, the second constant is beyond the end.
    assert not allows(checks, np.array([9]))
    assert not allows(checks, np.array([9, 10]))
    for _ in range(2):
        assert allows(Checks([first], constants), np.array([0]))


def test_buffers_are_read() -> None:
    checks = Checks([guard((0, N), sized=True)])
    assert allows(checks, HostBuffer(np.array([0, 2])))
    assert not allows(checks, HostBuffer(np.array([0, 3])))


# -- what is done once


def test_ends_are_computed_once_for_each_size(evaluated: list[Dim]) -> None:
    checks = Checks([guard((0, N), sized=True)])
    assert allows(checks, np.zeros(3, np.int64))
    assert N in evaluated
    evaluated.clear()
    assert allows(checks, np.array([0, 1, 3]))
    assert evaluated == []
    assert not allows(checks, np.array([3, 3]))


def test_so_many_sizes_are_kept(evaluated: list[Dim], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "_KEPT", 2)
    checks = Checks([guard((0, N), sized=True)])
    # The third takes the place of both that were there.
    for size, is_known in ((1, False), (2, False), (1, True), (3, False), (1, False), (3, True)):
        evaluated.clear()
        assert allows(checks, np.zeros(size, np.int64))
        assert (evaluated == []) == is_known


def test_check_is_an_event_of_a_profile() -> None:
    checks, events = Checks([guard((0, 3))]), EventList()
    checks.check([np.array([1])])
    EVENTS.begin(events)
    try:
        checks.check([np.array([2])])
    finally:
        EVENTS.end(events)
    checks.check([np.array([3])])
    (event,) = events.events
    assert (event.kind, event.name) == ("check", "indices and lengths")
    assert 0 < event.start <= event.end


# -- what a caller gives


@pytest.mark.parametrize("count", [2, LARGE // 8, LARGE // 8 + 1])
def test_what_is_checked_is_a_copy(count: int) -> None:
    given, other = np.ones(count, np.int64), np.ones(2)
    entry = EntryChecks([guard((0, 3), shape=(count,))], (), [0])
    own, same = entry.admitted([given, other])
    assert same is other
    assert not np.shares_memory(own, given)
    np.testing.assert_array_equal(own, given)
    if given.nbytes >= LARGE:
        # Engines take it as it is; a copy of NumPy's may lie so by chance, and has its own memory.
        assert np.asarray(own).ctypes.data % 64 == 0
        assert not np.asarray(own).flags.owndata
    given[-1] = 4
    with pytest.raises(CheckError):
        entry.admitted([given, other])


@pytest.mark.parametrize("kind", [HostBuffer, lambda array: array.view(np.matrix)])
def test_other_kinds_are_copied_to_arrays(kind: Any) -> None:
    given = np.array([[1, 2]])
    (own,) = EntryChecks([guard((0, 3), shape=(1, 2))], (), [0]).admitted([kind(given)])
    given[:] = 9
    assert type(own) is np.ndarray
    assert own.tolist() == [[1, 2]]
