"""Fourier transforms as sums of products with a table of roots of unity.

Quadratic in the length, and so only for short ones: the frames of a spectrogram, not whole signals.
"""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import int32
from fusewire.ir.graph import Node, Value
from fusewire.kernel.build.body import Body, Element
from fusewire.kernel.build.scope import Indices
from fusewire.kernel.build.shapes import axis_of, replaced, shape_of
from fusewire.kernel.form import Guard
from fusewire.kernel.index import Index

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


def _transform(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    node = value.node
    assert node is not None
    (x,) = node.operands
    axis, length = axis_of(node, len(index)), length_of(node)
    turn = 2j if node.op == "ifft" else -2j
    roots = np.exp(turn * np.pi * np.arange(length) / length).astype(value.tensor.dtype.numpy)
    table = body.memory.table(roots if node.op != "ifft" else roots / roots.dtype.type(length))

    def make(inner: Indices) -> list[str]:
        part = body.element(x, replaced(index, axis, inner[0]), guard)
        root = body.load(table, (_angle(body, index[axis], inner[0], length),))
        return [body.compute("multiply", body.cast(part, value.tensor.dtype), root)]

    needs = (*index, *(bound.index for bound in guard))
    return body.fold("add", [min(length, shape_of(x)[axis])], needs, make)[0]


def _real_inverse(body: Body, value: Value, index: Indices, guard: Guard) -> str:
    """Sum the real parts: every frequency but the first and the middle one stands for two."""
    node = value.node
    assert node is not None
    (x,) = node.operands
    axis, length = axis_of(node, len(index)), length_of(node)
    of = value.tensor.dtype.numpy
    count = min(length // 2 + 1, shape_of(x)[axis])
    angles = 2 * np.pi * np.arange(length) / length
    weights = np.full(count, 2.0 / length)
    weights[[0, *([length // 2] if length % 2 == 0 and length // 2 < count else [])]] = 1.0 / length
    tables = [body.memory.table(t.astype(of)) for t in (np.cos(angles), np.sin(angles), weights)]

    def make(inner: Indices) -> list[str]:
        part = body.element(x, replaced(index, axis, inner[0]), guard)
        at = _angle(body, index[axis], inner[0], length)
        cosine, sine = (body.load(table, (at,)) for table in tables[:2])
        real = body.compute("multiply", body.compute("real", part), cosine)
        imag = body.compute("multiply", body.compute("imag", part), sine)
        weight = body.load(tables[2], inner)
        return [body.compute("multiply", body.compute("subtract", real, imag), weight)]

    needs = (*index, *(bound.index for bound in guard))
    return body.fold("add", [count], needs, make)[0]


ELEMENTS: dict[str, Element] = {
    **dict.fromkeys(("fft", "ifft", "rfft"), _transform),
    "irfft": _real_inverse,
}
