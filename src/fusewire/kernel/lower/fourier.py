"""Fourier transforms as sums of products with a table of roots of unity.

Quadratic in the length, and so only for short ones: the frames of a spectrogram, not whole signals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import int32
from fusewire.ir.graph import Node, Value
from fusewire.kernel.form import Guard, KernelBuffer
from fusewire.kernel.index import Index
from fusewire.kernel.lower.body import Body, Element, Indices
from fusewire.kernel.lower.shapes import axis_of, replaced, shape_of

LONGEST = 2048
OPS = ("fft", "ifft", "rfft", "irfft")


def length_of(node: Node) -> int:
    """Count the elements that a transform is over."""
    (x,) = node.operands
    axis = axis_of(node, x.tensor.rank)
    given = node.attrs["length"]
    if isinstance(given, int):
        return given
    dim = shape_of(x)[axis]
    return 2 * (dim - 1) if node.op == "irfft" else dim


def too_long(node: Node) -> str | None:
    """Refuse a transform that a sum over all elements for each is no way to compute."""
    if length_of(node) <= LONGEST:
        return None
    return (
        f"{node.op} sums over all elements for each one here, and {length_of(node):,} are more "
        f"than {LONGEST:,}."
    )


def _angle(body: Body, left: Index, right: Index, length: int) -> Index:
    """Give the place in a table of roots of the product of two indices."""
    product = body.compute("multiply", body.place(left), body.place(right))
    rest = body.compute("remainder", product, body.literal(length, int32))
    return body.held(rest, length)


def _roots(
    body: Body, length: int, turn: int, of: np.dtype[Any]
) -> tuple[KernelBuffer, KernelBuffer]:
    """Keep cosines and sines of all angles, with zeros that are zeros."""
    angles = turn * 2 * np.pi * np.arange(length) / length
    parts = (np.where(np.abs(x) < 1e-9, 0, x) for x in (np.cos(angles), np.sin(angles)))
    cosines, sines = (body.memory.table(x.astype(of)) for x in parts)
    return cosines, sines


def _times(body: Body, part: str, root: str) -> str:
    """Multiply; where a root is 0 nothing is added, not even of what is infinite, as in NumPy."""
    zero = body.literal(0, body.dtype(root))
    is_none = body.compute("equal", root, zero)
    return body.compute("where", is_none, zero, body.compute("multiply", part, root))


def _transform(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    axis, length = axis_of(node, len(index)), length_of(node)
    of = value.tensor.dtype.numpy.type(0).real.dtype
    tables = _roots(body, length, 1 if node.op == "ifft" else -1, of)
    is_complex = x.tensor.dtype.kind == "complex"

    def make(inner: Indices) -> list[str]:
        part = body.element(x, replaced(index, axis, inner[0]), guard)
        at = _angle(body, index[axis], inner[0], length)
        cosine, sine = (body.load(table, (at,)) for table in tables)
        if not is_complex:
            part = body.cast(part, body.dtype(cosine))
            return [body.compute("complex", *(_times(body, part, x) for x in (cosine, sine)))]
        real, imag = body.compute("real", part), body.compute("imag", part)
        along = body.compute("subtract", _times(body, real, cosine), _times(body, imag, sine))
        across = body.compute("add", _times(body, real, sine), _times(body, imag, cosine))
        return [body.compute("complex", along, across)]

    needs = (*index, *(bound.index for bound in guard))
    found = body.fold("add", [min(length, shape_of(x)[axis])], needs, make)[0]
    if node.op != "ifft":
        return found
    parts = body.compute("real", found), body.compute("imag", found)
    share = body.literal(1 / length, body.dtype(parts[0]))
    return body.compute("complex", *(body.compute("multiply", x, share) for x in parts))


def _real_inverse(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    """Sum the real parts: every frequency but the first and the middle one stands for two."""
    node = value.node
    assert node is not None
    (x,) = node.operands
    axis, length = axis_of(node, len(index)), length_of(node)
    of = value.tensor.dtype.numpy
    count = min(length // 2 + 1, shape_of(x)[axis])
    weights = np.full(count, 2.0 / length)
    weights[[0, *([length // 2] if length % 2 == 0 and length // 2 < count else [])]] = 1.0 / length
    tables, scale = _roots(body, length, 1, of), body.memory.table(weights.astype(of))

    def make(inner: Indices) -> list[str]:
        part = body.element(x, replaced(index, axis, inner[0]), guard)
        at = _angle(body, index[axis], inner[0], length)
        cosine, sine = (body.load(table, (at,)) for table in tables)
        real = _times(body, body.compute("real", part), cosine)
        imag = _times(body, body.compute("imag", part), sine)
        weight = body.load(scale, inner)
        return [body.compute("multiply", body.compute("subtract", real, imag), weight)]

    needs = (*index, *(bound.index for bound in guard))
    return body.fold("add", [count], needs, make)[0]


ELEMENTS: dict[str, Element] = {
    **dict.fromkeys(("fft", "ifft", "rfft"), _transform),
    "irfft": _real_inverse,
}
