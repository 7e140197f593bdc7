"""One hint per cause: what a refusal says, and what it leaves out."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import ShapeMismatchError, TraceError

X = np.ones((2, 3), np.float32)


def test_float_of_an_array_gets_one_hint() -> None:
    with pytest.raises(TraceError, match=r"Keep it an array") as caught:
        fw.trace(lambda x: float(x) * 2, X)
    assert "made outside" not in str(caught.value)


def test_cause_is_not_followed_by_a_guess() -> None:
    with pytest.raises(TraceError, match=r"lstsq cannot be traced. Use np.linalg.pinv") as caught:
        fw.trace(lambda x: np.polyfit(x[0], x[1], 1), X)
    assert "np.split" not in str(caught.value)


def test_ufunc_of_another_library_names_the_op() -> None:
    special = pytest.importorskip("scipy.special", reason="SciPy is not installed")
    with pytest.raises(TraceError, match=r"Use fusewire.ops.erf"):
        fw.trace(lambda x: special.erf(x), X)


def test_list_that_does_not_fit_is_described_not_printed() -> None:
    program = fw.compile(lambda x: x + 1, np.ones((8, 8), np.float32), backend="reference")
    with pytest.raises(ShapeMismatchError, match=r"found a list of int64\[8, 8\]") as caught:
        program([[1] * 8] * 8)
    assert 'np.asarray(x, "float32")' in str(caught.value)
    assert len(str(caught.value)) < 200


def test_clock_that_becomes_a_constant_is_a_warning_at_its_line() -> None:
    def late(x: Any) -> Any:
        return x + time.time()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fw.trace(late, X)
    (warning,) = caught
    assert "time.time() is read once" in str(warning.message)
    assert Path(warning.filename) == Path(__file__)


def test_engine_that_takes_no_node_is_not_named_without_measuring() -> None:
    square = X[:, :2]
    program = fw.compile(lambda x: np.linalg.svd(x)[1], square, level=0, fallback="allow")
    why = program.why()
    assert why.backend in why.counts()["data"]
    program.close()
