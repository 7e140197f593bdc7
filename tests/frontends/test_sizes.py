"""Sizes that the trace leaves open: given by name, or told only by the run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fusewire.contract.frontend import Limits, Spec
from fusewire.frontends.trace import TraceFrontend
from fusewire.ops.interpret import interpret
from tests.frontends.test_functions import assert_same


def made(x: Any) -> Any:
    n = x.shape[0]
    return (
        np.zeros((n, 2)),
        np.ones(n),
        np.full(x.shape, 3.0),
        np.zeros_like(x),
        np.eye(n),
        np.tri(n),
        np.identity(n),
        np.arange(n),
        np.arange(1, n + 1),
        np.arange(0, n, 2),
        np.arange(n, dtype="f4"),
        np.arange(n, 0, -1),
        np.linspace(0, 1, n),
        np.linspace(0, 1, n, endpoint=False),
    )


def numbers(x: Any) -> Any:
    n = x.shape[0]
    return (
        n,
        n / 2,
        x.size,
        math.prod(x.shape),
        n**2,
        x * n,
        x / n,
        np.sqrt(n),
        n * 1.5,
        n // 2 + 1,
        10 - n,
        1 / n,
        x.astype("f4") / n,
        x.astype("f4") * (1.0 / n),
        n % 3,
    )


def shapes(x: Any) -> Any:
    n = len(x)
    return (
        x.reshape(n, 1, 4),
        x.reshape(-1),
        x.reshape(2 * n, 2),
        x.T,
        x[:, None],
        np.expand_dims(x, 0),
        x.T.reshape(-1),
        np.concatenate([x, x]),
        np.stack([x, x]),
        np.vstack([x, x[:1]]),
        np.tile(x, (2, 1)),
        np.repeat(x, 2, axis=0),
        np.pad(x, ((1, 1), (0, 0))),
        np.flip(x, 0),
        np.roll(x, 1, axis=0),
        np.broadcast_to(x[0], (n, 4)),
        *np.split(x.reshape(-1), 2),
        np.diag(x[:, 0]),
    )


def slices(x: Any) -> Any:
    n = len(x)
    return (
        x[1:],
        x[:-1],
        x[::2],
        x[::-1],
        x[-1],
        x[0],
        x[1:-1],
        x[: n // 2],
        x[-2:],
        x[n - 1],
        x[1:] - x[:-1],
        np.diff(x, axis=0),
        x[np.arange(n), 1],
        x[:, [0, 2]],
    )


def computed(x: Any) -> Any:
    n = len(x)
    return (
        x.mean(0),
        x.std(axis=0),
        x.var(0, ddof=1),
        x.argmax(0),
        np.cumsum(x, 0),
        np.sort(x, 0),
        x @ x.T,
        np.einsum("ij,kj->ik", x, x),
        x.T @ x / n,
        np.tril(x @ x.T),
        np.triu(np.ones((n, n))),
        np.where(np.arange(n)[:, None] > 2, x, 0),
        np.fft.fft(x, axis=0, norm="ortho"),
        np.searchsorted(np.sort(x[:, 0]), 0.5),
        np.linalg.norm(x, axis=1),
    )


def assigned(x: Any) -> Any:
    y = np.zeros((x.shape[0] + 2, 4))
    y[1:-1] = x
    y[0] = x[0]
    y[::2] += 1
    y[:, 1] = 0
    return y


def masked(x: Any) -> Any:
    y = x[x > 0]
    n = len(y)
    z = np.zeros(n)
    z[:] = y
    z[::2] = -1
    places = np.arange(n) * 2
    return (
        y,
        z,
        places,
        y + places,
        y.reshape(-1, 1),
        np.stack([y, y]),
        y.mean(),
        np.ones((n, 3)),
        y[:, None] * y,
        np.where(y > 1, y, 0),
        np.sort(y),
        x[x[:, 0] > 0],
        n,
        np.full_like(y, 2),
        np.unique(np.floor(x)),
        np.isnan(places),
        np.nonzero(x > 0)[1],
    )


@pytest.mark.parametrize(
    "function",
    [made, numbers, shapes, slices, computed, assigned, masked],
    ids=lambda f: f.__name__,
)
def test_one_trace_serves_all_sizes(function: Any) -> None:
    reading = TraceFrontend().open(function, Limits()).convert([Spec(("n", 4), "float64")])
    for n in (4, 7):
        x = np.random.default_rng(n).standard_normal((n, 4))
        found = reading.results.restore(interpret(reading.graph, [x]))
        wanted = function(x.copy())
        if function in (numbers, masked):
            # Python's numbers among them are arrays when a program gives them.
            wanted = tuple(np.asarray(item) for item in wanted)
        assert_same(found, wanted)
