"""Normalizations that programs write as many ops, as one op each.

Statistics of 16-bit floats are left as they are spelled: the ops take them in float32, and that
is more than another rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusewire.facts.known import Facts
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Node, Value
from fusewire.ir.types import TensorType
from fusewire.ops.channels import group_norm, instance_norm
from fusewire.ops.elementwise import add, divide, exp, multiply, rsqrt, sqrt, square, subtract
from fusewire.ops.inference import axes_of, axis_of
from fusewire.ops.movement import reshape
from fusewire.ops.normalization import layer_norm, rms_norm, softmax
from fusewire.ops.reduction import reduce_max, reduce_sum
from fusewire.ops.statistics import reduce_mean
from fusewire.ops.table import get_op
from fusewire.rewrite.pattern import is_number, is_private, maker, splat
from fusewire.rewrite.rule import Outcome, RuleTable, on
from fusewire.rewrite.rules.raise_activation import SHARED

TABLE = RuleTable("raise_normalization")


def _reduced(value: Value | None, op: str, of: Value) -> tuple[int, ...] | None:
    """Give the axes over which a value is a reduction of another, with axes of size 1 for them."""
    node = maker(value, op, "reshape")
    if node is not None and node.op == "reshape":
        node = maker(node.inputs[0], op)
    if node is None or value is None or node.inputs[0] is not of:
        return None
    given: Any = node.attrs["axes"]
    axes = axes_of(given, of.tensor.rank)
    kept = tuple(1 if i in axes else dim for i, dim in enumerate(of.tensor.shape))
    return axes if value.tensor.shape == kept else None


def _quotient(node: Node) -> tuple[Value, Value, str] | None:
    """Take what is divided, and by what: a divisor, or the value under a root."""
    x, y = node.operands
    if node.op == "divide":
        return x, *_under_root(y)
    for top, bottom in ((x, y), (y, x)):
        inner = maker(bottom, "reciprocal", "rsqrt")
        if inner is not None and inner.op == "rsqrt":
            return top, inner.operands[0], "root"
        if inner is not None:
            return top, *_under_root(inner.operands[0])
    return None


def _under_root(value: Value) -> tuple[Value, str]:
    node = maker(value, "sqrt", "power")
    if node is None or (node.op == "power" and splat(node.inputs[1]) != 0.5):
        return value, "whole"
    return node.operands[0], "root"


def _is_square(value: Value, of: Value) -> bool:
    node = maker(value, "square", "multiply", "power")
    if node is None or node.inputs[0] is not of:
        return False
    if node.op == "power":
        return bool(splat(node.inputs[1]) == 2)
    return node.op == "square" or node.inputs[1] is of


def _standardized(node: Node) -> tuple[Value, tuple[int, ...], float] | None:
    """Find x in x / sqrt(mean(x^2) + epsilon), with the axes and epsilon."""
    parts = _quotient(node)
    moved = maker(parts[1], "add") if parts is not None and parts[2] == "root" else None
    if parts is None or moved is None or parts[0].tensor.dtype.bits < 32:
        return None
    epsilon = splat(moved.inputs[1])
    mean = maker(moved.operands[0], "reduce_mean", "reshape")
    mean = maker(mean.inputs[0], "reduce_mean") if mean and mean.op == "reshape" else mean
    if mean is None or not isinstance(epsilon, float) or not 0 < epsilon < math.inf:
        return None
    squared = mean.operands[0]
    axes = _reduced(moved.inputs[0], "reduce_mean", squared)
    if axes is None or not _is_square(squared, parts[0]):
        return None
    return parts[0], axes, epsilon


def _last(axes: tuple[int, ...], rank: int) -> int | None:
    """Give the first of axes that are the last ones of all."""
    first = rank - len(axes)
    return first if axes and sorted(axes) == list(range(first, rank)) else None


def _spelled_layer_norm(x: Value) -> Value:
    centred = subtract(x, reduce_mean(x, axes=(-1,), keepdims=True))
    mean = reduce_mean(square(centred), axes=(-1,), keepdims=True)
    return divide(centred, sqrt(add(mean, 0.25)))


@TABLE.rule(
    "raise-layer-norm",
    "divide",
    "multiply",
    because="What is less its mean, divided by its deviation over the last axes, is layer_norm.",
    example=on(_spelled_layer_norm, "float32[n, 4]"),
    exact=False,
)
def _layer_norm(node: Node, facts: Facts) -> Outcome:
    found = _standardized(node)
    centred = None if found is None else maker(found[0], "subtract")
    if found is None or centred is None:
        return None
    x, mean = centred.operands
    axis = _last(found[1], x.tensor.rank)
    if axis is None or _reduced(mean, "reduce_mean", x) != found[1]:
        return None
    made = layer_norm(x, axis=axis - x.tensor.rank, epsilon=found[2])
    return made if is_private(node, (x,), facts) else SHARED


@TABLE.rule(
    "raise-rms-norm",
    "divide",
    "multiply",
    because="What is divided by the root of its mean square over the last axes is rms_norm.",
    example=on(
        lambda x: multiply(x, rsqrt(add(reduce_mean(square(x), axes=(-1,), keepdims=True), 0.25))),
        "float32[n, 4]",
    ),
    exact=False,
)
def _rms_norm(node: Node, facts: Facts) -> Outcome:
    found = _standardized(node)
    if found is None:
        return None
    x, axes, epsilon = found
    axis = _last(axes, x.tensor.rank)
    if axis is None:
        return None
    made = rms_norm(x, axis=axis - x.tensor.rank, epsilon=epsilon)
    return made if is_private(node, (x,), facts) else SHARED


def _spelled_softmax(x: Value) -> Value:
    grown = exp(subtract(x, reduce_max(x, axes=(1,), keepdims=True)))
    return divide(grown, reduce_sum(grown, axes=(1,), keepdims=True))


@TABLE.rule(
    "raise-softmax",
    "divide",
    "multiply",
    because="Exponentials less the largest, divided by their sum over an axis, are softmax.",
    example=on(_spelled_softmax, "float32[n, 4]"),
    exact=False,
)
def _softmax(node: Node, facts: Facts) -> Outcome:
    parts = _quotient(node)
    grown = None if parts is None or parts[2] == "root" else maker(parts[0], "exp")
    shifted = None if grown is None else maker(grown.inputs[0], "subtract")
    if parts is None or grown is None or shifted is None or parts[0].tensor.dtype.bits < 32:
        return None
    x, largest = shifted.operands
    axes = _reduced(parts[1], "reduce_sum", parts[0])
    if axes is None or len(axes) != 1 or _reduced(largest, "reduce_max", x) != axes:
        return None
    made = softmax(x, axis=axes[0])
    return made if is_private(node, (x,), facts) else SHARED


# What takes a scale and a bias, and the operand that each is.
_SCALED = {"layer_norm": 1, "rms_norm": 1, "group_norm": 1, "instance_norm": 1}
_MOVED = {"layer_norm": 2, "group_norm": 2, "instance_norm": 2}


def _vector(value: Value, shape: tuple[Dim, ...]) -> Value | None:
    """Give an operand without leading axes of size 1, if it has this shape then."""
    found = value.tensor.shape
    while len(found) > len(shape) and found[0] == 1:
        found = found[1:]
    if found != shape:
        return None
    return value if found == value.tensor.shape else reshape(value, shape=found)


def _fits(norm: Node, value: Value) -> tuple[str, Value] | None:
    """Tell by which op, and in which shape, a norm takes what each channel or place has."""
    x = norm.operands[0].tensor
    if norm.op in ("layer_norm", "rms_norm"):
        given: Any = norm.attrs["axis"]
        axis = axis_of(given, x.rank)
        vector = _vector(value, x.shape[axis:])
        if vector is not None:
            return norm.op, vector
        if norm.op == "rms_norm" or axis != 2 or len(norm.operands) > 1:
            return None
    channels = _vector(value, (x.shape[1], *([1] * (x.rank - 2))))
    if channels is None:
        return None
    op = "instance_norm" if norm.op == "layer_norm" else norm.op
    return op, reshape(channels, shape=(x.shape[1],))


def _absorbed(node: Node, places: dict[str, int], facts: Facts) -> Outcome:
    for inner, other in (node.operands, node.operands[::-1]):
        norm = maker(inner, *places)
        if norm is None or any(v is not None for v in norm.inputs[places[norm.op] :]):
            continue
        fit = None if other.tensor.dtype is not inner.tensor.dtype else _fits(norm, other)
        if fit is None or inner.type != node.outputs[0].type:
            continue
        if facts.uses(inner) > 1:
            return SHARED
        op, vector = fit
        operands = [*norm.inputs[: places[norm.op]], vector]
        attrs = {key: a for key, a in norm.attrs.items() if key != "axis" or op == norm.op}
        made: Value = get_op(op)(*operands, **attrs)
        return made
    return None


@TABLE.rule(
    "scale-into-norm",
    "multiply",
    because="A norm scales what it has normalized by one number for each place or channel.",
    example=on(
        lambda x: multiply(layer_norm(x), np.array([[1.5, -2.0, 0.25, 3.0]], np.float32)),
        "float32[n, 4]",
    ),
)
def _scale(node: Node, facts: Facts) -> Outcome:
    return _absorbed(node, _SCALED, facts)


@TABLE.rule(
    "bias-into-norm",
    "add",
    because="A norm adds one number for each place or channel at the end.",
    example=on(
        lambda x, y: add(instance_norm(x, np.ones(3, np.float32)), y),
        "float32[n, 3, 4]",
        "float32[3, 1]",
    ),
)
def _bias(node: Node, facts: Facts) -> Outcome:
    return _absorbed(node, _MOVED, facts)


def _spelled_group_norm(x: Value) -> Value:
    rows = reshape(x, shape=(x.tensor.shape[0], 2, 6))
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    return reshape(instance_norm(rows, ones, zeros), shape=x.tensor.shape)


@TABLE.rule(
    "raise-group-norm",
    "reshape",
    because="An instance_norm whose channels are groups of channels is a group_norm.",
    example=on(_spelled_group_norm, "float32[n, 4, 3]"),
    exact=False,
)
def _group_norm(node: Node, facts: Facts) -> Outcome:
    norm = maker(node.inputs[0], "instance_norm")
    rows = maker(norm.inputs[0], "reshape") if norm is not None else None
    if norm is None or rows is None:
        return None
    x, scale, bias = rows.operands[0], *norm.inputs[1:3]
    plain = scale is None or is_number(scale, 1.0)
    plain = plain and (bias is None or is_number(bias, 0.0))
    if not plain or not _is_grouped(x.tensor, rows.outputs[0].tensor, node.outputs[0].tensor):
        return None
    groups = rows.outputs[0].tensor.shape[1]
    made = group_norm(x, groups=groups, epsilon=norm.attrs["epsilon"])
    return made if is_private(node, (x,), facts) else SHARED


def _is_grouped(x: TensorType, rows: TensorType, after: TensorType) -> bool:
    """Tell whether rows are x with its channels in groups, and the shape is restored after."""
    if x.rank < 3 or x != after or rows.rank < 3 or rows.shape[0] != x.shape[0]:
        return False
    groups, channels = rows.shape[1], x.shape[1]
    return isinstance(groups, int) and isinstance(channels, int) and channels % groups == 0
