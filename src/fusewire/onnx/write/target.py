"""The target of a written model, and the dtypes that ONNX's ops accept there.

Where an op lacks a dtype, a wider one that gives the same answer takes its place: floats of 16
bits are computed in float32 and rounded, as our ops are defined; integers in wider ones, whose
upper bits are dropped again.
"""

from __future__ import annotations

import abc
from functools import cache
from typing import final

from fusewire import dtypes
from fusewire.dtypes import DType
from fusewire.errors import FormatError
from fusewire.onnx.elements import NAMES

MINIMUM, DEFAULT = 21, 21
# Ops of other domains are written "domain:Op".
STANDARD_DOMAIN = ""
# Which input's dtype decides; the first unless it is listed here. -1 is the first output.
LEADS = {
    "Where": 1, "OneHot": 2, "ConstantOfShape": -1, "If": -1, "Loop": 2,
    "HannWindow": -1, "HammingWindow": -1, "BlackmanWindow": -1, "MelWeightMatrix": -1,
}  # fmt: skip
_WIDER: dict[DType, tuple[DType, ...]] = {
    dtypes.bool_: (dtypes.uint8, dtypes.int8, dtypes.int32),
    dtypes.int8: (dtypes.int32, dtypes.int64),
    dtypes.int16: (dtypes.int32, dtypes.int64),
    dtypes.int32: (dtypes.int64,),
    dtypes.uint8: (dtypes.int32, dtypes.uint32, dtypes.int64),
    dtypes.uint16: (dtypes.int32, dtypes.uint32, dtypes.int64),
    dtypes.uint32: (dtypes.int64,),
    dtypes.float16: (dtypes.float32,),
    dtypes.bfloat16: (dtypes.float32,),
    **{d: (dtypes.float32,) for d in dtypes.NARROW if d.is_float},
}
# Ops that never look at more than the bits, modulo 2**64: signed and unsigned are the same.
_MODULAR = {"Where", "Pad", "CumSum", "CumProd", "ReduceSum", "ReduceProd", "Trilu", "Einsum"}
# Ops that only compare: float64 holds every integer of 32 bits, and uint64 can be moved down.
COMPARING = {"MaxPool", "TopK", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Unique"}


class OnnxTarget(abc.ABC):
    """An opset, and who will read the model."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Who reads it, as the subject of a sentence."""

    @property
    @abc.abstractmethod
    def opset(self) -> int:
        """The version of the standard domain."""

    @property
    @abc.abstractmethod
    def is_cautious(self) -> bool:
        """Whether to write only what engines agree about."""

    @property
    def saturates(self) -> bool:
        """Whether sums of products of unsigned and signed bytes saturate, and others do not."""
        return False

    @abc.abstractmethod
    def takes(self, op: str, of: DType, place: int) -> bool:
        """Tell whether the op takes a dtype at an input; -1 is the first output."""

    def work(self, op: str, of: DType) -> DType:
        """Choose the dtype in which an op runs; FormatError when none will do."""
        place = LEADS.get(op, 0)
        candidates = [of, *_WIDER.get(of, ())]
        if of is dtypes.uint64 and op in _MODULAR | COMPARING:
            candidates.append(dtypes.int64)
        if of.is_integer and of.bits <= 32 and op in COMPARING:
            candidates.append(dtypes.float64)
        for candidate in candidates:
            if self.takes(op, candidate, place):
                return candidate
        raise FormatError(f"{self.name} has no {op.rpartition(':')[2]} for {of.name}.")

    def require(self, op: str, of: DType, place: int) -> None:
        """Refuse a dtype at an input that is not the deciding one."""
        if not self.takes(op, of, place):
            what = f"input {place}" if place >= 0 else "its output"
            raise FormatError(f"{self.name} has no {op} with {of.name} as {what}.")


@final
class Standard(OnnxTarget):
    """ONNX as its specification has it; asking imports onnx."""

    def __init__(self, opset: int = DEFAULT, *, is_cautious: bool = False) -> None:
        if opset < MINIMUM:
            raise FormatError(f"Models are written for opset {MINIMUM} or later, found {opset}.")
        self._opset = opset
        self._is_cautious = is_cautious

    @property
    def name(self) -> str:
        return f"ONNX opset {self._opset}"

    @property
    def opset(self) -> int:
        return self._opset

    @property
    def is_cautious(self) -> bool:
        return self._is_cautious

    def takes(self, op: str, of: DType, place: int) -> bool:
        return NAMES.get(of) in _taken(op, self._opset, place)


@cache
def _taken(op: str, opset: int, place: int) -> frozenset[str]:
    """List the types of an input by the op's schema; none when the opset lacks the op."""
    from onnx import defs

    if ":" in op or not defs.has(op, max_inclusive_version=opset):
        return frozenset()
    schema = defs.get_schema(op, max_inclusive_version=opset)
    formal = schema.outputs[0] if place < 0 else schema.inputs[min(place, len(schema.inputs) - 1)]
    return frozenset(formal.types)
