"""Matrix products, what can be written as one, and einsum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from fusewire import dtypes
from fusewire.errors import FormatError
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast
from fusewire.onnx.ops.rows import OnnxRow, readers, writers
from fusewire.onnx.ops.writing import attrs_of, number, operand
from fusewire.ops import contraction, elementwise, equation, linalg, movement
from fusewire.ops.inference import axis_of, broadcast_shapes

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

# Axes of the left and of the right operand.
Axes: TypeAlias = list[list[int]]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _zeros(e: Emitter, node: Node, like: Ref) -> Ref:
    """Give sums of no products: engines do not all clear what they then leave alone."""
    return e("Expand", number(e, 0, like), e.shape(node.outputs[0].tensor.shape))


def _read_gemm(call: OnnxCall) -> Converted:
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


def _write_matmul(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Multiply stacks of matrices."""
    if operand(node, 0).tensor.shape[-1] == 0:
        return _zeros(e, node, a)
    return e("MatMul", a, b)


def _write_gemm(e: Emitter, node: Node, a: Ref, b: Ref, c: Ref | None) -> Ref:
    """Write a Gemm; where beta is 0, c is not read, and engines are not given it."""
    attrs = attrs_of(node)
    if e.target.is_cautious and not attrs["beta"]:
        c = None
    return e(
        "Gemm",
        a,
        b,
        c,
        alpha=attrs["alpha"],
        beta=attrs["beta"],
        transA=int(attrs["transpose_a"]),
        transB=int(attrs["transpose_b"]),
    )


def _write_dot_general(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Multiply as matrices where axes allow it, else as an equation."""
    if operand(node, 0).tensor.size == 0:
        return _zeros(e, node, a)
    ranks = [operand(node, i).tensor.rank for i in (0, 1)]
    attrs = attrs_of(node)
    summed = [[axis_of(n, ranks[i]) for n in attrs["contract"][i]] for i in (0, 1)]
    shared = [[axis_of(n, ranks[i]) for n in attrs["batch"][i]] for i in (0, 1)]
    free = [[n for n in range(ranks[i]) if n not in summed[i] + shared[i]] for i in (0, 1)]
    # The left operand may have more free axes when there is no batch: they are rows.
    rows = len(free[0]) == 1 if shared[0] else bool(free[0])
    if len(summed[0]) == 1 and len(free[1]) == 1 and rows:
        left = _ordered(e, a, shared[0] + free[0] + summed[0])
        right = _ordered(e, b, shared[1] + summed[1] + free[1])
        return e("MatMul", left, right)
    return e("Einsum", a, b, equation=_equation(ranks[0], summed, shared, free))


def _equation(rank: int, summed: Axes, shared: Axes, free: Axes) -> str:
    """Spell a product over paired axes with a letter an axis."""
    letters = iter(_LETTERS)
    names = {n: next(letters) for n in range(rank)}
    paired = (names[n] for n in summed[0] + shared[0])
    others = dict(zip(summed[1] + shared[1], paired, strict=True))
    others |= {n: next(letters) for n in free[1]}
    left, right = ("".join(of[n] for n in range(len(of))) for of in (names, others))
    made = [names[n] for n in shared[0] + free[0]] + [others[n] for n in free[1]]
    return f"{left},{right}->{''.join(made)}"


def _ordered(e: Emitter, x: Ref, perm: list[int]) -> Ref:
    return x if perm == sorted(perm) else e("Transpose", x, perm=perm)


def _write_linear(e: Emitter, node: Node, x: Ref, w: Ref, bias: Ref | None) -> Ref:
    """Write a dense layer: one Gemm for a matrix, a product and a sum for a stack."""
    if operand(node, 0).tensor.rank == 2:
        return e("Gemm", x, w, bias, transB=1)
    product = e("MatMul", x, e("Transpose", w, perm=[1, 0]))
    return product if bias is None else e("Add", product, bias)


def _read_einsum(call: OnnxCall) -> Converted:
    return equation.einsum(*call.rest, equation=call.needed("equation"))


def _write_einsum(e: Emitter, node: Node, *xs: Ref) -> Ref:
    """Write an equation as it is."""
    said = attrs_of(node)["equation"]
    if xs[0].dtype.is_integer:
        e.caution("Engines add up integers in float64 where an equation only sums.")
    sizes: dict[str, Dim] = {}
    terms = said.replace(" ", "").split("->")[0].split(",")
    for letters, value in zip(terms, node.operands, strict=True):
        if "." in letters:
            raise FormatError("ONNX's Einsum does not broadcast what an ellipsis stands for.")
        for letter, dim in zip(letters, value.tensor.shape, strict=True):
            if sizes.setdefault(letter, dim) != dim:
                raise FormatError(f"ONNX's Einsum does not broadcast {letter}.")
    return e("Einsum", *xs, equation=said)


ROWS = (
    OnnxRow(linalg.det, "Det"),
    OnnxRow(contraction.matmul, "MatMul", writer=_write_matmul),
    OnnxRow(contraction.gemm, "Gemm", reader=_read_gemm, writer=_write_gemm),
    OnnxRow(equation.einsum, "Einsum", reader=_read_einsum, writer=_write_einsum),
)
READERS: Mapping[str, Read] = readers(ROWS)
WRITERS: Mapping[str, Write] = {
    **writers(ROWS),
    "dot_general": _write_dot_general,
    "linear": _write_linear,
}
