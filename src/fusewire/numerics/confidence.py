"""What the scores of samples show about the mean score of other inputs: a lower limit.

Inputs are taken to be draws of one kind. The limit holds with 95% confidence: of candidates whose
mean score is below it, at most one in twenty shows scores as good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

# The chance that a limit is too high, and the normal quantile of it.
_MISS, _QUANTILE = 0.05, 1.645
# A bet leaves this share of the capital, so that one score of 0 does not end it.
_KEPT = 0.1
# Halvings of the interval in which a limit lies.
_HALVINGS = 40
# Scores that were computed in floats may be above 1 by this.
_ROUNDING = 1e-6

Floats: TypeAlias = "npt.NDArray[np.float64]"


def lower_limit(scores: Sequence[float]) -> float:
    """Return what the mean score of other inputs is at least, with 95% confidence.

    Scores of 0 and 1 give the limit of Clopper and Pearson. Others between 0 and 1 give one that
    holds whatever their distribution is: inputs that nobody has seen may score 0. Scores that are
    not between 0 and 1 have no such limit; theirs is Student's, which takes means to be normal.

    >>> round(lower_limit([1.0] * 64), 3), round(lower_limit([1.0] * 299), 3)
    (0.954, 0.99)
    >>> round(lower_limit([1.0] * 63 + [0.0]), 3)
    0.928
    >>> round(lower_limit([0.995, 0.997] * 256), 3)
    0.99
    """
    array = np.asarray(scores, np.float64)
    if not array.size or not np.isfinite(array).all():
        return -math.inf
    if array.min() < 0.0 or array.max() > 1.0 + _ROUNDING:
        return _of_any(array)
    array = np.minimum(array, 1.0)
    if np.isin(array, (0.0, 1.0)).all():
        return _of_counts(int(array.sum()), array.size)
    return _least(lambda mean: _capital(array, mean) < 1 / _MISS)


def fewest(least: float) -> int | None:
    """Return how many perfect scores show a mean; None if no number of them does.

    >>> fewest(0.99), fewest(0.9), fewest(0.0), fewest(1.0)
    (299, 29, 1, None)
    """
    if least >= 1.0:
        return None
    return 1 if least <= _MISS else math.ceil(math.log(_MISS) / math.log(least))


def _least(reaches: Callable[[float], bool]) -> float:
    """Return the least mean between 0 and 1 that scores do not speak against."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return low


def _of_counts(right: int, count: int) -> float:
    """Return the limit of Clopper and Pearson for so many of so many."""
    if right == 0:
        return 0.0

    def chance(mean: float) -> float:
        """Return how likely so few failures are."""
        logs = (
            math.lgamma(count + 1)
            - math.lgamma(wrong + 1)
            - math.lgamma(count - wrong + 1)
            + wrong * math.log(1 - mean)
            + (count - wrong) * math.log(mean)
            for wrong in range(count - right + 1)
        )
        return sum(map(math.exp, logs))

    return _least(lambda mean: chance(mean) > _MISS)


def _capital(scores: Floats, mean: float) -> float:
    """Return what bets against a mean have made of 1; more than 20 is as rare as 1 in 20.

    Each score is bet on by what those before it were like (Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", 2024).
    """
    numbers = np.arange(1, len(scores) + 1)
    means = (0.5 + np.cumsum(scores)) / (numbers + 1)
    variances = (0.25 + np.cumsum((scores - means) ** 2)) / (numbers + 1)
    before = np.concatenate(([0.25], variances[:-1]))
    bets = np.sqrt(2 * math.log(1 / _MISS) / (len(scores) * before))
    bets = np.minimum(bets, (1 - _KEPT) / mean)
    return float(np.exp(np.minimum(np.log1p(bets * (scores - mean)).sum(), 700.0)))


def _of_any(scores: Floats) -> float:
    """Return Student's limit."""
    free = len(scores) - 1
    if not free:
        return -math.inf
    z = _QUANTILE
    # The expansion of Cornish and Fisher: to 0.1% from 7 degrees of freedom on.
    quantile = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return float(scores.mean() - quantile * scores.std(ddof=1) / math.sqrt(len(scores)))
