"""Tensors from attributes, sizes and scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fusewire import dtypes
from fusewire.dtypes import dtype, float32, int64
from fusewire.ir.builder import constant
from fusewire.ir.dims import Dim, unbacked
from fusewire.ir.graph import Node, Value
from fusewire.onnx.ops.reading import cast, is_told, known_dims, named, scalar, with_sizes
from fusewire.onnx.ops.writing import attrs_of
from fusewire.ops import creation, dynamic, layout
from fusewire.ops.inference import axis_of
from fusewire.ops.shape import shape_of

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write

_FORMS: Mapping[str, Callable[[Any], Any]] = {
    "value_float": np.float32,
    "value_floats": lambda held: np.array(held, np.float32),
    "value_int": np.int64,
    "value_ints": lambda held: np.array(held, np.int64),
    "value_string": lambda held: np.array(held, object),
    "value_strings": lambda held: np.array(held, object),
}
# What is counted further than this is counted by the run, so that models stay small.
_WRITTEN_OUT = 256


def _read_constant(call: OnnxCall) -> Converted:
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


def _read_constant_of_shape(call: OnnxCall) -> Converted:
    value = call.tensor("value") if "value" in call.attrs else constant(np.zeros(1, np.float32))
    (one,) = call.settled(scalar(value) or value)
    shape = call[0]
    dims = named(known_dims(call, shape, "the shape"))
    return with_sizes(call, dynamic.dynamic_full, [one, shape], dims)


def _read_range(call: OnnxCall) -> Converted:
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


def _write_range(e: Emitter, node: Node, start: Ref, stop: Ref, step: Ref) -> Ref:
    """Count between scalars; what is neither float nor int64 is counted in one of them."""
    wide = int64 if start.dtype.is_integer else start.dtype
    wide = float32 if wide.is_float and wide.bits == 16 else wide
    found = e("Range", *(e.cast(x, wide) for x in (start, stop, step)))
    return e.cast(found, start.dtype)


def _read_eye_like(call: OnnxCall) -> Converted:
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


def _write_iota(e: Emitter, node: Node) -> Ref:
    """Count along an axis."""
    attrs = attrs_of(node)
    shape, of = node.outputs[0].tensor.shape, dtype(attrs["dtype"])
    axis = axis_of(attrs["axis"], len(shape))
    count, rank = shape[axis], len(shape)
    places = counted(e, count)
    column = e.integers(*range(1, rank - axis))
    places = e("Unsqueeze", places, column) if rank - axis > 1 else places
    places = e.cast(places, of)
    wanted: list[Dim] = [1 if i == axis else dim for i, dim in enumerate(shape)]
    if axis == 0 and all(dim == 1 for dim in wanted):
        return e("Identity", places)
    return e("Expand", places, e.shape(tuple(wanted)))


def counted(e: Emitter, count: Dim) -> Ref:
    """Count from 0 in int64."""
    if isinstance(count, int) and count <= _WRITTEN_OUT:
        return e.constant(np.arange(count))
    return e("Range", e.scalar(0), e.scalar(count), e.scalar(1))


READERS: Mapping[str, Read] = {
    "Constant": _read_constant,
    "ConstantOfShape": _read_constant_of_shape,
    "Range": _read_range,
    "EyeLike": _read_eye_like,
}


WRITERS: Mapping[str, Write] = {
    "iota": _write_iota,
    "range": _write_range,
}
