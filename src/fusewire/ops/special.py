"""Functions beyond arithmetic, each over an array namespace ``xp`` and written once.

They are the decompositions of ops for engines that lack them, the references of ops that NumPy
lacks, and lowerings of engines whose own functions have too few digits. Names are those of our
ops, which are mostly the array API's. Where a branch has no value it is chosen away at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

# An array of the namespace: of NumPy, of jax.numpy, or an expression of ours.
X: TypeAlias = Any
NAN, INFINITY = math.nan, math.inf


def polynomial(x: X, factors: Sequence[float]) -> X:
    """Sum factors times powers of x, the highest first."""
    total = x * factors[0] + factors[1]
    for factor in factors[2:]:
        total = total * x + factor
    return total


def expm1(xp: Any, x: X) -> X:
    """Raise e to x, less 1, by Kahan: the rounding of e^x cancels against its logarithm's."""
    grown = xp.exp(x)
    less = grown - 1.0
    # Far out there is nothing to cancel, and the logarithm has no value.
    near = xp.where(xp.abs(x) < 0.7, less * (x / xp.log(grown)), less)
    return xp.where(grown == 1.0, x, near)


def log1p(xp: Any, x: X) -> X:
    """Take the logarithm of 1 + x, by Kahan: the rounding of 1 + x is divided out."""
    moved = x + 1.0
    log = xp.log(moved)
    near = xp.where(xp.abs(x) < 0.7, log * (x / (moved - 1.0)), log)
    return xp.where(moved == 1.0, x, near)


def _signed(xp: Any, x: X, size: X) -> X:
    """Give a size the sign of x; 0 and NaN stay what they are."""
    return xp.where(x < 0.0, -size, xp.where(x > 0.0, size, x))


def cbrt(xp: Any, x: X) -> X:
    """Raise to a third, and step once toward the root, as a third is not exact."""
    size = xp.abs(x)
    root = xp.power(size, 1.0 / 3.0)
    near = root - (root - size / (root * root)) * (1.0 / 3.0)
    # At 0 and infinity the step has no value, and the root needs none.
    return _signed(xp, x, xp.where((size > 0.0) & (size < INFINITY), near, root))


def exp2(xp: Any, x: X) -> X:
    """Raise 2 to x."""
    return xp.power(2.0, x)


def log2(xp: Any, x: X) -> X:
    """Take the logarithm to base 2."""
    return xp.log(x) * (1.0 / math.log(2.0))


def log10(xp: Any, x: X) -> X:
    """Take the logarithm to base 10."""
    return xp.log(x) * (1.0 / math.log(10.0))


def reciprocal(xp: Any, x: X) -> X:
    """Divide one by x."""
    return 1.0 / x


def rsqrt(xp: Any, x: X) -> X:
    """Divide one by the root."""
    return 1.0 / xp.sqrt(x)


def trunc(xp: Any, x: X) -> X:
    """Round toward 0."""
    return xp.where(x < 0.0, xp.ceil(x), xp.floor(x))


