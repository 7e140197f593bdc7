"""Products and convolutions of codes: summed exactly in int32, then scaled where asked."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import FLOATS, DType, float32, int4, int8, int32, uint4, uint8
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType, tensor_of
from fusewire.ops.contraction import NEEDS_MATRIX, matmul, matmul_samples
from fusewire.ops.conversion import cast
from fusewire.ops.convolution import NEEDS_SPATIAL, conv, conv_samples
from fusewire.ops.declare import CODES, EXACT, Family, Trait
from fusewire.ops.elementwise import add, divide, multiply
from fusewire.ops.inference import broadcast_shapes, require, require_dims, same_dtype
from fusewire.ops.movement import expand_dims, reshape, transpose
from fusewire.ops.quantization import centred, dequantize, encode, require_scales
from fusewire.ops.reduction import widened
from fusewire.ops.sample import Sample, bad, draw, sample
from fusewire.ops.window import Padding, Sizes

FAMILY = Family("quantized")

BYTES = (int8, uint8, int4, uint4)


def _sum_type(a: TensorType, b: TensorType, a_zero: Any, b_zero: Any) -> None:
    """Refuse what is not made of bytes."""
    require(a.dtype in BYTES and b.dtype in BYTES, f"codes must be bytes, found {a} and {b}.")
    for codes, zero in ((a, a_zero), (b, b_zero)):
        if zero is not None:
            same_dtype(codes, zero)


def _matmul_integer_type(
    a: TensorType,
    b: TensorType,
    a_zero: TensorType | None = None,
    b_zero: TensorType | None = None,
) -> TensorType:
    _sum_type(a, b, a_zero, b_zero)
    if a_zero is not None and a_zero.rank == 1:
        require(a.rank > 1, "zero points per row need a matrix on the left.")
        a_zero = a_zero.with_shape((*a_zero.shape, 1))
    for codes, zero in ((a, a_zero), (b, b_zero)):
        shape = codes.shape if zero is None else broadcast_shapes(codes.shape, zero.shape)
        require(shape == codes.shape, f"{zero} does not broadcast to its operand {codes}.")
    return tensor_of(matmul.infer((a.with_dtype(int32), b.with_dtype(int32)), {})[0])


def _matmul_integer(a: Value, b: Value, a_zero: Value | None, b_zero: Value | None) -> Value:
    if a_zero is not None and a_zero.tensor.rank == 1:
        a_zero = expand_dims(a_zero, axes=(1,))
    return matmul(centred(a, a_zero), centred(b, b_zero))


matmul_integer = FAMILY.declare(
    "matmul_integer",
    _matmul_integer_type,
    doc="Multiply matrices of codes minus zero points (per tensor, row or column) in int32.",
    expand=_matmul_integer,
    dtypes=BYTES,
    traits=(Trait.CONTRACTION,),
    tolerance=EXACT,
    samples=lambda: [
        *matmul_samples(),
        sample(_codes(3, 4), _codes(4, 5, dtype_=int8), _codes(), _codes(dtype_=int8)),
        sample(_codes(3, 4), _codes(4, 5), _codes(3), _codes(5)),
        sample(_codes(2, 3, 4), _codes(2, 4, 5), _codes(2, 3, 1), _codes(2, 1, 5)),
    ],
    refuses=lambda: [
        bad("codes must be bytes, found int8[4] and bool[4]", "[4]", "bool[4]"),
        bad("zero points per row need a matrix on the left", "[4]", "[4]", "[4]"),
        bad("int8[5] does not broadcast to its operand int8[]", "[3, 4]", "[]", "[3]", "[5]"),
        bad(
            "shapes [2, 4, 3] and [4] do not broadcast: aligned at the",
            "[4]",
            "[2, 4, 3]",
            None,
            "[4]",
        ),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _codes(*shape: int, dtype_: DType | None = None) -> Any:
    return draw(*shape, low=-128.0, high=255.0, dtype_=dtype_)


def _matmul_nbits_type(
    x: TensorType,
    codes: TensorType,
    scale: TensorType,
    zero_point: TensorType | None = None,
    *,
    block: int,
) -> TensorType:
    same_dtype(x, scale)
    require(x.rank > 0, f"x needs an axis to sum over, found {x}.")
    require(codes.dtype in BYTES, f"codes must be of 4 or 8 bits, found {codes}.")
    require(codes.rank == 2, f"codes must be [outputs, inputs], found {codes}.")
    require_dims(x.shape[-1], codes.shape[1], "the last axis of x and the second of codes")
    require_scales(codes, scale, zero_point, 1, block)
    if zero_point is not None:
        same_dtype(codes, zero_point)
    return x.with_shape((*x.shape[:-1], codes.shape[0]))


def _matmul_nbits(
    x: Value, codes: Value, scale: Value, zero_point: Value | None, block: int
) -> Value:
    weights = dequantize(codes, scale, zero_point, axis=1, block=block)
    return matmul(x, transpose(weights, perm=(1, 0)))


def _matmul_nbits_samples() -> list[Sample]:
    x, empty = draw(2, 3, 32), draw(0, 32)
    found = [
        sample(x, _codes(5, 32, dtype_=of), _step(5, 2), zero, block=16)
        for of in BYTES
        for zero in (None, draw(5, 2, dtype_=of, low=-8.0, high=15.0))
    ]
    found.append(sample(draw(32), _codes(3, 32, dtype_=int4), _step(3, 1), None, block=32))
    found.append(sample(draw(2, 40), _codes(3, 40, dtype_=uint4), _step(3, 3), None, block=16))
    return [*found, sample(empty, _codes(3, 32, dtype_=int4), _step(3, 2), None, block=16)]


def _step(*shape: int) -> Any:
    return draw(*shape, low=0.01, high=0.1)


matmul_nbits = FAMILY.declare(
    "matmul_nbits",
    _matmul_nbits_type,
    doc="Multiply by the transpose of weights that are codes, with a scale per row and block.",
    expand=_matmul_nbits,
    dtypes=FLOATS,
    traits=(Trait.CONTRACTION,),
    samples=_matmul_nbits_samples,
    kept_whole="its weights would be floats, up to 8 times as large.",
    refuses=lambda: [
        bad("x needs an axis to sum over, found", "[]", "int4[3, 4]", "[3, 1]", block=4),
        bad("codes must be of 4 or 8 bits, found", "[4]", "int16[3, 4]", "[3, 1]", block=4),
        bad("codes must be [outputs, inputs], found", "[4]", "int4[4]", "[1]", block=4),
        bad("the last axis of x and the second of codes", "[5]", "int4[3, 4]", "[3, 1]", block=4),
        bad("operands must have one dtype", "[4]", "int4[3, 4]", "bool[3, 1]", block=4),
        bad(
            "operands must have one dtype",
            "[4]",
            "int4[3, 4]",
            "[3, 1]",
            "uint4[3, 1]",
            block=4,
        ),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _conv_integer_type(
    x: TensorType,
    w: TensorType,
    x_zero: TensorType | None = None,
    w_zero: TensorType | None = None,
    *,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    groups: int = 1,
) -> TensorType:
    _sum_type(x, w, x_zero, w_zero)
    require(x_zero is None or x_zero.rank == 0, f"x_zero must be a scalar, found {x_zero}.")
    if w_zero is not None and w_zero.rank:
        require(w_zero.shape == w.shape[:1], f"w_zero is a scalar or per filter, found {w_zero}.")
    found = conv.make(
        [Value(t.with_dtype(int32)) for t in (x, w)],
        {"strides": strides, "padding": padding, "dilations": dilations, "groups": groups},
    )
    return found.outputs[0].tensor


def _per_filter(of: Value, rank: int) -> Value:
    """Shape a value per filter so that it broadcasts from the given rank's first axis."""
    if of.tensor.rank == 0:
        return of
    return reshape(of, shape=(*of.tensor.shape, *[1] * (rank - 1)))


