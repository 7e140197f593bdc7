"""Pooling over windows and over whole planes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Value
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.onnx.read.families.windows import WindowAttrs, listed, pairs, sliding
from fusewire.ops import (
    creation,
    dynamic,
    elementwise,
    movement,
    pooling,
    reduction,
    slicing,
)
from fusewire.ops.shape import shape_of


def _window(call: OnnxCall) -> tuple[tuple[int, ...], WindowAttrs]:
    sizes = tuple(int(n) for n in call.needed("kernel_shape"))
    return sizes, sliding(call, call[0].tensor.shape[2:], sizes)


def _lowest(x: Value) -> Value:
    of = x.tensor.dtype
    return constant(np.array(-np.inf if of.is_float else of.range[0], of.numpy))


def _max_pool(call: OnnxCall) -> Converted:
    sizes, at = _window(call)
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    if not call.wants(1):
        return pooling.max_pool(at.around(call[0], _lowest(call[0])), **attrs)
    if not at.is_fixed:
        call.refuse(
            "its indices count elements of x, which auto_pad pads by what follows from its size. "
            "Give example arrays, or Specs with sizes."
        )
    column_major = call.flag("storage_order")
    return pooling.max_pool_with_indices(call[0], column_major=column_major, **attrs)


def _average_pool(call: OnnxCall) -> Converted:
    x, (sizes, at) = call[0], _window(call)
    counted = call.flag("count_include_pad")
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    if at.is_fixed or counted:
        return pooling.average_pool(at.around(x), count_padding=counted, **attrs)
    one = constant(np.ones((), x.tensor.dtype.numpy))
    ones = creation.full(one, shape=x.tensor.shape)
    total, count = (pooling.sum_pool(at.around(v), **attrs) for v in (x, ones))
    return elementwise.divide(total, count)


def _lp_pool(call: OnnxCall) -> Converted:
    sizes, at = _window(call)
    attrs = {"window": sizes, "ceil": call.flag("ceil_mode"), **at.attrs}
    return pooling.lp_pool(at.around(call[0]), p=float(call.attr("p", 2)), **attrs)


def _global_lp_pool(call: OnnxCall) -> Converted:
    x, p = call[0], float(call.attr("p", 2))
    axes = tuple(range(2, x.tensor.rank))
    if p in (1.0, 2.0):
        norm = reduction.norm_l1 if p == 1.0 else reduction.norm_l2
        return norm(x, axes=axes, keepdims=True)
    powers = elementwise.power(elementwise.abs_(x), p)
    return elementwise.power(reduction.reduce_sum(powers, axes=axes, keepdims=True), 1.0 / p)


def _max_unpool(call: OnnxCall) -> Converted:
    x, indices = call[0], call[1]
    sizes = [int(n) for n in call.needed("kernel_shape")]
    rank = len(sizes)
    strides, padding = listed(call, "strides", rank, 1), pairs(call, rank)
    shape = list(x.tensor.shape)
    for axis, (stride, (low, high)) in enumerate(zip(strides, padding, strict=True), 2):
        shape[axis] = (shape[axis] - 1) * stride + sizes[axis - 2] - low - high
    # Indices count in the shape that follows from the window; output_shape adds to its end.
    y, asked = pooling.max_unpool(x, indices, shape=tuple(shape)), call.get(2)
    if asked is None:
        return y
    known = call.dims(asked)
    if known is not None:
        ends = tuple((0, wanted - dim) for wanted, dim in zip(known, shape, strict=True))
        return slicing.pad(y, padding=ends)
    more = elementwise.subtract(asked, shape_of(y))
    sides = movement.concat(elementwise.multiply(more, 0), more, axis=0)
    return dynamic.dynamic_pad(y, sides, dims=tuple(unbacked() for _ in shape))


TABLE: Mapping[str, Read] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": lambda call: pooling.global_average_pool(call[0]),
    "GlobalMaxPool": lambda call: pooling.global_max_pool(call[0]),
    "GlobalLpPool": _global_lp_pool,
    "MaxUnpool": _max_unpool,
}
