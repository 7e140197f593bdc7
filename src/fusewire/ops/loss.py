"""Losses: averaged, added up, or for each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewire.dtypes import FLOATS, int32, int64
from fusewire.ir.graph import Value
from fusewire.ir.types import TensorType
from fusewire.ops.activation import softplus
from fusewire.ops.conversion import cast
from fusewire.ops.declare import Family, Op
from fusewire.ops.elementwise import (
    abs_,
    add,
    divide,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    sqrt,
    square,
    subtract,
)
from fusewire.ops.indexing import gather, gather_elements
from fusewire.ops.inference import (
    axis_of,
    broadcast_types,
    reduced_shape,
    require,
    require_dims,
    same_dim,
    same_dtype,
)
from fusewire.ops.logic import not_equal, where
from fusewire.ops.movement import expand_dims, squeeze
from fusewire.ops.normalization import log_softmax
from fusewire.ops.reduction import reduce_sum
from fusewire.ops.requires import Interval, Operands, between
from fusewire.ops.sample import Sample, bad, draw, given, sample
from fusewire.ops.statistics import reduce_mean

FAMILY = Family("loss")
REDUCTIONS: dict[str, Callable[[Value], Value]] = {
    "none": lambda x: x,
    "sum": reduce_sum,
    "mean": reduce_mean,
}
# Logarithms of probabilities stop here, so that a sure mistake costs much, not everything.
LEAST_LOG = -100.0


def _reduced(x: TensorType, reduction: str) -> TensorType:
    known = ", ".join(REDUCTIONS)
    require(reduction in REDUCTIONS, f"reduction must be one of {known}, found {reduction!r}.")
    return x if reduction == "none" else x.with_shape(())


def _pair_type(x: TensorType, y: TensorType, *, reduction: str = "mean") -> TensorType:
    return _reduced(broadcast_types(x, y), reduction)


def _huber_type(
    x: TensorType, y: TensorType, *, delta: float = 1.0, reduction: str = "mean"
) -> TensorType:
    return _pair_type(x, y, reduction=reduction)


def _pairwise(
    name: str,
    doc: str,
    loss: Callable[..., Value],
    low: float = -2.0,
    high: float = 2.0,
    rule: Callable[..., TensorType] = _pair_type,
) -> Op[Value]:
    """Declare a loss of two operands of one shape; x is drawn from low..high."""

    def samples() -> list[Sample]:
        x, y = draw(3, 4, low=low, high=high), draw(3, 4, low=0.1, high=0.9)
        return [
            *(sample(x, y, reduction=reduction) for reduction in REDUCTIONS),
            sample(draw(low=low, high=high), draw(low=0.1, high=0.9)),
            sample(draw(0, 4, low=low, high=high), draw(low=0.1, high=0.9), reduction="sum"),
        ]

    def expand(x: Value, y: Value, reduction: str, **attrs: float) -> Value:
        return REDUCTIONS[reduction](loss(x, y, **attrs))

    return FAMILY.declare(
        name,
        rule,
        doc=doc,
        expand=expand,
        dtypes=FLOATS,
        samples=samples,
        refuses=lambda: [
            bad("do not broadcast", "[3]", "[2]"),
            bad("operands must have one dtype", "[3]", "float64[3]"),
            bad("reduction must be one of", "[3]", "[3]", reduction="odd"),
        ],
    )


def _huber(x: Value, y: Value, delta: float) -> Value:
    distance = abs_(subtract(x, y))
    near = minimum(distance, delta)
    return add(multiply(square(near), 0.5), multiply(subtract(distance, near), delta))


def _binary_cross_entropy(x: Value, y: Value) -> Value:
    right = multiply(y, maximum(log(x), LEAST_LOG))
    wrong = multiply(add(negative(y), 1.0), maximum(log1p(negative(x)), LEAST_LOG))
    return negative(add(right, wrong))


def _kl_divergence(x: Value, y: Value) -> Value:
    smallest = float(y.tensor.dtype.range[1]) ** -1
    return multiply(y, subtract(log(maximum(y, smallest)), x))


mse_loss = _pairwise("mse_loss", "Square the difference.", lambda x, y: square(subtract(x, y)))
l1_loss = _pairwise("l1_loss", "Take the absolute difference.", lambda x, y: abs_(subtract(x, y)))
huber_loss = _pairwise(
    "huber_loss",
    "Take half the squared difference, continued linearly beyond delta.",
    _huber,
    rule=_huber_type,
)
binary_cross_entropy = _pairwise(
    "binary_cross_entropy",
    "Take the cross entropy of probabilities x and targets y.",
    _binary_cross_entropy,
    0.1,
    0.9,
)
binary_cross_entropy_logits = _pairwise(
    "binary_cross_entropy_logits",
    "Take the cross entropy of sigmoid(x) and targets y.",
    lambda x, y: subtract(softplus(x), multiply(x, y)),
)
kl_divergence = _pairwise(
    "kl_divergence",
    "Compare the log-probabilities x with the probabilities y.",
    _kl_divergence,
)


def _cosine_type(
    x: TensorType, y: TensorType, *, axis: int = -1, epsilon: float = 1e-8
) -> TensorType:
    both = broadcast_types(x, y)
    return both.with_shape(reduced_shape(both.shape, (axis_of(axis, both.rank),), False))


def _cosine(x: Value, y: Value, axis: int, epsilon: float) -> Value:
    rank = max(x.tensor.rank, y.tensor.rank)
    axis = axis_of(axis, rank) - rank
    products = [reduce_sum(multiply(a, b), axes=(axis,)) for a, b in ((x, y), (x, x), (y, y))]
    lengths = [maximum(sqrt(product), epsilon) for product in products[1:]]
    return divide(products[0], multiply(*lengths))


cosine_similarity = FAMILY.declare(
    "cosine_similarity",
    _cosine_type,
    doc="Multiply along an axis and divide by both lengths, each at least epsilon.",
    expand=_cosine,
    dtypes=FLOATS,
    samples=lambda: [
        sample(draw(3, 4), draw(3, 4)),
        sample(draw(3, 4, 2), draw(4, 1), axis=1, epsilon=0.1),
        sample(draw(0, 4), draw(4)),
    ],
    refuses=lambda: [
        bad("operands must have one dtype, found float32 and bool", "[0, 4]", "bool[4]"),
        bad("axis 2 is outside a tensor of rank 2", "[0, 4]", "[4]", axis=2),
    ],
    lacks={"scalar": "a scalar has no axis to multiply along"},
)


def _labelled_type(
    x: TensorType,
    labels: TensorType,
    weights: TensorType | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> TensorType:
    require(x.rank >= 2, f"x needs a batch and a class axis, found {x}.")
    require(labels.dtype in (int32, int64), f"labels are int32 or int64, found {labels}.")
    require(labels.rank == x.rank - 1, f"labels lack the class axis of {x}, found {labels}.")
    kept = (x.shape[0], *x.shape[2:])
    for found, wanted in zip(labels.shape, kept, strict=True):
        require_dims(found, wanted, "axes of labels and x")
    if weights is not None:
        same_dtype(x, weights)
        require(weights.rank == 1, f"weights are a vector over classes, found {weights}.")
        same_dim(weights.shape[0], x.shape[1], "weights and classes")
    return _reduced(x.with_shape(labels.shape), reduction)


def _nll_loss(
    x: Value, labels: Value, weights: Value | None, ignore_index: int | None, reduction: str
) -> Value:
    counted = None
    if ignore_index is not None:
        counted = not_equal(labels, ignore_index)
        labels = where(counted, labels, 0)
    picked = gather_elements(x, expand_dims(labels, axes=(1,)), axis=1)
    loss = negative(squeeze(picked, axes=(1,)))
    share = None if weights is None else gather(weights, labels, axis=0)
    if counted is not None:
        share = cast(counted, dtype=x.tensor.dtype) if share is None else where(counted, share, 0.0)
        # Not by its share of 0, which would keep an infinite loss.
        loss = where(counted, loss, 0.0)
    if share is None:
        return REDUCTIONS[reduction](loss)
    weighted = multiply(loss, share)
    if reduction == "mean":
        return divide(reduce_sum(weighted), reduce_sum(share))
    return REDUCTIONS[reduction](weighted)


def _cross_entropy(x: Value, labels: Value, weights: Value | None, **attrs: Any) -> Value:
    return nll_loss(log_softmax(x, axis=1), labels, weights, **attrs)


def _labelled_samples() -> list[Sample]:
    x, labels = draw(3, 4), given([1, 3, 0], int64)
    deep, more = draw(2, 3, 2, low=-3.0, high=-0.1), given([[1, 2], [-1, 0]], int32)
    weights = draw(3, low=0.2, high=1.0)
    return [
        *(sample(x, labels, reduction=reduction) for reduction in REDUCTIONS),
        *(
            sample(deep, more, weights, ignore_index=-1, reduction=reduction)
            for reduction in REDUCTIONS
        ),
        sample(deep, more, ignore_index=-1),
        sample(draw(0, 4), draw(0, dtype_=int64), reduction="sum"),
    ]


def _classes(operands: Operands) -> Interval:
    return 0, operands.type("x").shape[1] - 1


nll_loss = FAMILY.declare(
    "nll_loss",
    _labelled_type,
    doc="Take minus the log-probability of each label, weighted by its class.",
    expand=_nll_loss,
    dtypes=FLOATS,
    index_operands=("labels",),
    requires=(between("labels", _classes, ignored="ignore_index"),),
    samples=_labelled_samples,
    lacks={"scalar": "x has at least a batch and a class axis"},
)
cross_entropy = FAMILY.declare(
    "cross_entropy",
    _labelled_type,
    doc="Take minus the logarithm of softmax at each label, weighted by its class.",
    expand=_cross_entropy,
    dtypes=FLOATS,
    index_operands=("labels",),
    requires=(between("labels", _classes, ignored="ignore_index"),),
    samples=_labelled_samples,
    refuses=lambda: [
        bad(
            "reduction must be one of none, sum, mean, found 'odd'",
            "[3, 4]",
            "int64[3]",
            reduction="odd",
        ),
        bad("x needs a batch and a class axis, found float32[]", "[]", "int64[3]", reduction="sum"),
        bad("labels are int32 or int64, found bool[3]", "[3, 4]", "bool[3]", reduction="sum"),
        bad(
            "labels lack the class axis of float32[3, 4], found int64[]",
            "[3, 4]",
            "int64[]",
            reduction="sum",
        ),
        bad(
            "operands must have one dtype, found float32 and int64",
            "[3, 4]",
            "int64[3]",
            "int64[3]",
            reduction="sum",
        ),
        bad(
            "axes of labels and x must be equal, found 3 and 4",
            "[4, 4]",
            "int64[3]",
            reduction="sum",
        ),
        bad(
            "weights are a vector over classes, found float32[]",
            "[3, 4]",
            "int64[3]",
            "[]",
            reduction="sum",
        ),
        bad(
            "weights and classes must be equal, found 3 and 4",
            "[2, 4, 2]",
            "int32[2, 2]",
            "[3]",
            ignore_index=-1,
            reduction="sum",
        ),
    ],
    lacks={"scalar": "x has at least a batch and a class axis"},
)
