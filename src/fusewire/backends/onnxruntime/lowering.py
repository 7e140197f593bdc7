"""What ONNX Runtime runs: what the ONNX writer writes, as far as there are kernels for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from fusewire.backends.onnxruntime.copies import input_names, output_names
from fusewire.backends.onnxruntime.kernels import KERNELS, SINCE
from fusewire.dtypes import DType, float64, int32, int64
from fusewire.errors import FormatError
from fusewire.formats.onnx.emitter import Emitter, refusal
from fusewire.formats.onnx.families import TABLE
from fusewire.formats.onnx.families.pieces import plain
from fusewire.formats.onnx.model import Model, Ref, Write
from fusewire.formats.onnx.target import LEADS, Target
from fusewire.formats.onnx.writer import Written, emit
from fusewire.ir.graph import Graph, Node
from fusewire.ir.types import TensorType, Type
from fusewire.ops.declare import Trait
from fusewire.ops.table import get_op


def _solved(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Multiply by the inverse; the engine has nothing that solves."""
    return e("MatMul", e("com.microsoft:Inverse", a), b)


def _triangular(e: Emitter, node: Node, a: Ref, b: Ref) -> Ref:
    """Solve with what one triangle holds."""
    part = e("Trilu", a, upper=int(not node.attrs["lower"]))
    return _solved(e, node, part, b)


# What the engine has beyond the standard.
OWN: Mapping[str, Write] = {
    "det": plain("Det"),
    "inverse": plain("com.microsoft:Inverse"),
    "solve": _solved,
    "triangular_solve": _triangular,
}
# More versions of the engine know the lower one; the higher has ops that it lacks.
OPSETS = (21, 26)
# Ops whose kernels ended with opset 21, though ONNX goes on with them.
LOWEST_ONLY = {"roi_align"}
LOWERING: Mapping[str, Write] = {**TABLE, **OWN}
# Dtypes of tensors that can cross the border.
CROSSING = KERNELS["Identity"]
# Kernels that are there, and are not right (1.31.1 on x86 with AVX-512; the first two anywhere):
# float64 computed in float32, or refused by the run; integers added up and multiplied in float64;
# int64 compared by halves, so that 2**32 - 2 is below 2.
DISTRUSTED = {
    *((op, float64) for op in ("Shrink", "LSTM", "GRU")),
    *((op, of) for op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare")
      for of in (int32, int64)),
    *((op, int64) for op in ("Max", "Min", "Clip", "Sign", "ReduceMax", "ReduceMin")),
}  # fmt: skip


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

    @property
    def is_cautious(self) -> bool:
        return True

    def takes(self, op: str, of: DType, place: int) -> bool:
        if (op, of) in DISTRUSTED:
            return False
        key = op if place == LEADS.get(op, 0) else f"{op}@{place}"
        return of in KERNELS.get(key, ()) and SINCE.get(op, 0) <= self._opset


def opsets(graph: Graph) -> Sequence[int]:
    """List the opsets for which all of a graph may be written."""
    used = {node.op for part in graph.walk() for node in part.nodes}
    return OPSETS[:1] if used & LOWEST_ONLY else OPSETS


def refuses(node: Node, versions: Sequence[int] = OPSETS) -> str | None:
    """Say why a node is not taken; None when it is."""
    if get_op(node.op).is_(Trait.HOST):
        return f"{node.op} works on sequences, optionals or strings, which the reference runs."
    for type_ in (*(v.type for v in node.operands), *node.types):
        if (reason := _foreign(type_)) is not None:
            return reason
    reason = refusal(node, Model(Runtime(versions[0]), LOWERING))
    return reason and refusal(node, Model(Runtime(versions[-1]), LOWERING))


def _foreign(type_: Type) -> str | None:
    if not isinstance(type_, TensorType):
        return f"ONNX Runtime is given tensors only, not a {type_}."
    if type_.dtype not in CROSSING:
        return f"ONNX Runtime has no {type_.dtype}, or it cannot be handed over."
    return None


def lower(region: Graph) -> Written:
    """Write a region for the lowest opset that has all it needs.

    Inputs and outputs are named by their places: names of values need not differ.
    """
    names = input_names(len(region.inputs)), output_names(len(region.outputs))
    try:
        return emit(region, Runtime(OPSETS[0]), LOWERING, names)
    except FormatError:
        return emit(region, Runtime(OPSETS[-1]), LOWERING, names)
