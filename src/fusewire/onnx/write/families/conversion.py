"""Changing the dtype by value. ONNX leaves NaN and what is out of range undefined; we do not."""

from __future__ import annotations

import numpy as np

from fusewire.dtypes import DType, bool_, dtype, float32, float64, string
from fusewire.errors import FormatError
from fusewire.ir.graph import Node
from fusewire.onnx.elements import element_of
from fusewire.onnx.ops.writing import attrs_of, choose, compare, number
from fusewire.onnx.write.emitter import Emitter
from fusewire.onnx.write.model import Ref


def cast(e: Emitter, node: Node, x: Ref) -> Ref:
    """Convert values."""
    attrs = attrs_of(node)
    to = dtype(attrs["dtype"])
    if string in (x.dtype, to):
        raise FormatError("ONNX leaves open how numbers are spelled: text is not cast.")
    if x.dtype.is_float and to.is_integer:
        return to_integer(e, x, to)
    if to.is_float and to.is_narrow and x.dtype is not to:
        # By way of float32: of integers out of range, engines make NaN where infinity is right.
        x = e.cast(x, float32) if x.dtype.is_integer else x
        saturate = int(attrs["saturate"])
        e.target.require("Cast", x.dtype, 0)
        e.target.require("Cast", to, -1)
        return e.raw("Cast", [x], [to], {"to": element_of(to), "saturate": saturate})[0]
    return x if x.dtype is to else e.cast_anew(x, to)


def to_integer(e: Emitter, x: Ref, to: DType) -> Ref:
    """Round toward 0, NaN to 0, and what is out of range to the nearest bound."""
    low, high = (int(limit) for limit in to.range)
    # Bounds of 32 bits need float64; those of 64 bits are beyond it, and are put in afterwards.
    x = e.cast(x, float64 if to.bits >= 32 else float32 if x.dtype.bits < 32 else x.dtype)
    below = np.nextafter(x.dtype.numpy.type(2.0**to.bits), 0) if to.bits == 64 else None
    if below is not None and to.kind == "int":
        below = np.nextafter(x.dtype.numpy.type(2.0**63), 0)
    top = high if below is None else below
    known = choose(e, e("IsNaN", x, dtype=bool_), number(e, 0, x), x)
    found = e.cast(e("Clip", known, number(e, low, x), number(e, top, x)), to)
    if below is None:
        return found
    limit = e.constant(np.array(high, to.numpy))
    return choose(e, compare(e, "Greater", x, number(e, top, x)), limit, found)


WRITERS = {"cast": cast}
