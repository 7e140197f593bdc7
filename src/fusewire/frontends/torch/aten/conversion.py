"""Dtypes and devices."""

from __future__ import annotations

from typing import Any

from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops.conversion import bitcast
from fusewire.ops.movement import broadcast_to, reshape

ROWS = Rows()


@ROWS.add("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as",
          ops="cast")  # fmt: skip
def _to(call: AtenCall, x: Value, *options: Any) -> Value:
    """Cast; every tensor is on the CPU."""
    return call.value(x)


@ROWS.add("view.dtype", ops="bitcast")
def _view_dtype(call: AtenCall, x: Value, of: Any) -> Value:
    if call.dtype.bits != x.tensor.dtype.bits:
        raise call.refusal(
            f"{x.tensor.dtype} and {call.dtype} have different widths. Use the same width."
        )
    return bitcast(x, dtype=call.dtype)


@ROWS.add("copy", ops="cast, broadcast_to")
def _copy(call: AtenCall, x: Value, source: Value, *rest: Any) -> Value:
    return broadcast_to(call.value(source), shape=call.shape)


@ROWS.add("item", "_local_scalar_dense", ops="reshape")
def _item(call: AtenCall, x: Value) -> Value:
    """A number that an element gives: it may be computed with, but no size may depend on it."""
    return reshape(x, shape=())