def _conv_integer(
    x: Value, w: Value, x_zero: Value | None, w_zero: Value | None, **attrs: Any
) -> Value:
    # Padding is zero after zero points are gone: it is x_zero in codes.
    zero = None if w_zero is None else _per_filter(w_zero, w.tensor.rank)
    return conv(centred(x, x_zero), centred(w, zero), **attrs)


def _conv_integer_samples() -> list[Sample]:
    plain = [
        Sample(s.operands[:2], s.attrs) for s in conv_samples() if "input_dilations" not in s.attrs
    ]
    x, w = _codes(1, 2, 4, 4), _codes(3, 2, 2, 2)
    return [
        *plain,
        sample(x, w, _codes(), _codes(3), padding=((1, 1), (0, 1))),
        sample(x, _codes(3, 2, 2, 2, dtype_=int8), _codes(), _codes(dtype_=int8)),
    ]


conv_integer = FAMILY.declare(
    "conv_integer",
    _conv_integer_type,
    doc="Convolve codes minus zero points (w_zero per tensor or filter) in int32.",
    expand=_conv_integer,
    dtypes=BYTES,
    traits=(Trait.CONTRACTION,),
    tolerance=EXACT,
    samples=_conv_integer_samples,
    refuses=lambda: [
        bad("a convolution needs a batch, channels and spatial axes", "[0, 4]", "[2, 0, 3]"),
        bad(
            "codes must be bytes, found int8[1, 0, 4] and bool[2, 0, 3]",
            "[1, 0, 4]",
            "bool[2, 0, 3]",
        ),
        bad("x_zero must be a scalar, found int8[1, 0, 4]", "[1, 0, 4]", "[2, 0, 3]", "[1, 0, 4]"),
        bad(
            "w_zero is a scalar or per filter, found int8[1, 0, 4]",
            "[1, 0, 4]",
            "[2, 0, 3]",
            None,
            "[1, 0, 4]",
        ),
        bad(
            "operands must have one dtype, found int8 and float32",
            "[1, 0, 4]",
            "[2, 0, 3]",
            "float32[]",
        ),
    ],
    lacks={"scalar": NEEDS_SPATIAL},
)


