"""Functions that Triton's language lacks, computed in float64 and, for float32, rounded once.

In float64 short formulas are exact enough: what cancels there loses nothing that float32 keeps.
Those in ``DOUBLE`` are good for float64 itself. Each function says its lines and gives the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusewire.dtypes import DType
from fusewire.ops.special import DIGAMMA, FAR_DIGAMMA, FAR_LOG_GAMMA, LOG_GAMMA

# Gives a name to an expression, on a line of its own.
Say = Callable[[str], str]
_HALF_PI = math.pi / 2


def _wide(say: Say, x: str) -> str:
    return say(f"{x}.to(tl.float64)")


def _polynomial(say: Say, x: str, factors: Sequence[float]) -> str:
    total = say(f"{x} * {factors[0]!r} + {factors[1]!r}")
    for factor in factors[2:]:
        total = say(f"{total} * {x} + {factor!r}")
    return total


def _expm1_of(say: Say, w: str) -> str:
    """Kahan's way: what rounding did to the exponential is undone by its logarithm."""
    up = say(f"tl.exp({w})")
    exact = say(f"({up} - 1.0) * {w} / tl.log({up})")
    found = say(f"tl.where(tl.abs({w}) < 0.7, {exact}, {up} - 1.0)")
    return say(f"tl.where({up} == 1.0, {w}, {found})")


def _log1p_of(say: Say, w: str) -> str:
    """Kahan's way: the logarithm of what 1 + x was rounded to, times what rounding did."""
    up = say(f"1.0 + {w}")
    exact = say(f"tl.log({up}) * {w} / ({up} - 1.0)")
    found = say(f"tl.where(tl.abs({w}) < 0.7, {exact}, tl.log({up}))")
    return say(f"tl.where({up} == 1.0, {w}, {found})")


def _signed(x: str, size: str) -> str:
    """Give a size the sign of x; 0 and NaN stay what they are."""
    return f"tl.where({x} < 0, -{size}, tl.where({x} > 0, {size}, {x}.to(tl.float64)))"


def _expm1(say: Say, of: DType, to: DType, x: str) -> str:
    return _expm1_of(say, _wide(say, x))


def _log1p(say: Say, of: DType, to: DType, x: str) -> str:
    return _log1p_of(say, _wide(say, x))


def _cbrt(say: Say, of: DType, to: DType, x: str) -> str:
    size = say(f"tl.exp(tl.log(tl.abs({_wide(say, x)})) / 3.0)")
    return _signed(x, size)


def _sinh(say: Say, of: DType, to: DType, x: str) -> str:
    up = _expm1_of(say, say(f"tl.abs({_wide(say, x)})"))
    size = say(f'tl.where({up} == float("inf"), {up}, 0.5 * ({up} + {up} / ({up} + 1.0)))')
    return _signed(x, size)


