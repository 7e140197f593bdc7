"""Engines that fail after they wrote half, or write elsewhere than they were asked to.

Engines that fail before they write, and that never write, have tests beside these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from tests.flaky import compiled, registered
from tests.halfway import KINDS, HalfwayExecutable
from tests.program.forms import FORMS, Call, cache_after
from tests.program.states import X, engines


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_what_a_call_replaces_is_right_whatever_was_written(form: Any, kind: str) -> None:
    registry = engines(halfway=f"tests.halfway:{kind}")
    options: dict[str, Any] = {"level": 0, "isolate": "never", "fallback": "allow"}
    call: Call = form(partial(fw.compile, registry=registry, backend="halfway", **options))
    for step in range(5):
        np.testing.assert_array_equal(call(step), cache_after(step + 1))


def test_calls_after_a_failure_write_where_they_are_asked_to() -> None:
    registry = engines(halfway="tests.halfway:half")
    options: dict[str, Any] = {"level": 0, "isolate": "never", "fallback": "allow"}
    program = fw.compile(lambda x: np.exp(x), X, registry=registry, backend="halfway", **options)
    out, before = np.empty_like(X), HalfwayExecutable.offered
    # The second call fails half-way, and those after it are counted.
    for turn in range(4):
        assert program.run(X + turn, out=out).outputs is out
        np.testing.assert_allclose(out, np.exp(X + turn), rtol=1e-6)
    assert HalfwayExecutable.offered == before + 4


@pytest.mark.parametrize(("kind", "phase"), [("single", "wait"), ("device", "read")])
def test_run_whose_end_fails_within_a_profile_is_repeated(kind: str, phase: str) -> None:
    with registered(kind) as trouble:
        program = compiled(lambda x: np.exp(x) * 2, X)
        program(X)
        with fw.profile() as profile:
            trouble.fail(phase, 1)
            for _ in range(3):
                np.testing.assert_allclose(program(X), np.exp(X) * 2, rtol=1e-5)
            trouble.heal()
        assert [event.kind for event in profile.events].count("call") == 3
        program.close()
        assert (trouble.opened, trouble.live_buffers()) == (0, 0)
