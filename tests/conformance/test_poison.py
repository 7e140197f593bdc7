"""What engines lose of NaN, infinities and -0, by op: a fact for each of their own forms."""

from collections.abc import Iterator

import numpy as np
import pytest

from fusewire.contract.backend import ENGINE_NAN, NAN, Config
from fusewire.contract.region import first_device
from fusewire.dtypes import float32
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import Case, cases
from fusewire.testing.poison import POISON, poison_problems, rounds_of
from fusewire.testing.suite import run_cases

OWN = Config(options={NAN: ENGINE_NAN})
# Codes have no NaN to lose, and HSwish alone keeps it: it is not shown what a layer fuses with it.
UNSHOWN = {"hard_swish", "quantize"}


def _said_to_lose(name: str) -> Iterator[Case]:
    """List cases whose node the engine's own form of is said to lose something of."""
    backend = REGISTRY.get(name)
    device = first_device(backend)
    for case in cases():
        if case.is_numeric and case.dtype is float32:
            graph, _ = case.make()
            if backend.loses_nan(graph.nodes[0], device):
                yield case


def test_every_float_operand_is_poisoned_at_both_ends_and_in_the_middle() -> None:
    (case,) = [case for case in cases([all_ops()["maximum"]]) if case.id == "maximum-0-float32"]
    graph, inputs = case.make()
    rounds = rounds_of(graph, inputs, float32)
    places = {(ready.place, ready.index) for ready in rounds}
    for place, x in enumerate(inputs):
        assert isinstance(x, np.ndarray)
        ends = {tuple(0 for _ in x.shape), tuple(n - 1 for n in x.shape)}
        assert {(place, index) for index in ends} <= places
    assert len(rounds) == len(places) * len(POISON)


def test_few_rounds_are_one_for_each_poison() -> None:
    case = next(c for c in cases([all_ops()["maximum"]]) if c.id == "maximum-0-float32")
    rounds = rounds_of(*case.make(), float32, few=True)
    assert [r.poison for r in rounds] == list(POISON)
    again = rounds_of(*case.make(), float32, few=True)
    assert [r.label for r in rounds] == [r.label for r in again]


def test_sign_of_zero_is_compared_where_it_is_promised() -> None:
    for name, is_promised in (("negative", True), ("transpose", True), ("add", False)):
        case = next(c for c in cases([all_ops()[name]]) if c.dtype is float32)
        graph, inputs = case.make()
        zeros = [
            r for r in rounds_of(graph, inputs, float32) if np.signbit(r.poison) and not r.poison
        ]
        turned = [[np.where(np.equal(x, 0), -np.asarray(x), x) for x in r.wanted] for r in zeros]
        found = [poison_problems(graph, r, x) for r, x in zip(zeros, turned, strict=True)]
        assert any(found) == is_promised, name


def test_row_to_search_is_sorted_in_every_round() -> None:
    case = next(c for c in cases([all_ops()["searchsorted"]]) if c.dtype is float32)
    rows = [r.inputs[0] for r in rounds_of(*case.make(), float32) if r.place == 0]
    assert any(np.isnan(np.asarray(row)[-1]) for row in rows)
    assert all(np.array_equal(row, np.sort(np.asarray(row)), equal_nan=True) for row in rows)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_own_form_loses_something_of_each_op_that_is_said_to(name: str) -> None:
    backend, found = REGISTRY.get(name), list(_said_to_lose(name))
    assert found
    outcomes = run_cases(backend, first_device(backend), found, OWN)
    said = {case.op.name for case in found}
    lost = {case.op.name for case, outcome in outcomes.items() if outcome.status == "failed"}
    assert lost == said - UNSHOWN


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_exact_form_loses_nothing_of_them(name: str) -> None:
    backend, found = REGISTRY.get(name), list(_said_to_lose(name))
    outcomes = run_cases(backend, first_device(backend), found)
    lost = [f"{c.id}: {o.reason}" for c, o in outcomes.items() if o.status == "failed"]
    assert not lost, "\n".join(lost)
