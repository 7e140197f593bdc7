"""Activations, smooth and piecewise; elementwise except glu."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

import numpy as np

from fusewire.dtypes import FLOATS, REAL, SIGNED, DType
from fusewire.ir.dims import floordiv
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops import special
from fusewire.ops.declare import Family, Op, Tolerance, Trait
from fusewire.ops.decompose import in_both
from fusewire.ops.elementwise import (
    abs_,
    add,
    clip,
    divide,
    erf,
    exp,
    expm1,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    tanh,
)
from fusewire.ops.inference import axis_of, binary_type, require, unary_type
from fusewire.ops.logic import greater, less, where
from fusewire.ops.sample import Sample, bad, binary_samples, draw, given, sample, unary_samples
from fusewire.ops.slicing import split

FAMILY = Family("activation")
JUMPS = (Trait.DISCONTINUOUS,)
# A share of 1 has the digits of 1: what is nearly 0 is as good as 0 to whoever adds shares up.
SHARE = Tolerance("ranged", 4.0)
# How self-normalising networks fix mean and variance.
SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805


def _rule(**defaults: float) -> Callable[..., TensorType]:
    """Make the rule of an op that keeps the type and has these attributes."""

    def rule(x: TensorType, **attrs: float) -> TensorType:
        return x

    kind = inspect.Parameter.KEYWORD_ONLY
    operand = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    attrs = [
        inspect.Parameter(key, kind, default=default, annotation="float")
        for key, default in defaults.items()
    ]
    signature = inspect.Signature([operand, *attrs], return_annotation="TensorType")
    rule.__dict__["__signature__"] = signature
    return rule


def _activation(
    name: str,
    doc: str,
    expand: Callable[..., Value],
    others: Sequence[dict[str, float]] = (),
    traits: tuple[Trait, ...] = (),
    dtypes: tuple[DType, ...] = FLOATS,
    **defaults: float,
) -> Op[Value]:
    """Declare a composite; ``others`` are attributes to show beside the defaults."""

    def samples() -> list[Sample]:
        extremes = given([np.nan, np.inf, -np.inf, 0.0, 80.0, -80.0])
        shown = [Sample((draw(3, 5, low=-6.0, high=6.0),), attrs) for attrs in others]
        return [*unary_samples()(), *shown, sample(extremes, only=FLOATS)]

    return FAMILY.declare(
        name,
        _rule(**defaults),
        doc=doc,
        expand=expand,
        dtypes=dtypes,
        traits=(Trait.ELEMENTWISE, *traits),
        samples=samples,
    )


sigmoid = FAMILY.declare(
    "sigmoid",
    unary_type,
    doc="Apply the logistic function: 1 / (1 + e^-x).",
    reference=lambda x: np.asarray(special.sigmoid(np, x), x.dtype),
    decompose=in_both(special.sigmoid),
    dtypes=FLOATS,
    traits=(Trait.ELEMENTWISE,),
    tolerance=SHARE,
    flops=10,
    samples=lambda: [
        *unary_samples(-6.0, 6.0)(),
        sample(given([80.0, -80.0, np.nan, np.inf, -np.inf])),
    ],
)


def _below(x: Value, low: Value) -> Value:
    """Keep x where it is positive, else take the other."""
    return where(less(x, 0.0), low, x)


def _elu(x: Value, alpha: float) -> Value:
    return _below(x, multiply(expm1(minimum(x, 0.0)), alpha))


def _celu(x: Value, alpha: float) -> Value:
    return _below(x, multiply(expm1(divide(minimum(x, 0.0), alpha)), alpha))


def _gelu(x: Value, approximate: bool) -> Value:
    if approximate:
        cubic = multiply(multiply(multiply(x, x), x), 0.044715)
        step = tanh(multiply(add(x, cubic), math.sqrt(2.0 / math.pi)))
    else:
        step = erf(multiply(x, math.sqrt(0.5)))
    return multiply(multiply(x, 0.5), add(step, 1.0))


def _softplus(x: Value) -> Value:
    return add(maximum(x, 0.0), log1p(exp(negative(abs_(x)))))


def _shrink(x: Value, limit: float, bias: float) -> Value:
    above = where(greater(x, limit), subtract(x, bias), 0.0)
    return where(less(x, -limit), add(x, bias), above)


def _gelu_type(x: TensorType, *, approximate: bool = False) -> TensorType:
    return x


relu = _activation(
    "relu", "Keep positive elements, else 0.", lambda x: maximum(x, 0), dtypes=FLOATS + SIGNED
)
relu6 = _activation("relu6", "Limit to 0..6.", lambda x: clip(x, 0.0, 6.0))
hard_tanh = _activation(
    "hard_tanh", "Limit to low..high.", lambda x, low, high: clip(x, low, high), low=-1.0, high=1.0
)
leaky_relu = _activation(
    "leaky_relu",
    "Scale negative elements.",
    lambda x, alpha: _below(x, multiply(x, alpha)),
    [{"alpha": 0.3}],
    alpha=0.01,
)
elu = _activation(
    "elu", "Replace negative elements by alpha (e^x - 1).", _elu, [{"alpha": 0.5}], alpha=1.0
)
celu = _activation(
    "celu",
    "Replace negative elements by alpha (e^(x/alpha) - 1).",
    _celu,
    [{"alpha": 2.0}],
    alpha=1.0,
)
selu = _activation(
    "selu",
    "Scale elu so that mean and variance keep their size.",
    lambda x, alpha, gamma: multiply(_elu(x, alpha), gamma),
    [{"alpha": 2.0, "gamma": 3.0}],
    alpha=SELU_ALPHA,
    gamma=SELU_GAMMA,
)
softplus = _activation("softplus", "Apply the smooth form of relu: log(1 + e^x).", _softplus)
softsign = _activation("softsign", "Divide by 1 + |x|.", lambda x: divide(x, add(abs_(x), 1.0)))
log_sigmoid = _activation(
    "log_sigmoid", "Take the logarithm of sigmoid.", lambda x: negative(softplus(negative(x)))
)
silu = _activation("silu", "Multiply by sigmoid(x).", lambda x: multiply(x, sigmoid(x)))
swish = _activation(
    "swish",
    "Multiply by sigmoid(alpha x).",
    lambda x, alpha: multiply(x, sigmoid(multiply(x, alpha))),
    [{"alpha": 0.5}],
    alpha=1.0,
)
quick_gelu = _activation(
    "quick_gelu",
    "Approximate gelu by x sigmoid(alpha x).",
    lambda x, alpha: multiply(x, sigmoid(multiply(x, alpha))),
    alpha=1.702,
)
mish = _activation(
    "mish", "Multiply by tanh(softplus(x)).", lambda x: multiply(x, tanh(softplus(x)))
)
hard_sigmoid = _activation(
    "hard_sigmoid",
    "Limit alpha x + beta to 0..1.",
    lambda x, alpha, beta: clip(add(multiply(x, alpha), beta), 0.0, 1.0),
    [{"alpha": 0.5, "beta": 0.6}],
    alpha=0.2,
    beta=0.5,
)
hard_swish = _activation(
    "hard_swish",
    "Multiply by x / 6 + 1/2 limited to 0..1.",
    lambda x: multiply(x, hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5)),
)
thresholded_relu = _activation(
    "thresholded_relu",
    "Keep elements above alpha, else 0.",
    lambda x, alpha: where(greater(x, alpha), x, 0.0),
    [{"alpha": 0.5}],
    JUMPS,
    alpha=1.0,
)
shrink = _activation(
    "shrink",
    "Move elements beyond the limit towards 0 by bias, and set the others to 0.",
    _shrink,
    [{"limit": 1.5, "bias": 1.5}],
    JUMPS,
    limit=0.5,
    bias=0.0,
)
gelu = FAMILY.declare(
    "gelu",
    _gelu_type,
    doc="Multiply by the normal cumulative distribution at x, exact or approximated by tanh.",
    expand=_gelu,
    dtypes=FLOATS,
    traits=(Trait.ELEMENTWISE,),
    samples=lambda: [
        *unary_samples()(),
        sample(draw(3, 5, low=-6.0, high=6.0), approximate=True),
        sample(given([np.nan, np.inf, 0.0, 80.0, -80.0])),
    ],
)
prelu = FAMILY.declare(
    "prelu",
    binary_type,
    doc="Scale negative elements by the second operand.",
    expand=lambda x, y: where(less(x, 0), multiply(x, y), x),
    dtypes=REAL,
    traits=(Trait.ELEMENTWISE,),
    samples=binary_samples(),
)


def _glu_type(x: TensorType, *, axis: int = -1) -> TensorType:
    axis = axis_of(axis, x.rank)
    dim = x.shape[axis]
    require(not isinstance(dim, int) or dim % 2 == 0, f"axis {axis} must be even, found {dim}.")
    return x.with_shape((*x.shape[:axis], floordiv(dim, 2), *x.shape[axis + 1 :]))


def _glu(x: Value, axis: int) -> Value:
    half = floordiv(x.tensor.shape[axis], 2)
    kept, gate = split(x, axis=axis, sizes=(half, half))
    return multiply(kept, sigmoid(gate))


glu = FAMILY.declare(
    "glu",
    _glu_type,
    doc="Multiply the first half of an axis by the sigmoid of the second.",
    expand=_glu,
    dtypes=FLOATS,
    lacks={"scalar": "a scalar has no axis to halve"},
    samples=lambda: [sample(draw(3, 4)), sample(draw(4, 3), axis=0), sample(draw(0, 2))],
    refuses=lambda: [
        bad("axis 0 must be even, found 3", "[3]"),
        bad("axis -1 is outside a tensor of rank 0", "[]"),
    ],
)
