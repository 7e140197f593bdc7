"""Errors are relative to what an element was made from, not to its neighbours."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewire import ops
from fusewire.dtypes import float32
from fusewire.ir.builder import constant
from fusewire.ir.graph import Array, Graph, Value
from fusewire.ir.types import TensorType
from fusewire.numerics.noise import Noise
from fusewire.numerics.oracle import Oracle
from fusewire.numerics.scale import Scales
from fusewire.ops.interpret import Interpreter, interpret

F32 = np.float32


def made(shape: tuple[int, ...], make: Callable[[Value], Any]) -> Graph:
    x = Value(TensorType(float32, shape), "x")
    return Graph([x], [make(x)])


def drawn(*shape: int) -> Array:
    return np.random.default_rng(4).normal(size=shape).astype(F32)


def log_power(y: Any) -> Any:
    return ops.log(ops.maximum(ops.square(y), F32(1e-20)))


def products(x: Value) -> Any:
    return ops.matmul(x, constant(drawn(64, 32)))


def spectrum(x: Value) -> Any:
    found = ops.rfft(x)
    return ops.add(ops.square(ops.real(found)), F32(1e-20))


QUIET: dict[str, Callable[[Value], Any]] = {
    "products": lambda x: log_power(products(x)),
    "transform": lambda x: ops.log(spectrum(x)),
    "root of squares": lambda x: ops.sqrt(ops.reduce_sum(ops.square(x), axes=(1,))),
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
@pytest.mark.parametrize("level", [0.0, 1e-6])
def test_quiet_row_beside_loud_ones_keeps_its_digits(
    make: Callable[[Value], Any], level: float
) -> None:
    graph, x = made((40, 64), make), drawn(40, 64)
    x[7:20] *= F32(level)
    oracle = Oracle(graph, [x])
    (got,) = interpret(graph, [x])
    verdict = oracle.judge([got])
    assert (verdict.status, verdict.jumps) == ("right", 0), verdict.reason
    assert verdict.unjudged < 0.02
    off = got.copy()
    off[9] += F32(0.01)
    assert oracle.judge([off]).status == "wrong"


def test_sum_whose_terms_cancel_is_moved_by_their_size() -> None:
    graph = made((2, 64), lambda x: ops.reduce_sum(x, axes=(1,)))
    x = drawn(2, 64)
    x[0, 32:] = -x[0, :32]
    scales = Scales(graph)
    Interpreter(graph, wide=True, before=scales.learn)([x])
    noise = Noise(0, scales)
    noisy = Interpreter(graph, observe=noise.observe)
    found = []
    for run in range(20):
        noise.start(run)
        found.append(noisy([x])[0])
    spread = np.std(found, axis=0) / float32.eps
    size = np.sqrt(np.sum(x * x, axis=1))
    assert np.all((0.2 * size < spread) & (spread < 2 * size))


def test_large_tensors_are_moved_as_small_ones_are() -> None:
    noise = Noise(0, Scales(made((1,), ops.exp)))
    for size in (100, 300_000):
        x = np.full(size, 1.5, F32)
        places = (noise.moved(x, float32) - x) / np.spacing(F32(1.5))
        assert set(np.unique(places)) == {-1.0, 0.0, 1.0}
        assert 0.2 < np.mean(places != 0) < 0.4
        walked = np.abs(noise.moved(x, float32, 8.0, 3.0) - x) / F32(3 * float32.eps)
        assert 6 < walked.max() < 9
    special = np.array([np.nan, np.inf, -np.inf, 0.0], F32)
    assert np.array_equal(noise.moved(special, float32, 4.0), special, equal_nan=True)
