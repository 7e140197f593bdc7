"""Whose an output is: the caller's alone, on every engine, whatever is called later."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusewire as fw
from fusewire import ops
from fusewire.dtypes import int64
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.ops.control import while_
from fusewire.ops.subgraph import subgraph

ENGINES = ("reference", "xla", "onnxruntime", "openvino", "webgpu")
ONES = np.ones((3, 4), np.float32)

# A function by element, so that every engine takes it, and the shape and dtype of its input.
CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], Any]] = {
    "small": (lambda x: (x + x,), (3, 4), np.float32),
    "large": (lambda x: (x + x,), (64, 257), np.float32),
    "scalar": (lambda x: (x + x,), (), np.float32),
    "several": (lambda x: (x + x, x * x, x - ONES), (3, 4), np.float32),
    "same twice": (lambda x: (x + x,) * 2, (3, 4), np.float32),
    "input": (lambda x: (x, x + x, x), (3, 4), np.float32),
    "views": (lambda x: (x.reshape(12), (x + x).reshape(2, 6)), (3, 4), np.float32),
    "constant": (lambda x: (x + x, ONES * 2), (3, 4), np.float32),
    "bfloat16": (lambda x: (x + x,), (3, 4), ml_dtypes.bfloat16),
    "bool": (lambda x: (~x, x), (3, 4), np.bool_),
    "int64": (lambda x: (x + x,), (3, 4), np.int64),
}


def given(shape: tuple[int, ...], of: Any, seed: int) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(0, 9, shape)).astype(of)


def check(program: Any, function: Any, inputs: list[Array]) -> None:
    """Hold what calls give: no other call changes it, and changing it changes nothing else."""
    before = [x.copy() for x in inputs]
    calls = [program(x) for x in inputs]
    for outputs, x in zip(calls, before, strict=True):
        for output, expected in zip(outputs, function(x), strict=True):
            np.testing.assert_array_equal(output, expected)
            assert output.dtype == expected.dtype
    for left, right in combinations([*inputs, *(x for outputs in calls for x in outputs)], 2):
        assert not np.shares_memory(left, right)
    for outputs in calls:
        for output in outputs:
            output[...] = 0
    for x, same in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(x, same)
        for output, expected in zip(program(x), function(x), strict=True):
            np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_are_never_written_by_a_later_call(engine: str, case: str) -> None:
    function, shape, of = CASES[case]
    example = given(shape, of, 0)
    program = fw.compile(function, example, backend=engine, fallback="error", isolate=False)
    check(program, function, [given(shape, of, seed) for seed in range(4)])


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_of_other_sizes_are_never_written_by_a_later_call(engine: str) -> None:
    def function(x: Any) -> Any:
        return x + x, x - 1

    sizes = (5, 9000, 3, 9000, 5)
    spec = fw.Spec(("n", 2), "float32")
    program = fw.compile(function, spec, backend=engine, fallback="error", isolate=False)
    check(program, function, [given((n, 2), np.float32, seed) for seed, n in enumerate(sizes)])


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_that_went_over_a_boundary_are_the_callers(engine: str) -> None:
    # A sort is left to the reference by some, and not by others: both ways the answer is the same.
    def function(x: Any) -> Any:
        doubled = x + x
        return doubled, np.sort(doubled, axis=0) * 2, x

    example = given((40, 300), np.float32, 0)
    program = fw.compile(function, example, backend=engine, fallback="allow", isolate=False)
    check(program, function, [given((40, 300), np.float32, seed) for seed in range(3)])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["read-only", "strided", "reversed", "unaligned"])
def test_any_array_may_go_in(engine: str, kind: str) -> None:
    whole = given((64, 600), np.float32, 1)
    x = {
        "read-only": whole[:, :300].copy(),
        "strided": whole[:, ::2],
        "reversed": whole[::-1, 300:],
        "unaligned": np.frombuffer(b"\0" + whole.tobytes(), np.float32, 64 * 300, 1),
    }[kind].reshape(64, 300)
    x.flags.writeable = kind != "read-only" and x.flags.writeable
    program = fw.compile(lambda x: x + x, x, backend=engine, fallback="error", isolate=False)
    for _ in range(2):
        np.testing.assert_array_equal(program(x), x + x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [2, "n"])
def test_what_becomes_an_array_may_go_in(engine: str, size: int | str) -> None:
    spec = fw.Spec((size,), "int64")
    program = fw.compile(lambda x: x + x, spec, backend=engine, fallback="allow", isolate=False)
    for x in ([1, 2], np.array([1, 2], ">i8"), np.array([1, 2])):
        for _ in range(2):
            np.testing.assert_array_equal(program(x), [2, 4])
    assert len(program.signatures) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_loop_that_never_runs_returns_no_memory_of_the_caller(engine: str) -> None:
    of, count = TensorType(int64, (2,)), TensorType(int64, ())
    condition = subgraph(lambda x, i, n: [ops.less(i, n)], of, count, count)
    body = subgraph(lambda x, i, n: [ops.add(x, 1), ops.add(i, 1)], of, count, count)
    x, n = Value(of, "x"), Value(count, "n")
    outputs = while_(x, np.array(0), n, condition=condition, body=body, carries=2)
    program = fw.compile(
        Graph([x, n], [outputs[0]]), backend=engine, fallback="allow", isolate=False, cache=False
    )
    taken = np.array([1, 2])
    answer = program(taken, np.array(0))
    assert answer.tolist() == [1, 2]
    assert not np.shares_memory(answer, taken)
