"""The forms in which a program of one argument, ``x``, is called; each returns the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import ReleasedError
from tests.program.states import X


def named(program: Any) -> Any:
    return program(x=X)


def written(program: Any) -> Any:
    # New memory may hold an answer of before.
    out = np.full_like(X, np.nan)
    assert program(X, out=out) is out
    return out


def donated(program: Any) -> Any:
    x = fw.asarray(X.copy())
    found = program(x, donate="x")
    assert isinstance(found, fw.Buffer)
    with pytest.raises(ReleasedError):
        x.numpy()
    return found.numpy()


def on_device(program: Any) -> Any:
    found = program(X, outputs="device")
    assert isinstance(found, fw.Buffer)
    return found.numpy()


def with_buffer(program: Any) -> Any:
    found = program(fw.asarray(X.copy()))
    assert isinstance(found, fw.Buffer)
    return found.numpy()


def replacing(program: Any) -> Any:
    """Have the result replace a state, whose memory is that of before."""
    state = fw.state(X.copy(), output=0)
    assert program(state) is state
    return state.numpy()


FORMS: list[Callable[[Any], Any]] = [named, written, donated, on_device, with_buffer, replacing]
