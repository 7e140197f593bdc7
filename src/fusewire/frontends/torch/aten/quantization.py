"""Codes of 4 and 8 bits, as PyTorch's own flows of quantization write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusewire.dtypes import DType, int4, int8, uint4, uint8
from fusewire.frontends.torch.aten.rows import Rows
from fusewire.frontends.torch.call import AtenCall
from fusewire.ir.graph import Value
from fusewire.ops.conversion import cast
from fusewire.ops.quantization import dequantize

ROWS = Rows()
# PyTorch stores codes of 4 bits in bytes, and says so by their range.
_NARROW = {(-8, 7): int4, (0, 15): uint4}


@ROWS.add("dequantize_per_tensor", ops="dequantize")
def _per_tensor(
    call: AtenCall, x: Value, scale: Any, zero_point: Any, low: int, high: int, *_: Any
) -> Any:
    codes = _codes(x, low, high)
    return dequantize(codes, call.value(scale), _zero(call, zero_point, codes))


@ROWS.add("dequantize_per_channel", ops="dequantize")
def _per_channel(
    call: AtenCall,
    x: Value,
    scales: Value,
    zeros: Value | None,
    axis: int,
    low: int,
    high: int,
    *_: Any,
) -> Any:
    codes = _codes(x, low, high)
    return dequantize(codes, call.value(scales), _zero(call, zeros, codes), axis=axis)


@ROWS.add("dequantize_per_channel_group", ops="dequantize")
def _per_group(
    call: AtenCall,
    x: Value,
    scales: Value,
    zeros: Value | None,
    low: int,
    high: int,
    dtype: Any,
    group: int,
    *_: Any,
) -> Any:
    codes = _codes(x, low, high)
    return dequantize(codes, call.value(scales), _zero(call, zeros, codes), axis=1, block=group)


def _codes(x: Value, low: int, high: int) -> Value:
    """Give weights of 4 bits their own dtype, so that engines may pack them."""
    narrow, held = _NARROW.get((low, high)), x.constant
    if narrow is None or held is None or x.tensor.dtype not in (int8, uint8):
        return x
    elements: Any = held.array
    is_within = not elements.size or (np.min(elements) >= low and np.max(elements) <= high)
    return cast(x, dtype=narrow) if is_within else x


def _zero(call: AtenCall, zero: Any, codes: Value) -> Value | None:
    """Give a zero point the dtype of the codes; none at all if it is 0."""
    of: DType = codes.tensor.dtype
    if zero is None or (isinstance(zero, int) and not zero):
        return None
    if isinstance(zero, Value) and not zero.tensor.dtype.is_integer:
        raise call.refusal(f"its zero points are {zero.tensor.dtype}: give whole numbers.")
    return call.value(zero, of)
