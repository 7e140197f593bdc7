"""Products of matrices and what is written as one."""

from __future__ import annotations

from typing import Any

from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter, Ref
from fusewire.formats.onnx.families.pieces import number, operand, plain
from fusewire.ir.graph import Node
from fusewire.ops.inference import axis_of

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def dot_general(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Multiply as matrices where axes allow it, else as an equation."""
    ranks = [operand(node, i).tensor.rank for i in (0, 1)]
    contract: Any = node.attrs["contract"]
    batch: Any = node.attrs["batch"]
    summed = [[axis_of(n, ranks[i]) for n in contract[i]] for i in (0, 1)]
    shared = [[axis_of(n, ranks[i]) for n in batch[i]] for i in (0, 1)]
    free = [
        [n for n in range(ranks[i]) if n not in summed[i] + shared[i]] for i in (0, 1)
    ]
    depth = len(shared[0])
    if len(summed[0]) == 1 and len(free[1]) == 1 and (len(free[0]) == 1 or not depth and free[0]):
        # The left operand may have more free axes when there is no batch: they are rows.
        left = _ordered(e, a, shared[0] + free[0] + summed[0])
        right = _ordered(e, b, shared[1] + summed[1] + free[1])
        return e("MatMul", left, right)
    letters = iter(_LETTERS)
    names = {n: next(letters) for n in range(ranks[0])}
    others = dict(zip(summed[1] + shared[1], (names[n] for n in summed[0] + shared[0]), strict=True))
    others |= {n: next(letters) for n in free[1]}
    left, right = ("".join(of[n] for n in range(len(of))) for of in (names, others))
    made = [names[n] for n in shared[0] + free[0]] + [others[n] for n in free[1]]
    return e("Einsum", a, b, equation=f"{left},{right}->{''.join(made)}")


def _ordered(e: Emitter, x: Ref, perm: list[int]) -> Ref:
    return x if perm == sorted(perm) else e("Transpose", x, perm=perm)


def linear(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Write a dense layer: one Gemm for a matrix, a product and a sum for a stack."""
    if operand(node, 0).tensor.rank == 2:
        return e("Gemm", x, w, bias, transB=1)
    product = e("MatMul", x, e("Transpose", w, perm=[1, 0]))
    return product if bias is None else e("Add", product, bias)


def gemm(e: Emitter, node: Node, a: Ref, b: Ref, c: Ref | None) -> Ref:
    """Write a Gemm; where beta is 0, c is not read."""
    alpha, beta = node.attrs["alpha"], node.attrs["beta"]
    assert isinstance(alpha, float)
    assert isinstance(beta, float)
    flags = {
        "transA": int(bool(node.attrs["transpose_a"])),
        "transB": int(bool(node.attrs["transpose_b"])),
    }
    return e("Gemm", a, b, c if beta else None, alpha=alpha, beta=beta, **flags)


def einsum(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Write an equation as it is."""
    equation = node.attrs["equation"]
    assert isinstance(equation, str)
    if "..." in equation:
        raise FormatError("Engines do not broadcast what an ellipsis stands for.")
    return e("Einsum", *xs, equation=equation)


WRITERS = {
    "dot_general": dot_general,
    "matmul": plain("MatMul"),
    "linear": linear,
    "gemm": gemm,
    "einsum": einsum,
}
