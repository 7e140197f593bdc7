"""Fair verdicts on whole graphs: certain faults are wrong, small ones doubtful."""

from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.numerics.oracle import Oracle
from fusewire.ops.interpret import Interpreter

F32 = np.float32
X = np.random.default_rng(1).normal(size=(16, 24)).astype(F32)
WEIGHTS = np.random.default_rng(2).normal(size=(24, 12)).astype(F32) / 5
GRAPH = fw.trace(lambda x: np.tanh(x @ WEIGHTS), X)
(RIGHT,) = Interpreter(GRAPH)([X])


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(GRAPH, [X])


def moved(oracle: Oracle, tolerances: float, place: Any = (3, 4)) -> Any:
    """Move elements of the exact answer by so many tolerances."""
    answer = oracle.outputs[0].copy()
    answer[place] += tolerances * oracle.tolerance[0][place]
    return answer.astype(F32)


@pytest.mark.parametrize(
    ("tolerances", "status"), [(0.1, "right"), (2, "doubtful"), (9, "doubtful"), (11, "wrong")]
)
def test_margin_decides_between_doubtful_and_wrong(
    oracle: Oracle, tolerances: float, status: str
) -> None:
    verdict = oracle.verdict([moved(oracle, tolerances)])
    assert verdict.status == status
    assert (verdict.status == "right") == (oracle.judge([moved(oracle, tolerances)]).error <= 1)
    if status == "doubtful":
        assert verdict.off == 1
        assert "It may be rounding: less than 10 times the tolerance." in verdict.reason


def test_norm_alone_is_doubtful_and_is_named(oracle: Oracle) -> None:
    verdict = oracle.verdict([moved(oracle, 0.9, ...)])
    assert (verdict.status, verdict.off) == ("doubtful", 0)
    assert verdict.reason.startswith("the root-mean-square error over ")
    assert "It may be rounding: no element is off." in verdict.reason


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_class_that_the_oracle_does_not_have_is_wrong(oracle: Oracle, odd: float) -> None:
    got = RIGHT.copy()
    got[0, 0] = odd
    assert oracle.verdict([got]).status == "wrong"


@pytest.mark.parametrize("change", [lambda y: y[:-1], lambda y: y.astype(np.float64)])
def test_shape_and_dtype_that_the_oracle_does_not_have_are_wrong(
    oracle: Oracle, change: Any
) -> None:
    assert oracle.verdict([change(RIGHT)]).status == "wrong"


def test_integers_are_exact_at_any_margin() -> None:
    graph = fw.trace(lambda x: np.argmax(x, axis=1), X)
    (places,) = Interpreter(graph)([X])
    off = places.copy()
    off[0] += 1
    assert Oracle(graph, [X]).verdict([off]).status == "wrong"


def test_reference_that_fails_the_tolerance_makes_it_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    # Slices are judged as if runs with noise had shown far less than rounding does.
    monkeypatch.setattr("fusewire.numerics.spread.SLICES", 0.0)
    weights = np.random.default_rng(3).normal(size=(24, 24)).astype(F32)
    graph = fw.trace(lambda x: x @ weights @ weights @ weights @ weights, X)
    narrow, (right,) = Oracle(graph, [X]), Interpreter(graph)([X])
    own = narrow.judge([right])
    assert own.status == "wrong"
    assert own.error > 1
    verdict = narrow.verdict([right])
    assert verdict.status == "cannot say"
    assert "the NumPy reference is off by" in verdict.reason
    # Narrow as it is, what is far off is still wrong, and what is exact is right.
    assert narrow.verdict([moved(narrow, 100 * own.error)]).status == "wrong"
    assert narrow.verdict([moved(narrow, 4 * own.error)]).status == "doubtful"
    assert narrow.verdict([narrow.outputs[0].astype(F32)]).status == "right"
