"""One hint per cause: what a refusal says, and what it leaves out."""

from __future__ import annotations

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
    assert len(str(caught.value)) < 200