def _rescale(total: Value, a_scale: Value, b_scale: Value, y_scale: Value, y_zero: Value) -> Value:
    """Turn sums of products of codes into codes of the output."""
    factor = divide(multiply(widened(a_scale), widened(b_scale)), widened(y_scale))
    scaled = multiply(cast(total, dtype=factor.tensor.dtype), factor)
    return encode(scaled, y_zero, y_zero.tensor.dtype)


def _require_rescaled(y_zero: TensorType, *scales: TensorType) -> None:
    require(same_dtype(*scales).is_float, f"scales must be floats, found {scales[0]}.")
    require(y_zero.dtype in BYTES, f"y_zero must be a byte, found {y_zero}.")


def _qlinear_matmul_type(
    a: TensorType,
    a_scale: TensorType,
    a_zero: TensorType,
    b: TensorType,
    b_scale: TensorType,
    b_zero: TensorType,
    y_scale: TensorType,
    y_zero: TensorType,
) -> TensorType:
    _require_rescaled(y_zero, a_scale, b_scale, y_scale)
    found = _matmul_integer_type(a, b, a_zero, b_zero)
    for of in (a_scale, b_scale, y_scale, y_zero):
        per_row = of.rank == 1 and of is not b_scale
        wide = broadcast_shapes(found.shape, of.shape + (1,) * per_row)
        require(wide == found.shape, f"{of} does not broadcast to the product {found}.")
    return found.with_dtype(y_zero.dtype)


def _rows(of: Value) -> Value:
    return expand_dims(of, axes=(1,)) if of.tensor.rank == 1 else of


def _qlinear_matmul(
    a: Value,
    a_scale: Value,
    a_zero: Value,
    b: Value,
    b_scale: Value,
    b_zero: Value,
    y_scale: Value,
    y_zero: Value,
) -> Value:
    total = matmul_integer(a, b, a_zero, b_zero)
    return _rescale(total, _rows(a_scale), b_scale, _rows(y_scale), _rows(y_zero))


def _scale(*shape: int) -> Any:
    return draw(*shape, dtype_=float32, low=0.01, high=0.1)


qlinear_matmul = FAMILY.declare(
    "qlinear_matmul",
    _qlinear_matmul_type,
    doc="Multiply matrices of codes to codes; each operand has its scale and zero point.",
    expand=_qlinear_matmul,
    dtypes=BYTES,
    traits=(Trait.CONTRACTION, Trait.DISCONTINUOUS),
    tolerance=CODES,
    samples=lambda: [
        sample(a, _scale(*per), _codes(*per), b, _scale(), _codes(), _scale(), _codes())
        for a, b, per in (
            (_codes(3, 4), _codes(4, 5), ()),
            (_codes(2, 3, 4), _codes(2, 4, 2), ()),
            (_codes(3, 4), _codes(4, 5), (3,)),
            (_codes(0, 4), _codes(4, 5), ()),
        )
    ],
    refuses=lambda: [
        bad(
            "operands must have one dtype, found bool and float32",
            "[3, 4]",
            "bool[]",
            "[]",
            "[4, 5]",
            "float32[]",
            "[]",
            "float32[]",
            "[]",
        ),
        bad(
            "float32[3] does not broadcast to the product int32[3]",
            "[3, 4]",
            "float32[3]",
            "[3]",
            "[4]",
            "float32[]",
            "[]",
            "float32[]",
            "[]",
        ),
        bad(
            "shapes [3, 5] and [2] do not broadcast: aligned at the end",
            "[3, 4]",
            "float32[]",
            "[]",
            "[4, 5]",
            "float32[2]",
            "[]",
            "float32[]",
            "[]",
        ),
    ],
    lacks={"scalar": NEEDS_MATRIX},
)


