"""Ops that ONNX and we have alike: one row for both directions of an op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fusewire.dtypes import DType
from fusewire.ir.graph import Node, Value
from fusewire.ops import movement
from fusewire.ops.declare import Op

if TYPE_CHECKING:
    from fusewire.onnx.read.call import Converted, OnnxCall, Read
    from fusewire.onnx.write.emitter import Emitter
    from fusewire.onnx.write.model import Ref, Write


class OnnxRow(NamedTuple):
    """An op of ours, and the ONNX op that does the same with the same operands.

    ``attrs`` maps our attributes to ONNX's, each with the value it has there when absent; one that
    is a bool is 0 or 1 in ONNX. ``gives`` is the dtype of the output where it is not that of the
    first operand. With ``broadcasts``, the second operand is aligned as files from before opset 7
    ask for. A direction in which the op is not so plain names its own ``reader`` or ``writer``.
    """

    op: Op[Any]
    onnx: str
    attrs: Mapping[str, tuple[str, Any]] = MappingProxyType({})
    gives: DType | None = None
    broadcasts: bool = False
    reader: Read | None = None
    writer: Write | None = None

    def read(self, call: OnnxCall) -> Converted:
        """Make our op of an ONNX node."""
        operands = aligned(call) if self.broadcasts else call.rest
        attrs: dict[str, Any] = {}
        for ours, (name, default) in self.attrs.items():
            value = call.attr(name, default)
            attrs[ours] = bool(value) if isinstance(default, bool) else value
        outputs: Converted = self.op(*operands, **attrs)
        return outputs

    def write(self, e: Emitter, node: Node, *operands: Ref | None) -> Ref:
        """Emit an ONNX node for a node of ours."""
        attrs: dict[str, Any] = {name: node.attrs[ours] for ours, (name, _) in self.attrs.items()}
        attrs = {name: int(x) if isinstance(x, bool) else x for name, x in attrs.items()}
        return e(self.onnx, *operands, dtype=self.gives, **attrs)


def readers(rows: Iterable[OnnxRow]) -> dict[str, Read]:
    """Map ONNX ops to what reads them."""
    return {row.onnx: row.reader or row.read for row in rows}


def writers(rows: Iterable[OnnxRow]) -> dict[str, Write]:
    """Map our ops to what writes them."""
    return {row.op.name: row.writer or row.write for row in rows}


def aligned(call: OnnxCall) -> tuple[Value, Value]:
    """Give two operands that broadcast, also as ONNX did before opset 7.

    Then the second had to say so, and could begin at an axis of the first that is not the last.
    """
    x, y = call[0], call[1]
    axis = call.attr("axis")
    if call.opset >= 7 or axis is None or not call.flag("broadcast"):
        return x, y
    rank, place = x.tensor.rank, axis % x.tensor.rank if x.tensor.rank else 0
    missing = rank - place - y.tensor.rank
    if missing > 0:
        shape = (*y.tensor.shape, *([1] * missing))
        y = movement.reshape(y, shape=shape)
    return x, y
