"""Products with weights that are stored as codes, as one op: engines may keep the codes packed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fusewire.dtypes import int4
from fusewire.facts.known import Facts
from fusewire.ir.builder import constant
from fusewire.ir.graph import Node, Value
from fusewire.ops.contraction import linear, matmul
from fusewire.ops.elementwise import add
from fusewire.ops.inference import axis_of
from fusewire.ops.movement import broadcast_to, reshape, transpose
from fusewire.ops.quantization import dequantize
from fusewire.ops.quantized import BYTES, matmul_nbits
from fusewire.rewrite.pattern import maker
from fusewire.rewrite.rule import Outcome, RuleTable, on

TABLE = RuleTable("raise_quantized")
# Between a tensor that comes from codes and its use.
_MOVING = ("reshape", "transpose", "expand_dims", "squeeze", "broadcast_to")


class _Weights(NamedTuple):
    """Codes [outputs, inputs] with a scale, and perhaps a zero point, per row and block."""

    codes: Value
    scale: Value
    zero_point: Value | None
    block: int


def _is_from_codes(value: Value) -> bool:
    """Tell whether a value was codes itself: then engines multiply codes with codes."""
    while (node := maker(value, *_MOVING)) is not None:
        value = node.operands[0]
    return maker(value, "dequantize") is not None


def _per_row(value: Value, rows: int) -> Value:
    """Shape a scale or zero point of a tensor, or of each row, as one of one block per row."""
    if value.tensor.rank:
        return reshape(value, shape=(rows, 1))
    return broadcast_to(value, shape=(rows, 1))


def _turned(value: Value) -> Value:
    return transpose(value, perm=(1, 0))


def _weights(node: Node, is_turned: bool) -> _Weights | None:
    """Bring what a node makes of codes into the order of the op; None if it has none there."""
    codes, scale, *rest = node.operands
    rows, inputs = codes.tensor.shape if is_turned else codes.tensor.shape[::-1]
    if not isinstance(rows, int) or not isinstance(inputs, int) or not inputs:
        return None
    scales, block, axis = [scale, *rest], node.attrs["block"], node.attrs["axis"]
    # Where the axis of the inputs is in the codes as they are stored.
    summed = 1 if is_turned else 0
    if isinstance(block, int):
        if axis_of(axis, 2) != summed:  # type: ignore[arg-type]  # blocks have an axis
            return None
        scales = scales if is_turned else [_turned(x) for x in scales]
    else:
        if axis is not None and axis_of(axis, 2) == summed:  # type: ignore[arg-type]  # an int
            return None
        scales, block = [_per_row(x, rows) for x in scales], inputs
    own = codes if is_turned else _turned(codes)
    return _Weights(own, scales[0], scales[1] if rest else None, block)


@TABLE.rule(
    "matmul_nbits",
    "matmul",
    because="Engines that multiply with packed codes read a fraction of the memory.",
    example=on(
        lambda x: matmul(
            x,
            dequantize(
                constant(np.ones((32, 3), int4.numpy)),
                constant(np.ones((2, 3), np.float32)),
                axis=0,
                block=16,
            ),
        ),
        "float32[n, 32]",
    ),
)
def _raise_matmul_nbits(node: Node, facts: Facts) -> Outcome:
    x, right = node.operands
    moved = maker(right, "transpose")
    is_turned = moved is not None and tuple(moved.attrs["perm"]) == (1, 0)  # type: ignore[arg-type]  # ints
    return _product(x, moved.operands[0] if moved is not None and is_turned else right, is_turned)


@TABLE.rule(
    "linear_nbits",
    "linear",
    because="Engines that multiply with packed codes read a fraction of the memory.",
    example=on(
        lambda x, bias: linear(
            x,
            dequantize(
                constant(np.ones((3, 32), int4.numpy)),
                constant(np.ones((3, 2), np.float32)),
                axis=1,
                block=16,
            ),
            bias,
        ),
        "float32[n, 32]",
        "float32[3]",
    ),
)
def _raise_linear_nbits(node: Node, facts: Facts) -> Outcome:
    x, right, *rest = node.operands
    found = _product(x, right, is_turned=True)
    return add(found, rest[0]) if rest and isinstance(found, Value) else found


def _product(x: Value, right: Value, is_turned: bool) -> Value | str | None:
    """Multiply with codes, if that is what the right factor is made of, or say why not."""
    made = maker(right, "dequantize")
    if made is None or not x.tensor.rank or made.operands[0].tensor.rank != 2:
        return None
    codes = made.operands[0]
    if codes.constant is None or codes.tensor.dtype not in BYTES:
        return None
    if _is_from_codes(x):
        return "both factors come from codes, which engines multiply as they are."
    found = _weights(made, is_turned)
    if found is None:
        return "the scales change along the axis that is summed over, but not in blocks."
    return matmul_nbits(x, *found[:3], block=found.block)
