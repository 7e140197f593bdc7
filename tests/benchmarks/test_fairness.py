"""The campaigns of fair verdicts, in small: who is right is decided apart from the judge."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import fairness, killed_children
from benchmarks.fairness import FAMILIES, blamed, inputs_of, is_right, summary

F32 = np.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_keep_shape_dtype_and_the_range_of_integers(family: str) -> None:
    rng = np.random.default_rng(0)
    given: list[Any] = [
        rng.standard_normal((4, 50)).astype(F32),
        rng.integers(3, 90, (1, 60)),
        np.array(16000),
        rng.standard_normal(9).astype(np.float16),
    ]
    made = inputs_of(given, family)
    for before, after in zip(given, made, strict=True):
        assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert np.isfinite(after).all()
    assert given[1].min() <= made[1].min() <= made[1].max() <= given[1].max()
    assert made[2] == 16000
    assert family == "given" or not np.array_equal(made[0], given[0])


@pytest.mark.parametrize(
    ("off", "right"), [(0.0, True), (9.0, True), (11.0, False), (np.nan, False), (np.inf, False)]
)
def test_right_is_ten_times_the_error_of_numpy(off: float, right: bool) -> None:
    wide = np.linspace(1, 2, 7)
    own = (wide + 1e-4).astype(F32)
    got = (wide + off * 1e-4).astype(F32)
    assert is_right(got, own, wide)[0] == right
    assert is_right(got[:3], own, wide) == (False, np.inf)


def test_integers_may_differ_ten_times_as_often() -> None:
    wide = np.arange(100)
    own, few, many = wide.copy(), wide.copy(), wide.copy()
    own[:1], few[:10], many[:11] = -1, -1, -1
    assert [is_right(x, own, wide)[0] for x in (wide, few, many)] == [True, True, False]
    assert not is_right(own, wide, wide)[0]


def test_right_engine_that_is_called_wrong_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWIRE_FAIRNESS", str(tmp_path))
    row: dict[str, Any] = {"status": "wrong", "before": "wrong", "times": 2.0, "reason": "odd"}
    found = {"zeros": {"xla": {**row, "right": True}, "openvino": {**row, "right": False}}}
    fairness.kept("mnist", is_race=False).write_text(json.dumps(found))
    args = argparse.Namespace(race=0.0, families=list(FAMILIES))
    assert blamed(["mnist"], args) == ["xla on mnist, zeros: 2 times NumPy's error; odd"]
    assert summary(["mnist"], args) == {
        "not right: wrong": 1,
        "right: wrong": 1,
        "right: wrong before": 1,
    }


def test_children_that_are_killed_put_nobody_into_quarantine() -> None:
    found = killed_children.measure(4, seed=1, engines=["onnxruntime", "reference"])
    assert (found["killed"], found["quarantined"], found["problems"]) == (4, 0, [])
