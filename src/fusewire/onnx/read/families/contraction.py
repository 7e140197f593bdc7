"""Products of matrices, and equations over axes."""

from __future__ import annotations

from collections.abc import Mapping

from fusewire import dtypes
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import contraction, elementwise, equation, linalg, movement
from fusewire.ops.inference import broadcast_shapes


def _gemm(call: OnnxCall) -> Converted:
    a, b, c = call[0], call[1], call.get(2)
    if a.tensor.rank != 2 or b.tensor.rank != 2:
        call.refuse(f"it multiplies matrices, found {a.type} and {b.type}. Use MatMul.")
    alpha, beta = (call.attr(name, 1.0) for name in ("alpha", "beta"))
    turned = [call.flag(name) for name in ("transA", "transB")]
    of = a.tensor.dtype
    if not of.is_float and (alpha, beta) != (1.0, 1.0):
        left, right = (cast(v, dtypes.float64) for v in (a, b))
        added = None if c is None else cast(c, dtypes.float64)
        return cast(_product(left, right, added, alpha, beta, turned), of)
    return _product(a, b, c, alpha, beta, turned)


def _product(
    a: Value, b: Value, c: Value | None, alpha: float, beta: float, turned: list[bool]
) -> Value:
    rows = a.tensor.shape[1 if turned[0] else 0], b.tensor.shape[0 if turned[1] else 1]
    fits = c is None or broadcast_shapes(rows, c.tensor.shape) == rows
    if fits and a.tensor.dtype.is_float:
        return contraction.gemm(
            a, b, c, alpha=alpha, beta=beta, transpose_a=turned[0], transpose_b=turned[1]
        )
    # Integers, and sizes of which only the run can tell that they fit.
    left, right = (
        movement.transpose(v, perm=(1, 0)) if turn else v
        for v, turn in zip((a, b), turned, strict=True)
    )
    found = contraction.matmul(left, right)
    found = found if alpha == 1.0 else elementwise.multiply(found, alpha)
    if c is None:
        return found
    return elementwise.add(found, c if beta == 1.0 else elementwise.multiply(c, beta))


TABLE: Mapping[str, Read] = {
    "MatMul": lambda call: contraction.matmul(call[0], call[1]),
    "Gemm": _gemm,
    "Einsum": lambda call: equation.einsum(*call.rest, equation=call.needed("equation")),
    "Det": lambda call: linalg.det(call[0]),
}
