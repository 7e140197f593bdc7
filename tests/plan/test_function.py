"""The user's own function in place of a plan: the same containers and types, and fresh memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import fusewire as fw
from fusewire.errors import EngineError, EngineGarbage
from fusewire.plan.function import FunctionRunner
from fusewire.session.model_source import ModelSource

KEPT = np.arange(6.0).reshape(2, 3)


def made(function: Callable[..., Any], *arguments: Any) -> tuple[FunctionRunner, list[Any]]:
    reading = ModelSource(function).read(arguments)
    return FunctionRunner(reading), reading.arguments.flatten(arguments)


class Pair(NamedTuple):
    total: Any
    name: str


def keyword_only(x: Any, *, scale: float, shift: Any) -> Any:
    return x * scale + shift


def nested(pairs: dict[str, Any], power: int) -> Any:
    return {"a": Pair(pairs["x"].sum(), "sum"), "b": [pairs["y"][0] ** power, pairs["x"].shape[0]]}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: x + x, (KEPT,)),
        (lambda x: (x.T, x.mean()), (KEPT,)),
        (keyword_only, (KEPT, 2.0, np.float64(3))),
        (nested, ({"x": KEPT, "y": [KEPT]}, 2)),
        (lambda *x: x[0] + x[1], (KEPT, KEPT)),
    ],
)
def test_function_returns_what_its_program_returns(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    runner, inputs = made(function, *arguments)
    with fw.compile(function, *arguments, backend="reference") as program:
        expected = program.entry(arguments).run(arguments)
    results = runner.call(inputs)
    assert [type(x) for x in results] == [np.ndarray] * len(expected)
    for result, wanted in zip(results, expected, strict=True):
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(result, wanted)


def in_place(x: Any) -> Any:
    row = x[0]
    row += 1
    np.multiply(x, 2, out=x)
    return x


def test_caller_keeps_its_arrays() -> None:
    given = KEPT.copy()
    runner, inputs = made(in_place, given)
    (result,) = runner.call(inputs)
    np.testing.assert_array_equal(given, KEPT)
    np.testing.assert_array_equal(result, in_place(KEPT.copy()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x[:, ::-1],
        lambda x: x.reshape(-1),
        lambda x: KEPT,
        lambda x: (x * 2,) * 2,
        lambda x: (lambda y: (y, y.T))(x + 1),
        lambda x: np.broadcast_to((x + 1)[0], x.shape),
        lambda x: (x + 1)[0],
    ],
    ids=["argument", "view", "reshaped", "global", "twice", "transposed", "broadcast", "part"],
)
def test_results_are_fresh(function: Callable[..., Any]) -> None:
    given = KEPT.copy()
    runner, inputs = made(function, given)
    results = runner.call(inputs)
    others = [given, KEPT]
    for result in results:
        assert result.flags.writeable
        assert not any(np.shares_memory(result, other) for other in others)
        base = result if result.base is None else result.base
        assert base.nbytes == result.nbytes
        others.append(result)


def test_fresh_result_is_not_copied() -> None:
    seen = []

    def function(x: Any) -> Any:
        y = x + 1
        seen.append(id(y))
        return y

    runner, inputs = made(function, KEPT)
    (result,) = runner.call(inputs)
    assert id(result) == seen[-1]


def test_cached_result_is_copied() -> None:
    cache: dict[str, Any] = {}

    def function(x: Any) -> Any:
        return cache.setdefault("y", np.ones(3)) if type(x) is np.ndarray else np.ones(3) + 0 * x[0]

    runner, inputs = made(function, KEPT)
    first, second = runner.call(inputs)[0], runner.call(inputs)[0]
    assert not np.shares_memory(first, second)


def test_function_that_writes_to_captured_arrays_is_refused() -> None:
    captured = np.zeros(3)

    def function(x: Any) -> Any:
        captured[0] += 1
        return captured + x

    with pytest.raises(EngineGarbage, match="not its arguments"):
        made(function, np.ones(3))
    assert not captured.any()


def test_function_that_differs_from_its_trace_is_refused() -> None:
    def function(x: Any) -> Any:
        return x[:1] if type(x) is np.ndarray else x

    runner, inputs = made(function, np.ones(3))
    with pytest.raises(EngineGarbage, match=r"float64\[1\] where its trace has float64\[3\]"):
        runner.call(inputs)


def test_what_a_first_run_raises_is_an_engine_error() -> None:
    def raises(x: Any) -> Any:
        if type(x) is np.ndarray:
            raise ZeroDivisionError("planted")
        return x

    runner, inputs = made(raises, np.ones(3))
    with pytest.raises(EngineError, match=r"your function failed.*planted"):
        runner.attempt(inputs)
