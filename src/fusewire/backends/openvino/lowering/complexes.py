"""Complex numbers as pairs of float32, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Pair,
    Table,
    concat,
    const,
    dim_of,
    number,
    rank_of,
    select,
)
from fusewire.backends.openvino.lowering.floats import atan2, exp, maximum, minimum, quotient
from fusewire.backends.openvino.lowering.movement import attr
from fusewire.backends.openvino.lowering.padding import filled
from fusewire.ir.dims import Dim, floordiv
from fusewire.ir.graph import Node


def of_pairs(function: Callable[..., Any]) -> Lower:
    """Lower to a function of the operands alone."""
    return lambda s, node, *xs: function(*xs)


def each(function: Callable[..., Ov]) -> Lower:
    """Treat real and imaginary parts alike."""
    return lambda s, node, *xs: tuple(function(*parts) for parts in zip(*xs, strict=True))


def _product(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return (
        ops.subtract(ops.multiply(a, c), ops.multiply(b, d)),
        ops.add(ops.multiply(a, d), ops.multiply(b, c)),
    )


def _quotient(x: Pair, y: Pair) -> Pair:
    """Divide by Smith's method: nothing is squared, so nothing overflows on the way."""
    (a, b), (c, d) = x, y
    flat = ops.less_equal(ops.abs(d), ops.abs(c))
    long, short = select(flat, c, d), select(flat, d, c)
    ratio = quotient(short, long)
    below = ops.add(long, ops.multiply(short, ratio))
    first, second = select(flat, a, b), select(flat, b, a)
    real = quotient(ops.add(first, ops.multiply(second, ratio)), below)
    crossed = ops.subtract(second, ops.multiply(first, ratio))
    imaginary = quotient(select(flat, crossed, ops.negative(crossed)), below)
    return real, imaginary


def _reciprocal(x: Pair) -> Pair:
    return _quotient((number(1.0, x[0]), number(0.0, x[0])), x)


def _absolute(x: Pair) -> Ov:
    sizes = ops.abs(x[0]), ops.abs(x[1])
    long, short = maximum(*sizes), minimum(*sizes)
    ratio = quotient(short, long)
    slanted = ops.multiply(long, ops.sqrt(ops.add(ops.multiply(ratio, ratio), number(1.0, long))))
    infinite = ops.logical_or(ops.is_inf(x[0]), ops.is_inf(x[1]))
    flat = ops.logical_or(ops.equal(long, number(0.0, long)), infinite)
    return select(flat, select(infinite, number(np.inf, long), long), slanted)


def _exp(x: Pair) -> Pair:
    size = exp(x[0])
    return ops.multiply(size, ops.cos(x[1])), ops.multiply(size, ops.sin(x[1]))


def _log(x: Pair) -> Pair:
    return ops.log(_absolute(x)), atan2(x[1], x[0])


def _sin(x: Pair) -> Pair:
    return (
        ops.multiply(ops.sin(x[0]), ops.cosh(x[1])),
        ops.multiply(ops.cos(x[0]), ops.sinh(x[1])),
    )


def _cos(x: Pair) -> Pair:
    return (
        ops.multiply(ops.cos(x[0]), ops.cosh(x[1])),
        ops.negative(ops.multiply(ops.sin(x[0]), ops.sinh(x[1]))),
    )


def _complex(s: Any, node: Node, real: Ov, imaginary: Ov) -> Pair:
    shape = s.shape(node.outputs[0].tensor.shape)
    return ops.broadcast(real, shape), ops.broadcast(imaginary, shape)


def _with_complex(**functions: Lower) -> Table:
    return {name: Entry(_never, "", function) for name, function in functions.items()}


def _never(*_: Any) -> Any:
    raise AssertionError("only complex numbers have it")


def _joined(x: Pair) -> Ov:
    return concat([ops.unsqueeze(part, const(-1)) for part in x], -1)


def _apart(x: Ov) -> Pair:
    real, imaginary = ops.split(x, const(-1), 2).outputs()
    return ops.squeeze(real, const([-1])), ops.squeeze(imaginary, const([-1]))


def _fitted(s: Any, x: Ov, axis: int, length: Dim) -> Ov:
    """Cut or pad an axis: the engine's transforms do not, or not all of them."""
    rank = rank_of(x)
    missing = ops.subtract(s.size(length), dim_of(x, axis))
    before = const([0] * rank)
    after = ops.multiply(
        ops.broadcast(missing, const([rank])), const([int(i == axis) for i in range(rank)])
    )
    return filled(x, before, after, None)


def _fourier(name: str) -> Lower:
    """Transform along one axis."""
    transform = getattr(ops, name)

    def lower(s: Any, node: Node, x: Any) -> Any:
        shape = node.operands[0].tensor.shape
        axis = int(attr(node, "axis")) % len(shape)
        length = attr(node, "length")
        if length is None:
            length = (shape[axis] - 1) * 2 if name == "irdft" else shape[axis]
        given = _joined(x) if isinstance(x, tuple) else x
        taken = floordiv(length, 2) + 1 if name == "irdft" else length
        if taken != shape[axis]:
            given = _fitted(s, given, axis, taken)
        found = transform(given, const([axis]), s.size(length))
        return found if name == "irdft" else _apart(found)

    return lower


# What numbers of any kind have, for those that are complex.
PAIRED: dict[str, Lower] = {
    "add": each(ops.add),
    "subtract": each(ops.subtract),
    "negative": each(ops.negative),
    "multiply": of_pairs(_product),
    "divide": of_pairs(_quotient),
    "square": of_pairs(lambda x: _product(x, x)),
    "reciprocal": of_pairs(_reciprocal),
    "abs": of_pairs(_absolute),
    "exp": of_pairs(_exp),
    "log": of_pairs(_log),
    "sin": of_pairs(_sin),
    "cos": of_pairs(_cos),
}
_COMPLEX = _with_complex(
    conj=of_pairs(lambda x: (x[0], ops.negative(x[1]))),
    real=of_pairs(lambda x: x[0]),
    imag=of_pairs(lambda x: x[1]),
    fft=_fourier("dft"),
    ifft=_fourier("idft"),
    irfft=_fourier("irdft"),
)
TABLE: Table = {
    **_COMPLEX,
    "complex": Entry(_complex, complex=_complex),
    "rfft": Entry(_fourier("rdft"), complex=_fourier("rdft")),
}
