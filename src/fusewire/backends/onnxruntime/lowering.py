"""What ONNX Runtime runs: what the ONNX writer writes, as far as there are kernels for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from fusewire.backends.onnxruntime.kernels import KERNELS, SINCE
from fusewire.dtypes import DType
from fusewire.formats.onnx.emitter import Write
from fusewire.formats.onnx.families import TABLE
from fusewire.formats.onnx.target import LEADS, Target
from fusewire.formats.onnx.writer import Written, emit, refusal
from fusewire.errors import FormatError
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op

# The engine's fusions know the lower one best; the higher has ops that the lower lacks.
OPSETS = (21, 26)
LOWERING: Mapping[str, Write] = TABLE
# Dtypes of tensors that can cross the border.
CROSSING = KERNELS["Identity"]


@final
class Runtime(Target):
    """The CPU kernels of ONNX Runtime."""

    def __init__(self, opset: int) -> None:
        self._opset = opset

    @property
    def name(self) -> str:
        return "ONNX Runtime"

    @property
    def opset(self) -> int:
        return self._opset

    def takes(self, op: str, of: DType, place: int) -> bool:
        key = op if place == LEADS.get(op, 0) else f"{op}@{place}"
        return of in KERNELS.get(key, ()) and SINCE.get(op, 0) <= self._opset


def refuses(node: Node) -> str | None:
    """Say why a node is not taken; None when it is."""
    if get_op(node.op).is_(Trait.HOST):
        return f"{node.op} works on sequences, optionals or strings, which the reference runs."
    for type_ in (*(v.type for v in node.operands), *node.types):
        if (reason := _foreign(type_)) is not None:
            return reason
    reason = refusal(node, Runtime(OPSETS[0]), LOWERING)
    return reason and refusal(node, Runtime(OPSETS[-1]), LOWERING)


def _foreign(type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"ONNX Runtime is given tensors only, not a {type_}."
    if type_.dtype not in CROSSING:
        return f"ONNX Runtime computes with no {type_.dtype} here."
    return None


def lower(region: Graph) -> Written:
    """Write a region for the lowest opset that has all it needs."""
    try:
        return emit(region, Runtime(OPSETS[0]), LOWERING)
    except FormatError:
        return emit(region, Runtime(OPSETS[-1]), LOWERING)
