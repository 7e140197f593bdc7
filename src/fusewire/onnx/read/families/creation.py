"""Tensors from attributes, sizes and scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusewire import dtypes
from fusewire.ir.builder import constant
from fusewire.ir.dims import unbacked
from fusewire.ir.graph import Value
from fusewire.onnx.ops.reading import cast, is_told, known_dims, named, scalar, with_sizes
from fusewire.onnx.read.call import Converted, OnnxCall, Read
from fusewire.ops import creation, dynamic, elementwise, indexing, layout, logic, movement
from fusewire.ops.inference import axis_of
from fusewire.ops.shape import shape_of
from fusewire.ops.slicing import slice_axis

_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "value_float": np.float32,
    "value_floats": lambda held: np.array(held, np.float32),
    "value_int": np.int64,
    "value_ints": lambda held: np.array(held, np.int64),
    "value_string": lambda held: np.array(held, object),
    "value_strings": lambda held: np.array(held, object),
}


def _constant(call: OnnxCall) -> Converted:
    given = [name for name in ("value", "sparse_value", *_FORMS) if name in call.attrs]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        call.refuse(f"a Constant has one of value, sparse_value, {', '.join(_FORMS)}; {found}.")
    (name,) = given
    if name == "value":
        return call.tensor("value")
    if name == "sparse_value":
        return constant(call.importer.opened.sparse(call.attr(name)))
    return constant(_FORMS[name](call.attr(name)))


def _constant_of_shape(call: OnnxCall) -> Converted:
    value = call.tensor("value") if "value" in call.attrs else constant(np.zeros(1, np.float32))
    (one,) = call.settled(scalar(value) or value)
    shape = call[0]
    dims = named(known_dims(call, shape, "the shape"))
    return with_sizes(call, dynamic.dynamic_full, [one, shape], dims)


def _range(call: OnnxCall) -> Converted:
    bounds = call.settled(*(scalar(x) or x for x in call.rest))
    of = bounds[0].tensor.dtype
    if not (of.is_float and of.bits == 16):
        return _counted(call, *bounds)
    # Counted in float32, in which neighbours stay apart.
    return cast(_counted(call, *call.settled(*(cast(x, dtypes.float32) for x in bounds))), of)


def _counted(call: OnnxCall, *bounds: Value) -> Value:
    known = [call.array(bound) for bound in bounds]
    start, limit, delta = (None if x is None else x.item() for x in known)
    if delta == 0:
        call.refuse("delta is 0, so that the range has no end.")
    if isinstance(start, float) and isinstance(limit, float) and isinstance(delta, float):
        steps = (limit - start) / delta
        if not math.isfinite(steps):
            call.refuse(f"a range from {start} to {limit} by {delta} has no length.")
        return creation.range_(*bounds, count=max(math.ceil(steps), 0))
    return with_sizes(
        call, creation.range_, bounds, (unbacked(),), lambda shape: {"count": shape[0]}
    )[0]


def _eye_like(call: OnnxCall) -> Converted:
    x, offset = call[0], call.attr("k", 0)
    of = call.dtype(default=x.tensor.dtype)
    if x.tensor.rank != 2:
        call.refuse(f"it is made like a matrix, found {x.type}.")
    rows, columns = x.tensor.shape
    found = creation.eye.new(rows=rows, columns=columns, offset=offset, dtype=of)
    if is_told(found):
        return found
    one = constant(np.ones((), of.numpy))
    ones = dynamic.dynamic_full(one, shape_of(x), dims=(rows, columns))
    return layout.tril(layout.triu(ones, offset=offset), offset=offset)


def _one_hot(call: OnnxCall) -> Converted:
    indices, values = cast(call[0], dtypes.int64), call[2]
    depth = cast(scalar(call[1]) or call[1], dtypes.int64)
    (depth,) = call.settled(depth)
    axis = axis_of(call.attr("axis", -1), indices.tensor.rank + 1)
    if call.opset < 11:
        # Negative indices did not count from the end, they were out of range.
        indices = logic.where(logic.less(indices, 0), depth, indices)
    known = call.dims(depth)
    if known is not None:
        found = indexing.one_hot(indices, values, depth=known[0], axis=axis)
        if is_told(found, indices, values):
            return found
    zero, one = (constant(np.int64(n)) for n in (0, 1))
    count = unbacked() if known is None else known[0]
    places = creation.range_(zero, depth, one, count=count)
    places = movement.reshape(places, shape=(count, *([1] * (indices.tensor.rank - axis))))
    at = movement.expand_dims(indices, axes=(axis,))
    held = logic.logical_or(
        logic.equal(at, places), logic.equal(at, elementwise.subtract(places, depth))
    )
    off, on = (movement.reshape(slice_axis(values, 0, slice(i, i + 1)), shape=()) for i in (0, 1))
    return logic.where(held, on, off)


TABLE: Mapping[str, Read] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "OneHot": _one_hot,
}