def _cosh(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    return f"0.5 * (tl.exp({w}) + tl.exp(-{w}))"


def _tanh(say: Say, of: DType, to: DType, x: str) -> str:
    fall = _expm1_of(say, say(f"-2.0 * tl.abs({_wide(say, x)})"))
    return _signed(x, say(f"-{fall} / ({fall} + 2.0)"))


def _asinh(say: Say, of: DType, to: DType, x: str) -> str:
    a = say(f"tl.abs({_wide(say, x)})")
    more = say(f'tl.where({a} < float("inf"), {a} * {a} / (1.0 + tl.sqrt({a} * {a} + 1.0)), {a})')
    return _signed(x, _log1p_of(say, say(f"{a} + {more}")))


def _acosh(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    return _log1p_of(say, say(f"({w} - 1.0) + tl.sqrt(({w} - 1.0) * ({w} + 1.0))"))


def _atanh(say: Say, of: DType, to: DType, x: str) -> str:
    a = say(f"tl.abs({_wide(say, x)})")
    return _signed(x, say(f"0.5 * {_log1p_of(say, say(f'2.0 * {a} / (1.0 - {a})'))}"))


def _positive_atan(say: Say, a: str) -> str:
    """Angle of a tangent of at least 0: halved twice, then by its series."""
    steep = say(f"{a} > 1.0")
    t = say(f"tl.where({steep}, 1.0 / {a}, {a})")
    for _ in range(2):
        t = say(f"{t} / (1.0 + tl.sqrt(1.0 + {t} * {t}))")
    series = [(-1.0) ** n / (2 * n + 1) for n in range(9, -1, -1)]
    angle = say(f"4.0 * {t} * {_polynomial(say, say(f'{t} * {t}'), series)}")
    return say(f"tl.where({steep}, {_HALF_PI!r} - {angle}, {angle})")


def _atan(say: Say, of: DType, to: DType, x: str) -> str:
    return _signed(x, _positive_atan(say, say(f"tl.abs({_wide(say, x)})")))


def _asin(say: Say, of: DType, to: DType, x: str) -> str:
    a = say(f"tl.abs({_wide(say, x)})")
    return _signed(x, _positive_atan(say, say(f"{a} / tl.sqrt((1.0 - {a}) * (1.0 + {a}))")))


def _acos(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    return f"2.0 * {_positive_atan(say, say(f'tl.sqrt((1.0 - {w}) / (1.0 + {w}))'))}"


def _atan2(say: Say, of: DType, to: DType, y: str, x: str) -> str:
    up, along = say(f"tl.abs({_wide(say, y)})"), say(f"tl.abs({_wide(say, x)})")
    alike = say(f'({up} == {along}) & (({up} == 0.0) | ({up} == float("inf")))')
    # At 0 the angle is 0, and of two infinities it is that of (1, 1).
    slope = say(f"tl.where({alike}, tl.where({up} == 0.0, 0.0, 1.0), {up} / {along})")
    angle = _positive_atan(say, slope)
    bits = "to(tl.int32, bitcast=True) < 0"
    angle = say(f"tl.where({x}.{bits}, {math.pi!r} - {angle}, {angle})")
    return f"tl.where({y}.{bits}, -{angle}, {angle})"


def _erfc(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    far = say(f"tl.maximum({w}, 2.5)")
    rest = far
    # A continued fraction, from its end; for at least 2.5 so many steps are enough.
    for n in range(40, 0, -1):
        rest = say(f"{far} + {n / 2} / {rest}")
    large = say(f"tl.exp(-{far} * {far}) * {1 / math.sqrt(math.pi)!r} / {rest}")
    return f"tl.where({w} > 2.5, {large}, 1.0 - tl.erf({w}))"


def _sine_of_turn(say: Say, w: str) -> tuple[str, str]:
    """Give how far a number is from the nearest whole one, and the sine of that half turn."""
    # Of -0, 0: the pole there has one side.
    turn = say(f"{w} - tl.floor({w} + 0.5) + 0.0")
    return turn, say(f"tl.sin({math.pi!r} * {turn})")


def _to_two(say: Say, right: str) -> tuple[str, str, str]:
    """See ``fusewire.ops.special``: distance to 2, quotient of gammas, steps of digamma."""
    x = say(f"tl.minimum({right}, 10.0)")
    up = say(f"{x} < 1.5")
    distance = say(f"tl.where({up}, {x} - 1.0, {x} - 2.0)")
    quotient = say(f"tl.where({up}, {x} - 1.0, 1.0)")
    total = say(f"tl.where({up}, -1.0 / {x}, 0.0)")
    for _ in range(8):
        down = say(f"{distance} > 0.5")
        distance = say(f"tl.where({down}, {distance} - 1.0, {distance})")
        quotient = say(f"tl.where({down}, {quotient} * ({distance} + 2.0), {quotient})")
        total = say(f"tl.where({down}, {total} + 1.0 / ({distance} + 2.0), {total})")
    return distance, quotient, total


def _lgamma(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    right = say(f"tl.where({w} < 0.5, 1.0 - {w}, {w})")
    distance, quotient, _ = _to_two(say, right)
    above = say(f"tl.where({right} < 1.5, 1.0, {quotient})")
    rise = _log1p_of(say, say(f"tl.where({right} < 1.5, {quotient}, 0.0)"))
    step = say(f"tl.where({right} < 1.5, -{rise}, tl.log({above}))")
    near = say(f"{step} + {_polynomial(say, distance, LOG_GAMMA)}")
    far = say(f"tl.maximum({right}, 10.0)")
    series = _polynomial(say, say(f"1.0 / ({far} * {far})"), FAR_LOG_GAMMA)
    half = 0.5 * math.log(2.0 * math.pi)
    stirling = say(f"({far} - 0.5) * tl.log({far}) - {far} + {half!r} + {series} / {far}")
    found = say(f"tl.where({right} < 10.0, {near}, {stirling})")
    _, sine = _sine_of_turn(say, w)
    mirror = say(f"tl.log({math.pi!r} / tl.abs({sine})) - {found}")
    found = say(f"tl.where({w} < 0.5, {mirror}, {found})")
    found = say(f'tl.where(tl.abs({w}) == float("inf"), float("inf"), {found})')
    return f"tl.where({w} != {w}, {w}, {found})"


def _digamma(say: Say, of: DType, to: DType, x: str) -> str:
    w = _wide(say, x)
    right = say(f"tl.where({w} < 0.5, 1.0 - {w}, {w})")
    distance, _, total = _to_two(say, right)
    far = say(f"tl.maximum({right}, 10.0)")
    square = say(f"1.0 / ({far} * {far})")
    series = _polynomial(say, square, FAR_DIGAMMA)
    distant = say(f"tl.log({far}) - 0.5 / {far} - {square} * {series}")
    near = _polynomial(say, distance, DIGAMMA)
    found = say(f"tl.where({right} < 10.0, {total} + {near}, {distant})")
    turn, sine = _sine_of_turn(say, w)
    mirror = say(f"{found} - {math.pi!r} * tl.cos({math.pi!r} * {turn}) / {sine}")
    found = say(f"tl.where({w} < 0.5, {mirror}, {found})")
    pole = say(f"({w} < 0.0) & ({turn} == 0.0)")
    found = say(f'tl.where({w} == float("inf"), {w}, {found})')
    return f'tl.where({pole} | ({w} != {w}), float("nan"), {found})'


def power(say: Say, of: DType, to: DType, x: str, y: str) -> str:
    """Raise floats to powers, as C does where there is no number."""
    base, by = _wide(say, x), _wide(say, y)
    size = say(f"tl.exp({by} * tl.log(tl.abs({base})))")
    # Beyond 2**53 every number is even.
    odd = say(f"({by} == tl.floor({by})) & ({by} * 0.5 != tl.floor({by} * 0.5))")
    below = say(f"{x}.to(tl.int32, bitcast=True) < 0")
    signed = say(f"tl.where({below} & {odd}, -{size}, {size})")
    undefined = say(f'({base} < 0.0) & ({base} > float("-inf")) & ({by} != tl.floor({by}))')
    found = say(f'tl.where({undefined}, float("nan"), {signed})')
    endless = say(f'({base} == -1.0) & (tl.abs({by}) == float("inf"))')
    return f"tl.where(({by} == 0.0) | ({base} == 1.0) | {endless}, 1.0, {found})"


DOUBLE = frozenset(("expm1", "log1p", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"))
FUNCTIONS: dict[str, Callable[..., str]] = {
    "expm1": _expm1, "log1p": _log1p, "cbrt": _cbrt, "sinh": _sinh, "cosh": _cosh, "tanh": _tanh,
    "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "atan": _atan, "asin": _asin, "acos": _acos,
    "atan2": _atan2, "erfc": _erfc, "lgamma": _lgamma, "digamma": _digamma,
}  # fmt: skip
