"""Special functions that NumPy lacks, vectorised; computed in float64 whatever they are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusewire.ir.graph import Array

# Rational approximations of Cephes (ndtr.c); highest powers first.
_ERF_TOP = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_BOTTOM = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)
_NEAR_TOP = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
             4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
             9.34528527171957607540e2, 1.02755188689515710272e3,
             5.57535335369399327526e2)  # fmt: skip
_NEAR_BOTTOM = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
                9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
                1.65666309194161350182e3, 5.57535340817727675546e2)  # fmt: skip
_FAR_TOP = (
    5.64189583547755073984e-1,
    1.27536670759978104416e0,
    5.01905042251180477414e0,
    6.16021097993053585195e0,
    7.40974269950448939160e0,
    2.97886665372100240670e0,
)
_FAR_BOTTOM = (
    1.0,
    2.26052863220117276590e0,
    9.39603524938001434673e0,
    1.20489539808096656605e1,
    1.70814450747565897222e1,
    9.60896809063285878198e0,
    3.36907645100081516050e0,
)


def _polynomial(x: Array, factors: Sequence[float]) -> Array:
    total = np.full_like(x, factors[0])
    for factor in factors[1:]:
        total *= x
        total += factor
    return total


def _small_erf(x: Array) -> Array:
    """Error function for |x| <= 1."""
    z = x * x
    return x * _polynomial(z, _ERF_TOP) / _polynomial(z, _ERF_BOTTOM)


def _large_erfc(x: Array) -> Array:
    """Complement for x >= 1."""
    near, far = np.minimum(x, 8.0), np.clip(x, 8.0, 30.0)
    ratio = np.where(
        x < 8.0,
        _polynomial(near, _NEAR_TOP) / _polynomial(near, _NEAR_BOTTOM),
        _polynomial(far, _FAR_TOP) / _polynomial(far, _FAR_BOTTOM),
    )
    # The square of a rounded head is exact, so exp(-x*x) loses nothing to rounding x*x.
    x = np.minimum(x, 30.0)
    head = np.round(x * 65536.0) / 65536.0
    return np.exp(-head * head) * np.exp((head - x) * (head + x)) * ratio


def erf(x: Array) -> Array:
    """Error function."""
    wide = np.asarray(x, np.float64)
    size = np.abs(wide)
    large = np.copysign(1.0 - _large_erfc(np.clip(size, 1.0, 7.0)), wide)
    return np.where(size > 1.0, large, _small_erf(np.clip(wide, -1.0, 1.0))).astype(x.dtype)


def erfc(x: Array) -> Array:
    """One minus the error function, without cancellation."""
    wide = np.asarray(x, np.float64)
    large = _large_erfc(np.maximum(np.abs(wide), 1.0))
    small = 1.0 - _small_erf(np.clip(wide, -1.0, 1.0))
    found = np.where(wide > 1.0, large, np.where(wide < -1.0, 2.0 - large, small))
    return found.astype(x.dtype)


def _zeta_less_one(power: int) -> float:
    """Riemann's zeta less 1, by summing to 39 and Euler-Maclaurin for the rest."""
    last = 40.0
    head = sum(float(n) ** -power for n in range(2, 40))
    tail = last ** (1 - power) / (power - 1) + last**-power / 2
    rise, terms = float(power), (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600)
    for k, term in enumerate(terms):
        tail += term * rise * last ** (-power - 2 * k - 1)
        rise *= (power + 2 * k + 1) * (power + 2 * k + 2)
    return head + tail


_ONE_LESS_EULER = 0.42278433509846714
_ZETAS = [_zeta_less_one(k) * (-1.0) ** k for k in range(31, 1, -1)]
# Taylor series at 2 of log gamma and of digamma; asymptotic series of both in 1 / x**2.
LOG_GAMMA = [*(z / k for z, k in zip(_ZETAS, range(31, 1, -1), strict=True)), _ONE_LESS_EULER, 0.0]
DIGAMMA = [*_ZETAS, _ONE_LESS_EULER]
FAR_LOG_GAMMA = (
    -3617 / 122400,
    1 / 156,
    -691 / 360360,
    1 / 1188,
    -1 / 1680,
    1 / 1260,
    -1 / 360,
    1 / 12,
)
FAR_DIGAMMA = (-3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def _to_two(x: Array) -> tuple[Array, Array, Array]:
    """Step by ones from 0.5..10 to 1.5..2.5, and give the distance to 2 from there.

    Also the quotient of the gammas at both ends, less 1 where the step was up, and the sum of the
    steps of digamma. No rounding where a step up was made: log gamma is 0 at 1.
    """
    x = np.minimum(x, 10.0)
    up = x < 1.5
    distance = np.where(up, x - 1.0, x - 2.0)
    quotient, total = np.where(up, x - 1.0, 1.0), np.where(up, -1.0 / x, 0.0)
    for _ in range(8):
        down = distance > 0.5
        distance = np.where(down, distance - 1.0, distance)
        quotient = np.where(down, quotient * (distance + 2.0), quotient)
        total = np.where(down, total + 1.0 / (distance + 2.0), total)
    return distance, quotient, total


def lgamma(x: Array) -> Array:
    """Logarithm of the absolute value of the gamma function."""
    wide = np.asarray(x, np.float64)
    mirrored = wide < 0.5
    right = np.where(mirrored, 1.0 - wide, wide)
    distance, quotient, _ = _to_two(right)
    step = np.where(right < 1.5, -np.log1p(quotient), np.log(quotient))
    near = step + _polynomial(distance, LOG_GAMMA)
    far = np.maximum(right, 10.0)
    series = _polynomial(1.0 / (far * far), FAR_LOG_GAMMA) / far
    stirling = (far - 0.5) * np.log(far) - far + 0.5 * np.log(2.0 * np.pi) + series
    found = np.where(right < 10.0, near, stirling)
    sine = np.abs(np.sin(np.pi * (wide - np.round(wide))))
    found = np.where(mirrored, np.log(np.pi / sine) - found, found)
    return np.where(np.isinf(wide), np.inf, found).astype(x.dtype)


def digamma(x: Array) -> Array:
    """Slope of lgamma; NaN at its poles -1, -2 and so on. Near its zeros the error is absolute."""
    wide = np.asarray(x, np.float64)
    mirrored = wide < 0.5
    right = np.where(mirrored, 1.0 - wide, wide)
    distance, _, total = _to_two(right)
    far = np.maximum(right, 10.0)
    square = 1.0 / (far * far)
    distant = np.log(far) - 0.5 / far - square * _polynomial(square, FAR_DIGAMMA)
    found = np.where(right < 10.0, total + _polynomial(distance, DIGAMMA), distant)
    turn = wide - np.round(wide)
    found = np.where(mirrored, found - np.pi / np.tan(np.pi * turn), found)
    pole = (wide < 0.0) & (turn == 0.0)
    return np.where(pole, np.nan, np.where(wide == np.inf, np.inf, found)).astype(x.dtype)