def sigmoid(xp: Any, x: X) -> X:
    """Divide one by 1 + e^-x, without an exponential that overflows."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0.0, small, small * 0.0 + 1.0) / (small + 1.0)


def tan(xp: Any, x: X) -> X:
    """Divide the sine by the cosine."""
    return xp.sin(x) / xp.cos(x)


def sinh(xp: Any, x: X) -> X:
    """Take half of e^x - e^-x."""
    size = xp.abs(x)
    grown = xp.expm1(size)
    near = (grown + grown / (grown + 1.0)) * 0.5
    # The root is finite wherever the answer is.
    root = xp.exp(size * 0.5)
    return _signed(xp, x, xp.where(size < 1.0, near, root * 0.5 * root - 0.5 / root / root))


def cosh(xp: Any, x: X) -> X:
    """Take half of e^x + e^-x, by a root that is finite wherever the answer is."""
    root = xp.exp(xp.abs(x) * 0.5)
    return root * 0.5 * root + 0.5 / root / root


def tanh(xp: Any, x: X) -> X:
    """Divide sinh by cosh."""
    fallen = xp.expm1(xp.abs(x) * -2.0)
    return _signed(xp, x, -fallen / (fallen + 2.0))


def asinh(xp: Any, x: X) -> X:
    """Undo sinh."""
    size = xp.abs(x)
    # The square of what is large overflows; there the root is the number itself.
    within = xp.minimum(size, 1e9)
    more = within * within / (xp.sqrt(within * within + 1.0) + 1.0)
    far = xp.log(size) + math.log(2.0)
    return _signed(xp, x, xp.where(size > 1e9, far, xp.log1p(within + more)))


def acosh(xp: Any, x: X) -> X:
    """Undo cosh."""
    within = xp.minimum(x, 1e9)
    near = xp.log1p((within - 1.0) + xp.sqrt((within - 1.0) * (within + 1.0)))
    found = xp.where(x > 1e9, xp.log(x) + math.log(2.0), near)
    return xp.where(x < 1.0, NAN, found)


def atanh(xp: Any, x: X) -> X:
    """Undo tanh."""
    size = xp.abs(x)
    return _signed(xp, x, xp.log1p(size * 2.0 / (1.0 - size)) * 0.5)


# The series of the arc tangent, enough for tangents below 0.2.
_ATAN = tuple((-1.0) ** n / (2 * n + 1) for n in range(11, -1, -1))


def _positive_atan(xp: Any, size: X) -> X:
    """Angle of a tangent of at least 0: halved twice, then by its series."""
    steep = size > 1.0
    t = xp.where(steep, 1.0 / size, size)
    for _ in range(2):
        t = t / (xp.sqrt(t * t + 1.0) + 1.0)
    angle = t * 4.0 * polynomial(t * t, _ATAN)
    return xp.where(steep, math.pi / 2 - angle, angle)


def atan(xp: Any, x: X) -> X:
    """Take the inverse tangent."""
    return _signed(xp, x, _positive_atan(xp, xp.abs(x)))


def asin(xp: Any, x: X) -> X:
    """Take the angle of a sine, by its tangent."""
    size = xp.abs(x)
    return _signed(xp, x, _positive_atan(xp, size / xp.sqrt((1.0 - size) * (size + 1.0))))


def acos(xp: Any, x: X) -> X:
    """Take the angle of a cosine, by the tangent of its half."""
    return _positive_atan(xp, xp.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def atan2(xp: Any, y: X, x: X) -> X:
    """Take the angle by the arc tangent of the quotient, in the half plane that the signs tell."""
    up, along = xp.abs(y), xp.abs(x)
    # Two zeros, or two infinities, have no quotient: their angle is that of (0, 1), or (1, 1).
    alike = (up == along) & ((up == 0.0) | (up == INFINITY))
    slope = xp.where(alike, xp.minimum(up, 1.0), up / along)
    angle = xp.atan(slope)
    angle = xp.where(_is_negative(xp, x), math.pi - angle, angle)
    return xp.where(_is_negative(xp, y), -angle, angle)


def _is_negative(xp: Any, x: X) -> X:
    """Tell the sign, also of 0: one over it is infinite and has the same."""
    return (x < 0.0) | (1.0 / x < 0.0)


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


def _small_erf(x: X) -> X:
    """Error function for |x| <= 1."""
    square = x * x
    return x * polynomial(square, _ERF_TOP) / polynomial(square, _ERF_BOTTOM)


def _near_ratio(x: X) -> X:
    """Complement times exp(x * x) for 1 <= x <= 8."""
    return polynomial(x, _NEAR_TOP) / polynomial(x, _NEAR_BOTTOM)


def _exp_minus_square(xp: Any, x: X) -> X:
    """Raise e to -x * x; the square of a rounded head is exact, so that nothing is lost to it."""
    head = xp.round(x * 65536.0) * (1.0 / 65536.0)
    return xp.exp(-head * head) * xp.exp((head - x) * (head + x))


def _large_erfc(xp: Any, x: X) -> X:
    """Complement for x >= 1."""
    far = xp.minimum(xp.maximum(x, 8.0), 30.0)
    ratio = xp.where(
        x < 8.0,
        _near_ratio(xp.minimum(x, 8.0)),
        polynomial(far, _FAR_TOP) / polynomial(far, _FAR_BOTTOM),
    )
    return _exp_minus_square(xp, xp.minimum(x, 30.0)) * ratio


def _within_one(xp: Any, x: X) -> X:
    return xp.maximum(xp.minimum(x, 1.0), -1.0)


def erf(xp: Any, x: X) -> X:
    """Compute the error function."""
    size = xp.abs(x)
    near = xp.maximum(xp.minimum(size, 7.0), 1.0)
    large = 1.0 - _exp_minus_square(xp, near) * _near_ratio(near)
    return xp.where(size > 1.0, _signed(xp, x, large), _small_erf(_within_one(xp, x)))


def erfc(xp: Any, x: X) -> X:
    """Compute one minus the error function, without cancellation."""
    large = _large_erfc(xp, xp.maximum(xp.abs(x), 1.0))
    small = 1.0 - _small_erf(_within_one(xp, x))
    return xp.where(x > 1.0, large, xp.where(x < -1.0, 2.0 - large, small))


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


def _to_two(xp: Any, x: X) -> tuple[X, X, X]:
    """Step by ones from 0.5..10 to 1.5..2.5, and give the distance to 2 from there.

    Also the quotient of the gammas at both ends, less 1 where the step was up, and the sum of the
    steps of digamma. No rounding where a step up was made: log gamma is 0 at 1.
    """
    x = xp.minimum(x, 10.0)
    up = x < 1.5
    distance = xp.where(up, x - 1.0, x - 2.0)
    quotient, total = xp.where(up, x - 1.0, 1.0), xp.where(up, -1.0 / x, 0.0)
    for _ in range(8):
        down = distance > 0.5
        distance = xp.where(down, distance - 1.0, distance)
        quotient = xp.where(down, quotient * (distance + 2.0), quotient)
        total = xp.where(down, total + 1.0 / (distance + 2.0), total)
    return distance, quotient, total


def lgamma(xp: Any, x: X) -> X:
    """Take the logarithm of the absolute value of the gamma function."""
    mirrored = x < 0.5
    right = xp.where(mirrored, 1.0 - x, x)
    distance, quotient, _ = _to_two(xp, right)
    step = xp.where(right < 1.5, -xp.log1p(quotient), xp.log(quotient))
    near = step + polynomial(distance, LOG_GAMMA)
    far = xp.maximum(right, 10.0)
    series = polynomial(1.0 / (far * far), FAR_LOG_GAMMA) / far
    stirling = (far - 0.5) * xp.log(far) - far + 0.5 * math.log(2.0 * math.pi) + series
    value = xp.where(right < 10.0, near, stirling)
    sine = xp.abs(xp.sin((x - xp.round(x)) * math.pi))
    value = xp.where(mirrored, xp.log(math.pi / sine) - value, value)
    return xp.where(xp.isinf(x), INFINITY, value)


def digamma(xp: Any, x: X) -> X:
    """Take the slope of lgamma; NaN at its poles -1, -2 and so on.

    Near its zeros the error is absolute.
    """
    mirrored = x < 0.5
    right = xp.where(mirrored, 1.0 - x, x)
    distance, _, total = _to_two(xp, right)
    far = xp.maximum(right, 10.0)
    square = 1.0 / (far * far)
    distant = xp.log(far) - 0.5 / far - square * polynomial(square, FAR_DIGAMMA)
    value = xp.where(right < 10.0, total + polynomial(distance, DIGAMMA), distant)
    # Of -0, 0: the pole there has one side, however an engine rounds -0.
    turn = x - xp.round(x) + 0.0
    value = xp.where(mirrored, value - math.pi / xp.tan(turn * math.pi), value)
    pole = (x < 0.0) & (turn == 0.0)
    return xp.where(pole, NAN, xp.where(x == INFINITY, INFINITY, value))
