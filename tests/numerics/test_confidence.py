"""A lower limit of the mean score holds in 95% of cases, whatever the scores are like."""

from collections.abc import Callable

import numpy as np
import pytest

from fusewire.numerics.confidence import fewest, lower_limit

Draw = Callable[[np.random.Generator, int], np.ndarray]

KINDS: dict[str, tuple[Draw, float]] = {
    "agree": (lambda rng, n: (rng.random(n) < 0.97).astype(float), 0.97),
    "cosines": (lambda rng, n: rng.beta(200, 2, n), 200 / 202),
    "rarely 0": (lambda rng, n: np.where(rng.random(n) < 0.99, 0.995, 0.0), 0.99 * 0.995),
    "rarely less": (lambda rng, n: np.where(rng.random(n) < 0.98, 1.0, 0.5), 0.99),
    "anything": (lambda rng, n: rng.random(n), 0.5),
    "decibels": (lambda rng, n: rng.normal(30, 4, n), 30.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [32, 200])
def test_limit_is_rarely_above_the_mean(kind: str, count: int) -> None:
    draw, mean = KINDS[kind]
    rng = np.random.default_rng(0)
    limits = [lower_limit(draw(rng, count).tolist()) for _ in range(200)]
    missed = sum(limit > mean for limit in limits)
    # 5% of 200, and what chance adds to that once in a thousand cases.
    assert missed <= 20


def test_limit_comes_close_with_many_samples() -> None:
    rng = np.random.default_rng(0)
    for draw, mean in KINDS.values():
        limit = lower_limit(draw(rng, 1000).tolist())
        assert mean - 0.03 * max(mean, 1.0) < limit < mean + 0.01 * max(mean, 1.0)


def test_perfect_scores_of_few_samples_show_little() -> None:
    assert lower_limit([1.0] * 8) == pytest.approx(0.05 ** (1 / 8), abs=1e-6)
    for least in (0.9, 0.98, 0.99):
        needed = fewest(least)
        assert needed is not None
        assert lower_limit([1.0] * needed) >= least > lower_limit([1.0] * (needed - 1))


def test_what_is_no_number_shows_nothing() -> None:
    assert lower_limit([]) == lower_limit([1.0, float("nan")]) == -np.inf
    assert lower_limit([30.0]) == -np.inf
    # Floats round up.
    assert lower_limit([1.0 + 1e-9] * 64) == pytest.approx(lower_limit([1.0] * 64))