def _qlinear_conv_type(
    x: TensorType,
    x_scale: TensorType,
    x_zero: TensorType,
    w: TensorType,
    w_scale: TensorType,
    w_zero: TensorType,
    y_scale: TensorType,
    y_zero: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Sizes | None = None,
    padding: Padding | None = None,
    dilations: Sizes | None = None,
    groups: int = 1,
) -> TensorType:
    _require_rescaled(y_zero, x_scale, w_scale, y_scale)
    scalars = [t.rank == 0 for t in (x_scale, y_scale, y_zero)]
    require(all(scalars), "scales and zero points of x and y must be scalars.")
    fits = w_scale.rank == 0 or w_scale.shape == w.shape[:1]
    require(fits, f"w_scale is a scalar or per filter, found {w_scale}.")
    require(bias is None or bias.dtype is int32, f"bias must be int32, found {bias}.")
    found = _conv_integer_type(
        x,
        w,
        x_zero,
        w_zero,
        strides=strides,
        padding=padding,
        dilations=dilations,
        groups=groups,
    )
    return found.with_dtype(y_zero.dtype)


def _qlinear_conv(
    x: Value,
    x_scale: Value,
    x_zero: Value,
    w: Value,
    w_scale: Value,
    w_zero: Value,
    y_scale: Value,
    y_zero: Value,
    bias: Value | None,
    **attrs: Any,
) -> Value:
    total = conv_integer(x, w, x_zero, w_zero, **attrs)
    rank = w.tensor.rank - 1
    if bias is not None:
        total = add(total, _per_filter(bias, rank))
    return _rescale(total, x_scale, _per_filter(w_scale, rank), y_scale, y_zero)


def _qlinear_conv_samples() -> list[Sample]:
    found = []
    for index, s in enumerate(conv_samples()):
        x, w = s.operands[:2]
        if w is None or "input_dilations" in s.attrs:
            continue
        per = (w.shape[0],) if index % 2 else ()
        bias = draw(*per, dtype_=int32, low=-90.0, high=90.0) if per else None
        inputs = (x, _scale(), _codes(), w, _scale(*per), draw(*per), _scale(), _codes(), bias)
        found.append(Sample(inputs, s.attrs))
    return found


qlinear_conv = FAMILY.declare(
    "qlinear_conv",
    _qlinear_conv_type,
    doc="Convolve codes to codes; bias is int32 in units of x_scale times w_scale.",
    expand=_qlinear_conv,
    dtypes=BYTES,
    traits=(Trait.CONTRACTION, Trait.DISCONTINUOUS),
    tolerance=CODES,
    samples=_qlinear_conv_samples,
    refuses=lambda: [
        bad(
            "operands must have one dtype, found bool and float32",
            "[1, 0, 4]",
            "bool[]",
            "[]",
            "[2, 0, 3]",
            "float32[]",
            "[]",
            "float32[]",
            "[]",
        ),
        bad(
            "y_zero must be a byte, found bool[]",
            "[1, 0, 4]",
            "float32[]",
            "[]",
            "[2, 0, 3]",
            "float32[]",
            "[]",
            "float32[]",
            "bool[]",
        ),
        bad(
            "scales and zero points of x and y must be scalars",
            "[1, 0, 4]",
            "float32[1]",
            "[]",
            "[2, 0, 3]",
            "float32[]",
            "[]",
            "float32[]",
            "[]",
        ),
        bad(
            "w_scale is a scalar or per filter, found float32[3]",
            "[1, 2, 2]",
            "float32[]",
            "[]",
            "[]",
            "float32[3]",
            "[3]",
            "float32[]",
            "[]",
            "int32[3]",
        ),
        bad(
            "bias must be int32, found int8[]",
            "[1, 0, 4]",
            "float32[]",
            "[]",
            "[2, 0, 3]",
            "float32[]",
            "[]",
            "float32[]",
            "[]",
            "[]",
        ),
    ],
    lacks={"scalar": NEEDS_SPATIAL},
)
