"""The canary beside what a call writes to: states, and memory of the caller's.

tests/choosing/test_canary.py has what it does about a wrong answer of a plain call.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import MiscompileWarning
from tests.program.forms import FORMS, Call, Compile, cache_after
from tests.program.states import engines

# Its second answer is wrong, and the first and all others are right.
WRONG = "fusewire.testing.chaos:second_at_run"


def watched(backend: str, registry: fw.Registry) -> Compile:
    """Compile for an engine whose every call is checked."""
    options: dict[str, Any] = {"level": 0, "isolate": "never", "canary": 1, "cache": False}
    return partial(fw.compile, backend=backend, registry=registry, **options)


@pytest.mark.parametrize("form", FORMS)
def test_right_engine_raises_no_alarm(form: Any) -> None:
    call: Call = form(watched("onnxruntime", fw.Registry()))
    for step in range(4):
        np.testing.assert_array_equal(call(step), cache_after(step + 1))


@pytest.mark.parametrize("form", FORMS)
def test_wrong_answer_is_repeated_before_it_is_written(form: Any) -> None:
    call: Call = form(watched("chaos", engines(chaos=WRONG)))
    np.testing.assert_array_equal(call(0), cache_after(1))
    with pytest.warns(MiscompileWarning):
        found = call(1)
    np.testing.assert_array_equal(found, cache_after(2))
    for step in (2, 3):
        np.testing.assert_array_equal(call(step), cache_after(step + 1))
