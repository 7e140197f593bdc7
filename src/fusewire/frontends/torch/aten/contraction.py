"""Products of matrices."""

from __future__ import annotations

from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops import contraction, elementwise
from fusewire.ops.equation import einsum
from fusewire.ops.movement import expand_dims, reshape, transpose
from fusewire.ops.reduction import reduce_sum

ROWS = Rows()


@ROWS.add("mm", "bmm", "matmul", "mv", "dot", ops="matmul")
def _matmul(call: AtenCall, x: Value, y: Value, *rest: Any) -> Value:
    return contraction.matmul(x, y)


@ROWS.add("vdot", ops="matmul")
def _vdot(call: AtenCall, x: Value, y: Value) -> Value:
    return contraction.matmul(elementwise.conj(x) if x.tensor.dtype.is_complex else x, y)


@ROWS.add("linear", ops="linear")
def _linear(call: AtenCall, x: Value, weight: Value, bias: Value | None = None) -> Value:
    is_row = weight.tensor.rank == 1
    if is_row or not x.tensor.dtype.is_float:
        turned = weight if is_row else transpose(weight, perm=(1, 0))
        product = contraction.matmul(x, turned)
        return product if bias is None else elementwise.add(product, bias)
    return contraction.linear(x, weight, bias)


@ROWS.add("bilinear", ops="matmul, multiply, reduce_sum")
def _bilinear(call: AtenCall, x: Value, y: Value, weight: Value, bias: Value | None) -> Value:
    """Multiply x, a matrix for each output, and y."""
    outputs, left, right = weight.tensor.shape
    turned = reshape(transpose(weight, perm=(1, 0, 2)), shape=(left, outputs * right))
    rows = reshape(contraction.matmul(x, turned), shape=(*x.tensor.shape[:-1], outputs, right))
    wide = expand_dims(y, axes=(y.tensor.rank - 1,))
    product = reduce_sum(elementwise.multiply(rows, wide), axes=(rows.tensor.rank - 1,))
    return product if bias is None else elementwise.add(product, bias)


@ROWS.add("addmm", "baddbmm", "addmv", "addbmm", ops="matmul, add")
def _addmm(call: AtenCall, c: Value, a: Value, b: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    product = contraction.matmul(a, b)
    if call.name.startswith("aten.addbmm"):
        product = reduce_sum(product, axes=(0,))
    if alpha != 1:
        product = elementwise.multiply(product, call.value(alpha))
    if beta == 0:
        return product
    scaled = c if beta == 1 else elementwise.multiply(c, call.value(beta))
    return elementwise.add(product, scaled)


@ROWS.add("addr", ops="outer, add")
def _addr(call: AtenCall, c: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    from fusewire.ops.linalg import outer

    product = outer(*call.values(x, y))
    if alpha != 1:
        product = elementwise.multiply(product, call.value(alpha))
    if beta == 0:
        return product
    added = call.value(c)
    return elementwise.add(
        product, added if beta == 1 else elementwise.multiply(added, call.value(beta))
    )


@ROWS.add("einsum", ops="einsum")
def _einsum(call: AtenCall, equation: str, xs: list[Value], path: Any = None) -> Value:
    return einsum(*xs, equation=equation)


@ROWS.add("outer", "ger", ops="outer")
def _outer(call: AtenCall, x: Value, y: Value) -> Value:
    from fusewire.ops.linalg import outer

    return outer(*call.values(x, y))
