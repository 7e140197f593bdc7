"""Softmax and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusewire.frontends.torch.aten.rows import Convert, Rows
from fusewire.frontends.torch.call import AtenCall, axis_in
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim
from fusewire.ir.graph import Value
from fusewire.ops import channels, creation, elementwise, normalization, statistics
from fusewire.ops.declare import Op
from fusewire.ops.movement import reshape

ROWS = Rows()


def _along(op: Op[Value]) -> Convert:
    def convert(call: AtenCall, x: Value, dim: int, *rest: Any) -> Value:
        value = call.value(x)
        if x.tensor.rank == 0:
            return reshape(op(reshape(value, shape=(1,)), axis=0), shape=())
        return op(value, axis=axis_in(dim, x.tensor.rank))

    return convert


ROWS.add("softmax.int", "_softmax", "special_softmax", ops="softmax")(_along(normalization.softmax))
ROWS.add("log_softmax.int", "_log_softmax", "special_log_softmax", ops="log_softmax")(
    _along(normalization.log_softmax)
)


@ROWS.add("_safe_softmax", ops="softmax, where")
def _safe_softmax(call: AtenCall, x: Value, dim: int, *rest: Any) -> Value:
    """A row of nothing but -inf gives 0."""
    from fusewire.ops import logic, reduction

    value, axis = call.value(x), axis_in(dim, x.tensor.rank)
    hidden = reduction.reduce_all(
        logic.equal(value, call.value(float("-inf"))), axes=(axis,), keepdims=True
    )
    return logic.where(hidden, call.value(0), normalization.softmax(value, axis=axis))


def _like(x: Value, other: Value | None) -> Value | None:
    """Cast scale or bias to the dtype of x: PyTorch takes float32 ones for narrower x."""
    from fusewire.ops.conversion import cast

    if other is None or other.tensor.dtype is x.tensor.dtype:
        return other
    return cast(other, dtype=x.tensor.dtype)


@ROWS.add("layer_norm", ops="layer_norm")
def _layer_norm(
    call: AtenCall,
    x: Value,
    shape: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> Value:
    axis = x.tensor.rank - len(shape)
    return normalization.layer_norm(
        x, _like(x, weight), _like(x, bias), axis=axis, epsilon=float(eps)
    )


@ROWS.add("native_layer_norm", ops="layer_norm")
def _native_layer_norm(
    call: AtenCall, x: Value, shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Value, Value | None, Value | None]:
    y = _layer_norm(call, x, shape, weight, bias, eps)
    if not (call.uses(1) or call.uses(2)):
        return y, None, None

    axes = tuple(range(x.tensor.rank - len(shape), x.tensor.rank))
    mean = statistics.reduce_mean(x, axes=axes, keepdims=True)
    spread = statistics.variance(x, axes=axes, keepdims=True)
    return y, mean, elementwise.rsqrt(elementwise.add(spread, float(eps)))


@ROWS.add("rms_norm", ops="rms_norm")
def _rms_norm(
    call: AtenCall, x: Value, shape: Any, weight: Value | None = None, eps: float | None = None
) -> Value:
    epsilon = x.tensor.dtype.eps if eps is None else float(eps)
    axis = x.tensor.rank - len(shape)
    return normalization.rms_norm(x, _like(x, weight), axis=axis, epsilon=epsilon)


@ROWS.add("_fused_rms_norm", ops="rms_norm")
def _fused_rms_norm(
    call: AtenCall, x: Value, shape: Any, weight: Any, eps: float | None
) -> tuple[Value, None]:
    if call.uses(1):
        raise call.training_refusal("its second result is for training.")
    return _rms_norm(call, x, shape, weight, eps), None


@ROWS.add("group_norm", ops="group_norm")
def _group_norm(
    call: AtenCall,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    *rest: Any,
) -> Value:
    scale, shift = _like(x, weight), _like(x, bias)
    if x.tensor.rank == 2:
        wide = reshape(x, shape=(*x.tensor.shape, 1))
        y = channels.group_norm(wide, scale, shift, groups=groups, epsilon=float(eps))
        return reshape(y, shape=x.tensor.shape)
    return channels.group_norm(x, scale, shift, groups=groups, epsilon=float(eps))


@ROWS.add("native_group_norm", ops="group_norm")
def _native_group_norm(
    call: AtenCall,
    x: Value,
    weight: Any,
    bias: Any,
    batch: Any,
    count: Any,
    spatial: Any,
    groups: int,
    eps: float,
) -> tuple[Value, None, None]:
    if call.uses(1) or call.uses(2):
        raise call.training_refusal("its statistics are for training.")
    return _group_norm(call, x, groups, weight, bias, eps), None, None


def _vector(x: Value, other: Value | None, fill: float) -> Value:
    """Give one number a channel where none is given."""
    if other is not None:
        found = _like(x, other)
        assert found is not None
        return found
    count: Dim = x.tensor.shape[1]
    return creation.full(constant(np.array(fill, x.tensor.dtype.numpy)), shape=(count,))


def _normalized(
    call: AtenCall, x: Value, weight: Any, bias: Any, mean: Any, variance: Any, eps: float
) -> Value:
    given = (_vector(x, weight, 1), _vector(x, bias, 0), _vector(x, mean, 0))
    return channels.batch_norm(x, *given, _vector(x, variance, 1), epsilon=float(eps))


@ROWS.add("batch_norm", ops="batch_norm, batch_norm_training")
def _batch_norm(
    call: AtenCall,
    x: Value,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> Value:
    if not training:
        return _normalized(call, x, weight, bias, mean, variance, eps)
    if mean is not None:
        raise call.training_refusal("it changes its running statistics in training.")
    scale, shift = _vector(x, weight, 1), _vector(x, bias, 0)
    return channels.batch_norm_training(x, scale, shift, epsilon=float(eps))[0]


@ROWS.add("_native_batch_norm_legit_no_training", ops="batch_norm")
def _no_training(
    call: AtenCall,
    x: Value,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    if call.uses(1) or call.uses(2):
        raise call.training_refusal("its statistics are for training.")
    return _normalized(call, x, weight, bias, mean, variance, eps), None, None


@ROWS.add("_native_batch_norm_legit.no_stats", ops="batch_norm_training")
def _no_stats(
    call: AtenCall, x: Value, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Value, None, None]:
    if call.uses(1) or call.uses(2):
        raise call.training_refusal("its statistics are for training.")
    scale, shift = _vector(x, weight, 1), _vector(x, bias, 0)
    return channels.batch_norm_training(x, scale, shift, epsilon=float(eps))[0], None, None


@ROWS.add("instance_norm", ops="instance_norm, batch_norm")
def _instance_norm(
    call: AtenCall,
    x: Value,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *rest: Any,
) -> Value:
    if not use_input_stats:
        return _normalized(call, x, weight, bias, mean, variance, eps)
    if mean is not None:
        raise call.training_refusal("it changes its running statistics in training.")
    return channels.instance_norm(x, _like(x, weight), _like(x, bias), epsilon=float(eps))
