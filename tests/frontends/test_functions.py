"""Functions of tests/frontends/functions.py, traced as they are, give what NumPy gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusewire.contract.frontend import Limits, Spec
from fusewire.frontends.trace import TraceFrontend
from fusewire.ops.interpret import interpret
from tests.frontends import functions

F: Any = functions  # without types
RNG = np.random.default_rng(7)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def f64(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def ints(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape)


def symmetric(n: int) -> Any:
    a = f64(n, n)
    return a @ a.T + n * np.eye(n)


def boxes(n: int) -> Any:
    low = RNG.uniform(0, 5, (n, 2))
    return np.concatenate([low, low + RNG.uniform(1, 4, (n, 2))], axis=1)


SPACED = np.sort(f64(8)).cumsum()
GRID = np.linspace(-2, 0.5, 7) + 1j * np.linspace(-1, 1, 5)[:, None]
CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (F.softmax, (f32(3, 5),)),
    (F.softmax, (f32(3, 5), 0)),
    (F.layer_norm, (f32(2, 3, 8), f32(8), f32(8))),
    (F.rms_norm, (f32(4, 8), f32(8))),
    (F.attention, (f32(5, 4), f32(6, 4), f32(6, 3))),
    (F.multi_head_attention, (f32(6, 8), f32(8, 8), f32(8, 8), f32(8, 8), f32(8, 8), 2)),
    (F.k_means_step, (f64(20, 2), f64(3, 2))),
    (F.convolution_by_einsum, (f32(3, 8, 9), f32(4, 3, 3, 2))),
    (F.normal_cdf, (f64(9),)),
    (F.black_scholes, (f64(6) ** 2 + 5, np.float64(6.0), 0.03, f64(6) ** 2 + 0.1, 0.5)),
    (F.fft_filter, (f64(2, 24), 0.2)),
    (
        F.lstm_cell,
        (f32(2, 3), (f32(2, 4), f32(2, 4)), {"w": f32(3, 16), "u": f32(4, 16), "b": f32(16)}),
    ),
    (F.gru, (f64(5, 3), f64(4), f64(3, 12), f64(4, 12), f64(12))),
    (F.resize_bilinear, (f64(5, 7), 8, 11)),
    (F.explained_variance, (f64(12, 4), 2)),
    (F.power_iteration, (symmetric(5),)),
    (F.gram_schmidt, (f64(5, 3),)),
    (F.jacobi, (symmetric(5), f64(5))),
    (F.game_of_life, (ints(2, 8, 9),)),
    (F.moving_average, (f32(10),)),
    (F.histogram_by_search, (RNG.uniform(0, 4, 30), np.linspace(0, 4, 6))),
    (F.class_counts, (ints(5, 25), f64(25))),
    (F.box_blur, (ints(255, 6, 7).astype(np.uint8),)),
    (F.overlaps, (boxes(6),)),
    (F.suppress, (boxes(6), RNG.uniform(0, 1, 6))),
    (F.positional_encoding, (f32(7, 6),)),
    (F.cross_entropy, (f32(6, 5), ints(5, 6))),
    (F.batch_norm_out, (f32(4, 3), f32(3), f32(3) ** 2, f32(3), f32(3), f32(4, 3))),
    (F.sobel, (f64(7, 8),)),
    (F.mandelbrot, (GRID,)),
    (F.kalman_update, (F.Estimate(f64(3), symmetric(3)), f64(2), f64(2, 3), symmetric(2))),
    (F.ridge, (f64(9, 3), f64(9))),
    (F.logistic_step, (f64(3), f64(8, 3), ints(2, 8).astype(float))),
    (F.cosine_similarity, (f32(4, 6), f32(3, 6))),
    (F.pairwise_distances, (f64(4, 3), f64(5, 3))),
    (F.top_k_accuracy, (f32(9, 6), ints(6, 9))),
    (F.one_hot, (ints(4, 6), 4)),
    (F.rotary, (f32(5, 8),)),
    (F.mel_filter, (f64(4, 65) ** 2,)),
    (F.spectrogram, (f64(50),)),
    (F.fibonacci_matrix, (ints(3, 3, 3), 11)),
    (F.fibonacci_matrix, (symmetric(3), -2)),
    (F.lotka_volterra, (np.array([1.5, 1.0]), 1.1, np.float64(0.4), 0.1, 0.4)),
    (F.time_warp, (f64(4), f64(5))),
    (F.edit_distance, (ints(3, 4), ints(3, 5))),
    (F.haar, (f32(16),)),
    (F.max_drawdown, (f64(30) ** 2 + 5,)),
    (F.exponential_average, (f64(12),)),
    (F.horner, ([1.0, -2.0, 0.5, 3.0], f32(6))),
    (F.horner, (f64(4), f32(6))),
    (F.newton_sqrt, (f64(7) ** 2 + 0.1,)),
    (F.quantize, (f32(5, 6),)),
    (F.bilinear_form, (f64(3, 4, 2), f64(5, 3), f64(5, 4))),
    (F.embed, (ints(10, 6),)),
    (F.standardize, (np.where(RNG.random((6, 4)) < 0.2, np.nan, f64(6, 4)) * [1, 1, 0, 1],)),
    (F.robust_scale, (f64(9, 4),)),
    (F.relu_mlp, (f32(4, 3), [(f32(3, 8), f32(8)), (f32(8, 2), f32(2))])),
    (F.mean_pool, (f32(2, 5, 3), RNG.random((2, 5)) < 0.6)),
    (F.local_import, (f64(2, 3),)),
    (F.scaled_softmax, (f32(4, 3),)),
    (F.Perceptron(), (f64(5, 3), ints(3, 5))),
    (F.namespace_softmax, (f32(3, 5),)),
    (F.namespace_statistics, (f64(3, 4),)),
    (F.namespace_rotation, (f64(6, 2), np.array(0.7))),
]


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def run(function: Any, args: Any) -> Any:
    """Trace, run the graph on the same arguments, and put the results back in their places."""
    reading = TraceFrontend().open(function, Limits()).convert(args)
    names = list(reading.arguments.tree)
    arrays = reading.arguments.flatten(dict(zip(names, args, strict=True)))
    return reading.results.restore(interpret(reading.graph, arrays))


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, tuple | list):
        assert type(found) is type(wanted)
        for left, right in zip(found, wanted, strict=True):
            assert_same(left, right)
        return
    if isinstance(wanted, bool | int | float | str | None) and not isinstance(wanted, np.generic):
        assert found == wanted
        return
    wanted = np.asarray(wanted)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    scale = np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted))
    tolerance = 1e-6 if wanted.dtype.itemsize // (1 + (wanted.dtype.kind == "c")) == 4 else 1e-12
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("function", "args"), CASES, ids=[f"{name_of(f)}-{i}" for i, (f, _) in enumerate(CASES)]
)
def test_traced_function_gives_what_numpy_gives(function: Any, args: Any) -> None:
    before = copy.deepcopy(args)
    found = run(function, args)
    np.testing.assert_equal(args, before)
    assert_same(found, function(*copy.deepcopy(args)))


def test_there_are_enough_functions() -> None:
    assert len({name_of(function) for function, _ in CASES}) >= 45


SYMBOLIC: list[tuple[Any, Any, Callable[[int], Any]]] = [
    (F.softmax, [Spec(("n", 5))], lambda n: (f32(n, 5),)),
    (
        F.attention,
        [Spec(("n", 4)), Spec(("m", 4)), Spec(("m", 3))],
        lambda n: (f32(n, 4), f32(n + 2, 4), f32(n + 2, 3)),
    ),
    (
        F.layer_norm,
        [Spec(("b", "n", 8)), Spec((8,)), Spec((8,))],
        lambda n: (f32(2, n, 8), f32(8), f32(8)),
    ),
    (F.positional_encoding, [Spec(("n", 6))], lambda n: (f32(n, 6),)),
    (F.moving_average, [Spec(("n",))], lambda n: (f32(n),)),
    (F.rotary, [Spec(("n", 8))], lambda n: (f32(n, 8),)),
    (F.cross_entropy, [Spec(("n", 5)), Spec(("n",), "int64")], lambda n: (f32(n, 5), ints(5, n))),
    (
        F.pairwise_distances,
        [Spec(("n", 3), "float64"), Spec(("m", 3), "float64")],
        lambda n: (f64(n, 3), f64(n + 1, 3)),
    ),
    (F.namespace_statistics, [Spec(("n", 4), "float64")], lambda n: (f64(n, 4),)),
]


@pytest.mark.parametrize(
    ("function", "specs", "make"), SYMBOLIC, ids=[f.__name__ for f, *_ in SYMBOLIC]
)
def test_one_trace_serves_many_sizes(function: Any, specs: Any, make: Any) -> None:
    reading = TraceFrontend().open(function, Limits()).convert(specs)
    for n in (4, 9):
        args = make(n)
        found = reading.results.restore(interpret(reading.graph, args))
        assert_same(found, function(*args))
