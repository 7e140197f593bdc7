"""Matrix products, which the engine computes in float32: integers only if that is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewire.backends.openvino.api import ops
from fusewire.backends.openvino.lowering.entry import (
    Entry,
    Lower,
    Ov,
    Pair,
    Table,
    const,
    convert,
    elementwise,
    ints,
    number,
    rank_of,
    wrapped,
)
from fusewire.backends.openvino.lowering.movement import attr, reshaped, turned_axes
from fusewire.ir.dims import Dim, size
from fusewire.ir.graph import Node
from fusewire.ir.types import TensorType

# Sums of products below this are exact in float32.
EXACT = 2**24


def matmul(x: Ov, y: Ov) -> Ov:
    """Multiply stacks of matrices."""
    return ops.matmul(x, y, False, False)


def exact_terms(node: Node, terms: Dim) -> str | None:
    """Refuse integers whose sums of products may not be exact in float32."""
    of = node.operands[0].tensor.dtype
    if not of.is_integer:
        return None
    largest = max(map(abs, of.range))
    if isinstance(terms, int) and largest * largest * max(terms, 1) <= EXACT:
        return None
    return f"OpenVINO multiplies {of} in float32, where sums of {terms} products lose digits."


def on_floats(product: Lower) -> Lower:
    """Compute small integers in float32, which holds their sums exactly, and wrap around."""

    def lower(s: Any, node: Node, *xs: Ov) -> Ov:
        of = node.outputs[0].tensor.dtype
        if not of.is_integer:
            return product(s, node, *xs)
        found = product(s, node, *(None if x is None else convert(ints(x), "f32") for x in xs))
        return wrapped(convert(found, "i32"), of)

    return lower


def of_pairs(product: Lower) -> Lower:
    """Multiply complex numbers by four products of real ones."""

    def lower(s: Any, node: Node, x: Pair, y: Pair) -> Pair:
        parts = [product(s, node, a, b) for a in x for b in y]
        return ops.subtract(parts[0], parts[3]), ops.add(parts[1], parts[2])

    return lower


def _matmul_terms(node: Node) -> str | None:
    return exact_terms(node, node.operands[0].tensor.shape[-1])


def _grouped(s: Any, x: Ov, of: TensorType, groups: Sequence[Sequence[int]], batch: int) -> Ov:
    """Bring axes into groups: the batch axes stay apart, each other group becomes one axis."""
    if not batch and not groups[0]:
        # A vector is given as one: as a matrix of one row the engine crashes on a chain of them.
        groups = groups[1:]
    order = [axis for group in groups for axis in group]
    x = turned_axes(x, of.shape, order)
    if all(len(group) == 1 for group in groups[batch:]):
        return x
    dims = [of.shape[axis] for group in groups[:batch] for axis in group]
    joined = [size([of.shape[axis] for axis in group]) for group in groups[batch:]]
    return reshaped(s, x, [of.shape[axis] for axis in order], [*dims, *joined])


def _dot_general(s: Any, node: Node, x: Ov, y: Ov) -> Ov:
    (a, b), contract, batch = node.operands, attr(node, "contract"), attr(node, "batch")
    sides = []
    for value, summed, shared in zip((a, b), contract, batch, strict=True):
        rank = value.tensor.rank
        summed, shared = [i % rank for i in summed], [i % rank for i in shared]
        sides.append((shared, [i for i in range(rank) if i not in (*summed, *shared)], summed))
    (left_batch, left_free, left_sum), (right_batch, right_free, right_sum) = sides
    batches = len(left_batch)
    left = _grouped(s, x, a.tensor, [*([i] for i in left_batch), left_free, left_sum], batches)
    # Rows of the right operand stay rows where they are: the engine multiplies by them transposed.
    right = _grouped(s, y, b.tensor, [*([i] for i in right_batch), right_free, right_sum], batches)
    product = ops.matmul(left, right, False, True)
    if len(left_free) == len(right_free) == 1 or (
        not batches and max(len(left_free), len(right_free)) <= 1
    ):
        return product
    return ops.reshape(product, s.shape(node.outputs[0].tensor.shape), False)


def _dot_terms(node: Node) -> str | None:
    a, axes = node.operands[0].tensor, attr(node, "contract")[0]
    return exact_terms(node, size([a.shape[axis] for axis in axes]))


def _linear(s: Any, node: Node, x: Ov, w: Ov, bias: Ov | None) -> Ov:
    product = ops.matmul(x, w, False, True)
    return product if bias is None else ops.add(product, bias)


def _gemm(s: Any, node: Node, a: Ov, b: Ov, c: Ov | None) -> Ov:
    product = ops.matmul(a, b, bool(attr(node, "transpose_a")), bool(attr(node, "transpose_b")))
    alpha, beta = attr(node, "alpha"), attr(node, "beta")
    if alpha != 1.0:
        product = ops.multiply(product, number(alpha, product))
    if c is None or beta == 0.0:
        return product
    return ops.add(product, c if beta == 1.0 else ops.multiply(c, number(beta, c)))


def codes(x: Ov, zero: Ov | None, axis: int | None = None) -> Ov:
    """Read codes of 8 bits, less their zero, as float32; a list of zeros lies along an axis."""
    found = convert(ints(x), "f32")
    if zero is None:
        return found
    offset = convert(ints(zero), "f32")
    if rank_of(zero) == 1 and axis is not None:
        column = [-1 if i == axis % rank_of(x) else 1 for i in range(rank_of(x))]
        offset = ops.reshape(offset, const(column), False)
    return ops.subtract(found, offset)


def split_product(product: Any, x: Ov, y: Ov, terms: int) -> Ov:
    """Multiply codes exactly: the right ones in two parts where one would lose digits."""
    if 255 * 255 * terms <= EXACT:
        return convert(product(x, y), "i32")
    upper = ops.floor(ops.multiply(y, const(1 / 16, "f32")))
    lower = ops.subtract(y, ops.multiply(upper, const(16.0, "f32")))
    parts = [convert(product(x, part), "i32") for part in (upper, lower)]
    return ops.add(ops.bitwise_left_shift(parts[0], const(4)), parts[1])


def refuses_codes(terms: Dim) -> str | None:
    """Refuse sums of products of codes that no two parts make exact."""
    if isinstance(terms, int) and 255 * 16 * terms <= EXACT:
        return None
    return f"OpenVINO multiplies codes in float32, where sums of {terms} products lose digits."


def _matmul_integer(s: Any, node: Node, a: Ov, b: Ov, a_zero: Ov | None, b_zero: Ov | None) -> Ov:
    terms = node.operands[0].tensor.shape[-1]
    assert isinstance(terms, int), "or refused"
    left, right = codes(a, a_zero, -2), codes(b, b_zero, -1)
    return split_product(matmul, left, right, terms)


def _refuses_integer(node: Node) -> str | None:
    return refuses_codes(node.operands[0].tensor.shape[-1])


_MATMUL = on_floats(lambda s, node, x, y: matmul(x, y))
TABLE: Table = {
    "matmul": Entry(_MATMUL, "fi", of_pairs(_MATMUL), refuses=_matmul_terms),
    "dot_general": Entry(on_floats(_dot_general), "fi", of_pairs(_dot_general), refuses=_dot_terms),
    "linear": Entry(_linear),
    "gemm": Entry(_gemm),
    "inverse": Entry(elementwise(lambda x: ops.inverse(x, False))),
    "matmul_integer": Entry(_matmul_integer, "i", refuses=_refuses_integer),
}
