"""Ctrl-C, and errors of the user's own code, leave a program that answers its next call.

Of submitted calls, and of calls with a state, other files of this folder have that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import FallbackWarning
from tests.program.states import PATIENCE, Source, X, engines, in_state

ERRORS = [KeyboardInterrupt, SystemExit, ZeroDivisionError]


@pytest.mark.parametrize("error", ERRORS)
def test_first_call_that_is_interrupted_while_it_is_read_is_made_again(
    error: type[BaseException],
) -> None:
    raised: list[int] = []

    def function(x: Any) -> Any:
        if not raised:
            raised.append(1)
            raise error
        return np.tanh(x) * 3

    with fw.compile(function, registry=engines(), isolate="never", level=0) as program:
        with pytest.raises(error):
            program(X)
        assert program.signatures == []
        np.testing.assert_allclose(program(X), np.tanh(X) * 3, rtol=1e-5)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("state", ["serving", "waiting"])
def test_call_of_the_function_that_is_interrupted_is_over(
    state: str, error: type[BaseException], tmp_path: Path
) -> None:
    def interrupt() -> None:
        raise error

    source = Source("function", tmp_path)
    with in_state(state, source) as case:
        source.during.append(interrupt)
        for _ in range(3):
            with pytest.raises(error):
                case.program(X)
        source.during.clear()
        case.call()
        assert case.program.state == "comparing"


@pytest.mark.usefixtures("store")
def test_search_goes_on_behind_calls_that_were_interrupted(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    source, registry = Source("function", tmp_path), engines()
    program = source.compiled(X, registry=registry)
    source.decide(registry)
    source.during.append(interrupt)
    with pytest.raises(KeyboardInterrupt):
        program(X)
    source.during.clear()
    np.testing.assert_allclose(program(X), source.expected, rtol=1e-5)
    # Its function takes turns between calls: a call that never ended would leave it none.
    assert program.wait(PATIENCE)
    assert not any("left no moment" in note for note in program.why().notes)
    program.close()


def test_warning_that_is_an_error_leaves_no_state_that_lies() -> None:
    registry = engines(flaky="tests.flaky:split")
    options: dict[str, Any] = {"backend": "flaky", "level": 0, "isolate": "never"}
    program = fw.compile(
        lambda x: np.tanh(np.cos(x)), registry=registry, fallback="warn", **options
    )
    # It takes no cosine, and warnings are errors here.
    for _ in range(2):
        with pytest.raises(FallbackWarning):
            program(X)
        assert program.signatures == []
    with pytest.warns(FallbackWarning):
        answer = program(X)
    np.testing.assert_allclose(answer, np.tanh(np.cos(X)), rtol=1e-5)
    # The next call has an entry, and says nothing.
    np.testing.assert_allclose(program(X), np.tanh(np.cos(X)), rtol=1e-5)
    program.close()
