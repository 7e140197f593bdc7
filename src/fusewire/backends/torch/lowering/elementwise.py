"""Arithmetic, comparisons, bits and casts. Operands come in the dtype a node computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusewire.backends.torch.lowering.signature import Function, Lower, operand, output, plain
from fusewire.backends.torch.storage import CARRIERS, Tensor, encode, is_small, store
from fusewire.dtypes import DType, bool_, uint16, uint32, uint64
from fusewire.ir.graph import Node

_FLIP = -(2**63)


def _by(divide: Callable[[Tensor, Tensor], Tensor], is_quotient: bool) -> Lower:
    """Give 0 for integers divided by 0, which PyTorch raises for.

    The smallest integer divided by -1 stops the process in 2.13, so it is never asked for.
    """

    def divided(x: Tensor, y: Tensor) -> Tensor:
        odd = y == 0
        if x.dtype.is_signed:
            odd = odd | (y == -1)
        found = divide(x, torch.where(odd, 1, y))
        special = torch.where(y == 0, 0, -x) if is_quotient else torch.zeros_like(found)
        return torch.where(odd, special, found)

    def lower(node: Node) -> Function:
        return divide if output(node).dtype.is_float else divided

    return lower


def _power(node: Node) -> Function:
    if not output(node).dtype.is_integer:
        function: Function = torch.pow
        return function

    def power(x: Tensor, y: Tensor) -> Tensor:
        found = torch.pow(x, torch.clamp(y, min=0))
        inverse = torch.where(x.abs() == 1, torch.where(y % 2 == 0, 1, x), 0)
        return torch.where(y < 0, inverse, found)

    return power


def _shift(shift: Callable[[Tensor, Tensor], Tensor], fills: bool) -> Lower:
    """Say what PyTorch leaves open: a shift by the width or more, or by less than 0."""

    def lower(node: Node) -> Function:
        bits = output(node).dtype.bits

        def function(x: Tensor, y: Tensor) -> Tensor:
            inside = (y >= 0) & (y < bits)
            beyond = torch.where(x < 0, -1, 0).to(x.dtype) if fills else torch.zeros_like(x)
            return torch.where(inside, shift(x, torch.where(inside, y, 0)), beyond)

        return function

    return lower


def _shift_right(node: Node) -> Function | Any:
    if output(node).dtype is not uint64:
        return _shift(torch.bitwise_right_shift, fills=True)(node)

    def logical(x: Tensor, y: Tensor) -> Tensor:
        # One place at a time: what the sign fills is cleared after the first.
        some = torch.where((y > 0) & (y < 64), y, 1)
        halved = (x >> 1) & (2**63 - 1)
        found = torch.where(y == 0, x, halved >> (some - 1))
        return torch.where((y < 0) | (y > 63), 0, found)

    return logical


def _ordered(compare: Function) -> Lower:
    """Compare; bits of uint64 in an int64 order as they should once the sign is turned."""

    def lower(node: Node) -> Function:
        if operand(node).dtype is not uint64:
            return compare
        return lambda x, y: compare(x ^ _FLIP, y ^ _FLIP)

    return lower


def _extreme(pick: Function) -> Lower:
    def lower(node: Node) -> Function:
        if output(node).dtype is not uint64:
            return pick
        return lambda x, y: pick(x ^ _FLIP, y ^ _FLIP) ^ _FLIP

    return lower


def _cast(node: Node) -> Function:
    of, source = output(node).dtype, operand(node).dtype
    carried = CARRIERS[of]
    if of is bool_:
        return lambda x: x != 0
    if source.is_complex and not of.is_complex:
        inner = _from_real(of, carried, is_float=True, saturate=bool(node.attrs["saturate"]))
        return lambda x: inner(torch.real(x))
    return _from_real(of, carried, source.is_float, bool(node.attrs["saturate"]))


def _from_real(of: DType, carried: Any, is_float: bool, saturate: bool) -> Function:
    if is_small(of):
        return lambda x: encode(x, of, saturate=saturate)
    if of.is_integer and is_float:
        return _to_integers(of)
    if of in (uint16, uint32) or of.is_narrow:
        keep = store(of)
        assert keep is not None
        return lambda x: keep(x.to(carried))
    return lambda x: x.to(carried)


def _to_integers(of: DType) -> Function:
    """Round toward 0; NaN gives 0, what is out of range the nearest bound."""
    low, high = (int(limit) for limit in of.range)
    carried = CARRIERS[of]

    def function(x: Tensor) -> Tensor:
        wide = x.to(torch.float64)
        above, below = wide >= float(high) + 1.0, wide < float(low)
        inside = torch.where(above | below | torch.isnan(wide), 0.0, wide).to(carried)
        return torch.where(below, low, torch.where(above, high, inside))

    return function


def _bitcast(node: Node) -> Function:
    of, source = output(node).dtype, operand(node).dtype
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
    target = CARRIERS[of]
    width = bits[8 * of.itemsize]

    def function(x: Tensor) -> Tensor:
        raw = x.to(width) if source in (uint16, uint32) else x
        if of in (uint16, uint32):
            keep = store(of)
            assert keep is not None
            return keep(raw.view(width).to(target))
        return raw.view(target)

    return function


def _sign(node: Node) -> Function:
    if not output(node).dtype.is_float:
        function: Function = torch.sign if not output(node).dtype.is_complex else torch.sgn
        return function
    return lambda x: torch.where(torch.isnan(x), x, torch.sign(x))


def _cbrt(x: Tensor) -> Tensor:
    """Take the root of magnitudes in float64, and improve it by a step of Newton's."""
    size = x.abs().to(torch.float64)
    root = size.pow(1.0 / 3.0)
    better = root - (root * root * root - size) / (3.0 * root * root)
    usable = torch.isfinite(better) & (size > 0)
    return torch.copysign(torch.where(usable, better, root), x.to(torch.float64)).to(x.dtype)


# Ops that torch has under the same name, with the same meaning.
_SAME = """
    add subtract multiply copysign nextafter negative square sqrt exp exp2 expm1 log log1p log2
    log10 sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh atan2 erf erfc lgamma
    ceil floor trunc round reciprocal rsqrt sigmoid isnan isinf isfinite signbit logical_and
    logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not where abs
    divide
"""

TABLE: dict[str, Lower] = {
    **{name: plain(getattr(torch, name)) for name in _SAME.split()},
    "maximum": _extreme(torch.maximum),
    "minimum": _extreme(torch.minimum),
    "equal": plain(torch.eq),
    "not_equal": plain(torch.ne),
    "less": _ordered(torch.lt),
    "less_equal": _ordered(torch.le),
    "greater": _ordered(torch.gt),
    "greater_equal": _ordered(torch.ge),
    "floor_divide": _by(torch.floor_divide, is_quotient=True),
    "truncate_divide": _by(lambda x, y: torch.div(x, y, rounding_mode="trunc"), is_quotient=True),
    "remainder": _by(torch.remainder, is_quotient=False),
    "fmod": _by(torch.fmod, is_quotient=False),
    "power": _power,
    "sign": _sign,
    "cbrt": plain(_cbrt),
    "conj": plain(torch.conj_physical),
    "real": plain(torch.real),
    "imag": plain(torch.imag),
    "complex": plain(lambda real, imag: torch.complex(*torch.broadcast_tensors(real, imag))),
    "shift_left": _shift(torch.bitwise_left_shift, fills=False),
    "shift_right": _shift_right,
    "cast": _cast,
    "bitcast": _bitcast,
}
