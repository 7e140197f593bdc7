"""Branches and loops written with Python functions in traced code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusewire.ops as ops
from fusewire import ops as same_ops
from fusewire.contract.frontend import Spec
from fusewire.errors import TraceError
from fusewire.frontends.trace import TraceFrontend
from fusewire.ops import softmax
from fusewire.ops.interpret import interpret


def run(function: Any, *arrays: Any) -> Any:
    return interpret(TraceFrontend().read(function, arrays), arrays)


def test_branch_of_python_functions() -> None:
    def function(x: Any) -> Any:
        return ops.cond(x.sum() > 0, x, then=lambda y: y * 2, otherwise=lambda y: np.zeros(3) - y)

    for sign in (1.0, -1.0):
        x = sign * np.arange(3.0)
        np.testing.assert_array_equal(run(function, x)[0], x * 2 if sign > 0 else -x)


def test_bodies_capture_what_is_around_them() -> None:
    scale = np.array([1.0, 2.0, 3.0])

    def function(x: Any, w: Any) -> Any:
        y = x @ w
        return ops.cond(
            (x > 1).any(),
            then=lambda: {"a": y + 1, "b": y.shape[0] * x},
            otherwise=lambda: {"a": y * scale, "b": x},
        )

    for x in (np.ones((2, 2)), np.full((2, 2), 3.0)):
        w = np.arange(6.0).reshape(2, 3)
        found = run(function, x, w)
        high = x[0, 0] > 1
        np.testing.assert_array_equal(found[0], x @ w + 1 if high else (x @ w) * scale)
        np.testing.assert_array_equal(found[1], 2 * x if high else x)


def test_loop_until_a_condition_fails() -> None:
    def newton(a: Any, tolerance: float = 1e-12) -> Any:
        def wrong(x: Any, steps: Any) -> Any:
            return np.abs(x * x - a).max() > tolerance

        def better(x: Any, steps: Any) -> Any:
            return (x + a / x) / 2, steps + 1

        return ops.while_(np.ones_like(a), np.zeros((), np.int64), condition=wrong, body=better)

    a = np.array([2.0, 9.0, 1e4])
    root, steps = run(newton, a)
    np.testing.assert_allclose(root, np.sqrt(a), rtol=1e-12)
    assert 5 < steps < 20


def test_scan_over_rows_of_an_open_axis() -> None:
    def average(xs: Any, rate: Any) -> Any:
        def step(mean: Any, x: Any) -> Any:
            mean = mean + rate * (x - mean)
            return mean, mean

        _, means = same_ops.scan(xs[0], xs, body=step, carries=1, scans=1)
        return means

    graph = TraceFrontend().read(average, [Spec(("n", 2), "float64"), np.array(0.5)])
    for n in (3, 6):
        xs = np.arange(2.0 * n).reshape(n, 2) ** 2
        mean, wanted = xs[0], []
        for x in xs:
            mean = mean + 0.5 * (x - mean)
            wanted.append(mean)
        np.testing.assert_allclose(interpret(graph, [xs, np.array(0.5)])[0], wanted)


def test_nested_loops() -> None:
    def function(x: Any) -> Any:
        def inner(i: Any, total: Any) -> Any:
            return i + 1, total + ops.cond(i > 1, x, then=lambda y: y, otherwise=lambda y: -y)

        def outer(k: Any, total: Any) -> Any:
            zero = np.zeros((), np.int64)
            _, total = ops.while_(zero, total, condition=lambda i, t: i < 4, body=inner)
            return k + 1, total

        start = np.zeros((), np.int64), np.zeros(2)
        return ops.while_(*start, condition=lambda k, t: k < 3, body=outer)[1]

    x = np.array([1.0, 5.0])
    wanted = np.zeros(2)
    for _ in range(3):
        for i in range(4):
            wanted += x if i > 1 else -x
    np.testing.assert_array_equal(run(function, x)[0], wanted)


def test_a_body_may_assign_to_its_own_arrays_only() -> None:
    def own(x: Any) -> Any:
        def body(y: Any) -> Any:
            y[0] = 9
            return y

        return ops.cond(x[0] > 0, x, then=body, otherwise=lambda y: y)

    np.testing.assert_array_equal(run(own, np.ones(2))[0], [9, 1])

    def foreign(x: Any) -> Any:
        def body() -> Any:
            x[0] = 9
            return x

        return ops.cond(x[0] > 0, then=body, otherwise=lambda: x)

    with pytest.raises(TraceError, match="assigns to an array from outside"):
        run(foreign, np.ones(2))


def test_branches_of_other_lengths() -> None:
    def function(x: Any) -> Any:
        return ops.cond(x[0] > 0, x, then=lambda y: y[y > 1], otherwise=lambda y: y[:1])

    np.testing.assert_array_equal(run(function, np.array([1.0, 2, 3]))[0], [2, 3])
    np.testing.assert_array_equal(run(function, np.array([-1.0, 2, 3]))[0], [-1])


def test_ops_by_name() -> None:
    def function(x: Any, key: Any) -> Any:
        n = x.shape[0]
        noise = ops.random_normal(key, shape=(n, 4), dtype=x.dtype)
        counted = ops.iota(shape=(n, 4), axis=0)
        flat = ops.reshape(x, shape=(n * 2, 2))
        return softmax(x + noise, axis=-1), counted * 2, flat, ops.add(n, x)

    graph = TraceFrontend().read(function, [Spec(("n", 4)), np.zeros(2, np.uint32)])
    for n in (2, 3):
        x = np.ones((n, 4), np.float32)
        soft, counted, flat, more = interpret(graph, [x, np.array([1, 2], np.uint32)])
        np.testing.assert_allclose(soft.sum(-1), np.ones(n), rtol=1e-6)
        np.testing.assert_array_equal(counted[:, 0], 2 * np.arange(n))
        assert flat.shape == (2 * n, 2)
        assert more.shape == (n, 4)
