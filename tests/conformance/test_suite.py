"""The suite itself: what is wrong is found, gaps are known and strict, fallback helps."""

from collections.abc import Iterator, Sequence

import pytest

from fusewire.contract.backend import Backend, Gap
from fusewire.contract.region import first_device
from fusewire.ops.elementwise import add
from fusewire.ops.table import all_ops
from fusewire.registry import REGISTRY
from fusewire.testing.conformance import Case, cases, first_cases
from fusewire.testing.fallback import reports_with_fallback
from fusewire.testing.suite import OpReport, reports
from tests import toy


def _report(*names: str, gaps: Sequence[Gap] = ()) -> tuple[dict[str, OpReport], list[str]]:
    found = [case for name in names for case in cases([all_ops()[name]])]
    backend = toy.wrong_sine(gaps=gaps)
    rows, problems = reports(backend, first_device(backend), found)
    return {row.op.name: row for row in rows}, problems


def test_wrong_op_fails_and_its_neighbours_pass() -> None:
    rows, problems = _report("sin", "cos", "softmax", "sort")
    statuses = {name: row.status for name, row in rows.items()}
    assert statuses == {"sin": "failed", "cos": "proven", "softmax": "proven", "sort": "refused"}
    assert rows["softmax"].form == "expanded"
    assert "wrong-sine does not run sort." in rows["sort"].reason
    assert all("wrong-sine on sin-" in problem for problem in problems)
    assert len(problems) >= 4


def test_op_that_loses_nan_fails_though_its_samples_are_right() -> None:
    rows, problems = _report("maximum", "minimum")
    assert {name: row.status for name, row in rows.items()} == {
        "maximum": "failed",
        "minimum": "proven",
    }
    assert all("with nan at" in problem and "of operand 0" in problem for problem in problems)
    assert {case.dtype.name for case, x in rows["maximum"].results.items() if x.reason} == {
        "float16",
        "float32",
        "float64",
    }


def test_known_gap_is_counted_and_is_no_problem() -> None:
    rows, problems = _report("sin", gaps=[Gap("sin", "todo", "It is a cosine.")])
    assert not problems
    assert rows["sin"].status == "gap"
    assert "It is a cosine. (todo)" in rows["sin"].reason


def test_gap_that_passes_fails_the_suite() -> None:
    _, problems = _report("cos", gaps=[Gap("cos", "todo", "It is a sine.")])
    assert problems == ["wrong-sine has a gap for cos that passes: delete it"]


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [("add", "float32"), ("where", "bool float32"), ("cast", "float32 int8")],
)
def test_case_is_about_every_dtype_it_names(name: str, dtypes: str) -> None:
    assert dtypes in {case.dtypes for case in cases([all_ops()[name]])}


def test_cases_over_strings_are_not_asked_of_engines() -> None:
    over = {case.op.name for case in cases() if not case.is_numeric}
    assert {"where", "cast", "pad"} <= over
    assert not any(case.is_numeric for case in cases([all_ops()["string_concat"]]))
    assert all(case.is_numeric for case in cases([add]))


def _with_fallback(backend: Backend, found: Sequence[Case]) -> tuple[list[OpReport], list[str]]:
    return reports_with_fallback(backend, first_device(backend), found)


def test_with_fallback_everything_is_right() -> None:
    ops = [all_ops()[name] for name in ("svd", "softmax", "gelu", "sequence_at", "nonzero", "gru")]
    found = [case for op in ops for case in first_cases(op)]
    rows, problems = _with_fallback(REGISTRY.get("onnxruntime"), found)
    assert not problems
    assert {row.status for row in rows} == {"proven"}
    forms = {row.op.name: row.form for row in rows}
    assert forms["svd"] == forms["sequence_at"] == "helped"
    assert forms["softmax"] == "native"


@pytest.fixture
def wrong_sine() -> Iterator[Backend]:
    name = REGISTRY.register("tests.toy:wrong_sine")
    yield REGISTRY.get(name)
    REGISTRY.unregister(name)


def test_fallback_does_not_hide_a_wrong_answer(wrong_sine: Backend) -> None:
    found = [case for name in ("sin", "sort") for case in first_cases(all_ops()[name])]
    rows, problems = _with_fallback(wrong_sine, found)
    assert {row.op.name: row.status for row in rows} == {"sin": "failed", "sort": "proven"}
    assert all("wrong-sine on sin-" in problem for problem in problems)
