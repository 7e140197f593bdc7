"""Tensors of numbers that no operand gives."""

from __future__ import annotations

from typing import Any

from fusewire.dtypes import bool_, int64
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.dims import Sym
from fusewire.ir.graph import Value
from fusewire.ops import creation, elementwise
from fusewire.ops.conversion import cast

ROWS = Rows()


def _filled(call: AtenCall, value: Any) -> Value:
    return creation.full(call.value(value), shape=call.shape)


@ROWS.add("full", "full_like", "new_full", "fill.Scalar", "fill.Tensor", ops="full")
def _full(call: AtenCall, first: Any, *rest: Any) -> Value:
    name = call.name.split(".")[1]
    return _filled(call, rest[1] if name == "new_full" else rest[0])


@ROWS.add("zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty",
          "new_empty_strided", "empty_strided", "empty_permuted", "zero", ops="full")  # fmt: skip
def _zeros(call: AtenCall, *rest: Any) -> Value:
    """Fill with zeros, also what PyTorch leaves as it finds it."""
    return _filled(call, 0)


@ROWS.add("ones", "ones_like", "new_ones", ops="full")
def _ones(call: AtenCall, *rest: Any) -> Value:
    return _filled(call, 1)


@ROWS.add("scalar_tensor", ops="full")
def _scalar_tensor(call: AtenCall, value: Any, *rest: Any) -> Value:
    return call.value(value)


@ROWS.add("eye", "eye.m", ops="eye")
def _eye(call: AtenCall, *rest: Any) -> Value:
    rows, columns = call.shape
    if call.dtype is bool_:
        return cast(creation.eye.new(rows=rows, columns=columns, dtype=int64), dtype=bool_)
    return creation.eye.new(rows=rows, columns=columns, dtype=call.dtype)


@ROWS.add("arange", ops="arange")
def _arange(call: AtenCall, end: Any, *rest: Any) -> Value:
    return _counted(call, 0, 1)


@ROWS.add("arange.start", ops="arange")
def _arange_start(call: AtenCall, start: Any, end: Any, *rest: Any) -> Value:
    return _counted(call, start, 1)


@ROWS.add("arange.start_step", ops="arange")
def _arange_step(call: AtenCall, start: Any, end: Any, step: Any = 1, *rest: Any) -> Value:
    return _counted(call, start, step)


def _counted(call: AtenCall, start: Any, step: Any) -> Value:
    """Count as many steps as PyTorch has counted."""
    (count,) = call.shape
    if not isinstance(start, Sym) and not isinstance(step, Sym):
        whole = isinstance(start, int) and isinstance(step, int)
        if whole or call.dtype.is_float:
            of = call.dtype
            return creation.arange.new(count=count, start=start, step=step, dtype=of)
    places = call.value(creation.iota.new(shape=(count,), axis=0, dtype=int64))
    return elementwise.add(elementwise.multiply(places, call.value(step)), call.value(start))


@ROWS.add("linspace", ops="linspace")
def _linspace(call: AtenCall, start: Any, stop: Any, steps: Any, *rest: Any) -> Value:
    (count,) = call.shape
    if not call.dtype.is_float or isinstance(start, Value) or isinstance(stop, Value):
        raise call.refusal("its bounds must be numbers, and its dtype one of floats.")
    if count == 1:
        return _filled(call, start)
    return creation.linspace.new(
        start=float(start), stop=float(stop), count=count, dtype=call.dtype
    )


@ROWS.add("tril_indices", "triu_indices", ops="a constant")
def _triangle_indices(
    call: AtenCall, rows: Any, columns: Any, offset: int = 0, *rest: Any
) -> Value:
    import numpy as np

    from fusewire.ir.builder import constant

    rows, columns = call.number(rows, "the number of rows"), call.number(columns, "that of columns")
    upper = call.name.split(".")[1] == "triu_indices"
    places = (np.triu_indices if upper else np.tril_indices)(rows, offset, columns)
    return constant(np.stack(places).astype(call.dtype.numpy))
